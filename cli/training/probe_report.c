/* SPDX-License-Identifier: MIT */
#include "cli/training/probe_report.h"

#include "cli/training/html.h"
#include "cli/training/report.h"
#include "cli/training/text.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH = 2048, PROBE_MATRIX = 2 /* W_R among probe_matrices */ };

static const char *task_of(const probe_arm *arm)
{
    return arm->plan.task == TRAIN_RECALL ? "recall" : "context";
}

static const char *optimiser_of(const probe_arm *arm) { return arm->plan.options.muon ? "muon" : "adamw"; }

static const char *mechanism_of(const probe_arm *arm) { return arm->plan.mechanisms[0].row->name; }

/* Softmax has none. */
static bool has_probe(const probe_arm *arm) { return arm->plan.mechanisms[0].row->probe; }

/* ---- means */

probe_means probe_means_of(const probe_result *at)
{
    const plan *p = &at->arm->plan;
    const int rate = results_rate(&at->results, 0, 0);
    const double count = (double)(p->seed_count * p->options.shape.layers);
    probe_means out = { .score = results_mean(&at->results, 0, 0) };
    for (int seed = 0; seed < p->seed_count; seed++) {
        const int64_t run = plan_run_number(p, (plan_run){ 0, 0, rate, seed });
        for (int64_t layer = 0; layer < p->options.shape.layers; layer++) {
            const probe_layer *last = probe_log_at(&at->log, run, at->results.counts[run] - 1, layer);
            if (!has_probe(at->arm)) continue;
            out.correction += last->rows.correction / count;
            for (int head = 0; head < PROBE_HEADS; head++)
                out.rank += last->rank[PROBE_MATRIX][head] / (count * PROBE_HEADS);
        }
    }
    return out;
}

/* ---- claims */

static const probe_result *find(const probe_result *all, int count, train_task task, probe_start start,
                                bool muon)
{
    for (int i = 0; i < count; i++)
        if (all[i].arm->plan.task == task && all[i].arm->start == start &&
            all[i].arm->plan.options.muon == muon)
            return &all[i];
    return NULL;
}

static const train_task tasks[] = { TRAIN_RECALL, TRAIN_REGRESSION };

/* A number under Muon at least so many times that under AdamW, for each task and start. */
static void judge_ratio(const probe_result *all, int count, bool rank, double least, claim *c)
{
    int held = 0, values = 0;
    for (int t = 0; t < 2; t++)
        for (int start = PROBE_ZERO; start < PROBE_STARTS; start++) {
            const probe_result *adamw = find(all, count, tasks[t], (probe_start)start, false);
            const probe_result *muon = find(all, count, tasks[t], (probe_start)start, true);
            if (!adamw || !muon) continue;
            const probe_means a = probe_means_of(adamw), m = probe_means_of(muon);
            const double under_a = rank ? a.rank : a.correction, under_m = rank ? m.rank : m.correction;
            values++, held += under_m >= least * under_a;
            text_add(c->numbers, CLAIM_TEXT, "%s, start %s: %.3g under Muon, %.3g under AdamW. ",
                     task_of(adamw->arm), probe_start_names[start], under_m, under_a);
        }
    c->verdict = values == 0 ? VERDICT_UNDECIDED : held == values ? VERDICT_HELD : VERDICT_NOT_HELD;
}

/* How much better Parallax is than softmax, and its standard error. */
static result_value gain_of(const probe_result *all, int count, train_task task, bool muon)
{
    const probe_result *softmax = find(all, count, task, PROBE_NONE, muon);
    const probe_result *parallax = find(all, count, task, PROBE_LIKE, muon);
    const result_value a = probe_means_of(softmax).score, b = probe_means_of(parallax).score;
    const double sign = task == TRAIN_REGRESSION ? -1 : 1;
    return (result_value){ sign * (b.mean - a.mean), a.error + b.error };
}

/* Under Muon by more than the two standard errors, and by more than under AdamW. */
static void judge_unlock(const probe_result *all, int count, claim *c)
{
    int held = 0;
    for (int t = 0; t < 2; t++) {
        const result_value adamw = gain_of(all, count, tasks[t], false),
                           muon = gain_of(all, count, tasks[t], true);
        held += muon.mean > muon.error && muon.mean > adamw.mean;
        text_add(c->numbers, CLAIM_TEXT,
                 "%s: better than softmax by %.3g ± %.1g under Muon, %.3g ± %.1g under AdamW. ",
                 tasks[t] == TRAIN_RECALL ? "recall" : "context", muon.mean, muon.error, adamw.mean,
                 adamw.error);
    }
    claim_decide_by_seeds(c, all[0].arm->plan.seed_count, held == 2);
}

/* By more than the two standard errors. */
static void judge_convert(const probe_result *all, int count, claim *c)
{
    const probe_result *convert = find(all, count, TRAIN_RECALL, PROBE_CONVERT, false),
                       *control = find(all, count, TRAIN_RECALL, PROBE_CONTROL, false),
                       *before = find(all, count, TRAIN_RECALL, PROBE_NONE, false);
    const result_value a = probe_means_of(convert).score, b = probe_means_of(control).score,
                       from = probe_means_of(before).score;
    text_add(c->numbers, CLAIM_TEXT,
             "recall, from %.3g ± %.1g: %.3g ± %.1g as Parallax, %.3g ± %.1g as softmax. ", from.mean,
             from.error, a.mean, a.error, b.mean, b.error);
    claim_decide_by_seeds(c, all[0].arm->plan.seed_count, a.mean - b.mean > a.error + b.error);
}

int probe_judge(const probe_result *all, int count, claim *out)
{
    static const char *const texts[] = {
        "the stable rank of W_R is under Muon at least 1.5 times that under AdamW",
        "the correction is larger under Muon than under AdamW",
        "Parallax is better than softmax under Muon, and by more than under AdamW",
        "what softmax has learned goes on better as Parallax from W_R = 0 than as softmax",
    };
    for (int i = 0; i < 4; i++)
        out[i] = (claim){ .source = i < 3 ? "Parallax, 2026" : "ours",
                          .text = texts[i],
                          .verdict = VERDICT_UNDECIDED };
    judge_ratio(all, count, true, 1.5, &out[0]);
    judge_ratio(all, count, false, 1, &out[1]);
    judge_unlock(all, count, &out[2]);
    judge_convert(all, count, &out[3]);
    return 4;
}

/* ---- CSV */

static void write_number(FILE *out, double x)
{
    if (isnan(x))
        fputc(',', out);
    else
        fprintf(out, ",%.9g", x);
}

static void write_layer(FILE *out, const probe_layer *at)
{
    const double values[] = { at->rows.correction, at->rows.probe, at->rows.negative,
                              at->rows.entropy,    at->rows.first, at->rows.gate };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        write_number(out, values[i]);
    for (int i = 0; i < PROBE_MATRICES; i++)
        for (int head = 0; head < PROBE_HEADS; head++)
            write_number(out, at->rank[i][head]);
    fputc('\n', out);
}

static void write_arm(FILE *out, const probe_result *at)
{
    const plan *p = &at->arm->plan;
    const int parts = plan_parts(p, &p->cells[0]);
    for (int64_t number = 0; number < plan_runs(p); number++) {
        const plan_run run = plan_run_at(p, number);
        for (int64_t test = 0; test < at->results.counts[number]; test++)
            for (int64_t layer = 0; layer < p->options.shape.layers; layer++) {
                const train_record *record = results_record(&at->results, number, test);
                double score = 0;
                for (int part = 0; part < parts; part++)
                    score += record->part[part] / parts;
                fprintf(out, "%s,%s,%s,%s,%g,%" PRIu64 ",%.0f,%.9g,%.9g,%" PRId64, task_of(at->arm),
                        mechanism_of(at->arm), probe_start_names[at->arm->start], optimiser_of(at->arm),
                        p->rates[run.rate], p->seeds[run.seed], record->step, record->test_loss, score,
                        layer + 1);
                write_layer(out, probe_log_at(&at->log, number, test, layer));
            }
    }
}

static int write_csv(const probe_result *all, int count, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fputs("task,mechanism,start,optimiser,rate,seed,step,test_loss,score,layer,correction,probe,negative,"
          "entropy,first,"
          "gate",
          out_stream(file));
    for (int i = 0; i < PROBE_MATRICES; i++)
        for (int head = 0; head < PROBE_HEADS; head++)
            fprintf(out_stream(file), ",rank_%s_%d", mixer_array_name(probe_matrices[i]), head + 1);
    fputc('\n', out_stream(file));
    for (int i = 0; i < count; i++)
        write_arm(out_stream(file), &all[i]);
    return out_commit(file, error);
}

static int write_times(const probe_result *all, int count, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fputs("arm,run,step,ns_per_token\n", out_stream(file));
    for (int i = 0; i < count; i++) {
        const results *r = &all[i].results;
        for (int64_t run = 0; run < plan_runs(r->plan); run++)
            for (int64_t test = 0; test < r->counts[run]; test++)
                fprintf(out_stream(file), "%s,%" PRId64 ",%.0f,%.1f\n", all[i].arm->name, run,
                        results_record(r, run, test)->step, r->times[run * r->most + test]);
    }
    return out_commit(file, error);
}

/* ---- page and table */

static int write_page(const probe_result *all, int count, const claim *claims, int claim_count,
                      const char *description, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    html_head(out, "Parallax's probe");
    html_claims(out, "What the paper says", "Zuo et al. 2025", claims, claim_count);
    fputs("<h2>After the last step, at the best learning rate</h2>\n<div class=\"wide\"><table>\n"
          "<tr><th>task</th>"
          "<th>mechanism</th><th>start of W_R</th><th>optimiser</th><th>rate</th><th>accuracy, or error of "
          "context</th><th>correction</th><th>stable rank of W_R</th></tr>\n",
          out);
    for (int i = 0; i < count; i++) {
        const probe_means at = probe_means_of(&all[i]);
        const plan *p = &all[i].arm->plan;
        fprintf(out, "<tr><td>%s</td><td>%s</td><td>%s</td><td>%s</td><td>%g</td><td>%.3f ± %.3f</td>",
                task_of(all[i].arm), mechanism_of(all[i].arm), probe_start_names[all[i].arm->start],
                optimiser_of(all[i].arm), p->rates[results_rate(&all[i].results, 0, 0)], at.score.mean,
                at.score.error);
        if (!has_probe(all[i].arm))
            fputs("<td></td><td></td></tr>\n", out);
        else
            fprintf(out, "<td>%.3g</td><td>%.3g</td></tr>\n", at.correction, at.rank);
    }
    fputs("</table></div>\n<p>The correction is mean |o - vbar| / mean |vbar|, o the output and "
          "vbar that of softmax on "
          "the same scores. Numbers of rows are those of the last batch of a test.</p>\n"
          "<h2>What was run</h2>\n<p>",
          out);
    html_escape(out, description);
    fputs("</p>\n<p>Tables: <a href=\"probe.csv\">probe.csv</a>, <a href=\"times.csv\">times.csv</a>.</p>\n"
          "</body>\n"
          "</html>\n",
          out);
    return out_commit(file, error);
}

static int write_table(const probe_result *all, int count, const claim *claims, int claim_count,
                       io_error *error)
{
    out_file *file;
    const int status = out_open(&file, "-", error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fprintf(out, "%-24s %8s  %16s %11s %9s\n", "arm", "rate", "accuracy, error", "correction", "rank W_R");
    for (int i = 0; i < count; i++) {
        const probe_means at = probe_means_of(&all[i]);
        fprintf(out, "%-24s %8g  %7.3f ± %-6.3f", all[i].arm->name,
                all[i].arm->plan.rates[results_rate(&all[i].results, 0, 0)], at.score.mean, at.score.error);
        if (has_probe(all[i].arm)) fprintf(out, " %11.3g %9.3g", at.correction, at.rank);
        fputc('\n', out);
    }
    report_claims(out, claims, claim_count);
    return out_commit(file, error);
}

int probe_report(const probe_result *all, int count, const char *description, const char *directory,
                 io_error *error)
{
    char path[PATH];
    claim claims[CLAIMS];
    const int claim_count = probe_judge(all, count, claims);
    snprintf(path, sizeof path, "%s/probe.csv", directory);
    int status = write_csv(all, count, path, error);
    snprintf(path, sizeof path, "%s/times.csv", directory);
    if (status == EXIT_OK) status = write_times(all, count, path, error);
    snprintf(path, sizeof path, "%s/index.html", directory);
    if (status == EXIT_OK) status = write_page(all, count, claims, claim_count, description, path, error);
    return status == EXIT_OK ? write_table(all, count, claims, claim_count, error) : status;
}
