/* SPDX-License-Identifier: MIT */
#include "cli/graft/report.h"

#include "cli/graft/claims.h"
#include "cli/graft/page.h"
#include "cli/graft/pictures.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>

/* ---- CSV */

static void put_number(FILE *out, double x)
{
    fputc(',', out);
    if (isfinite(x)) fprintf(out, "%.9g", x);
}

static void put_paired(FILE *out, paired x) { put_number(out, x.mean), put_number(out, x.error); }

static void put_nll(FILE *out, const graft_results *r, int kind, int text)
{
    const graft_plan *p = r->plan;
    const paired none = { NAN, NAN, 0, 0 }, nll = graft_difference(r, kind, -1, text);
    const bool against = kind < GRAFT_KINDS && graft_is_controlled(p, kind);
    fprintf(out, "%s,%s,%" PRId64 ",%" PRId64, kind == GRAFT_NONE ? "none" : graft_name(kind),
            text < 0 ? "all" : p->names[text], nll.windows, nll.tokens);
    put_paired(out, nll);
    put_paired(out, kind == GRAFT_NONE ? none : graft_difference(r, kind, GRAFT_NONE, text));
    put_paired(out, against ? graft_difference(r, kind, graft_control(kind), text) : none);
    fputc('\n', out);
}

static void put_all_nll(FILE *out, const graft_results *r)
{
    const graft_plan *p = r->plan;
    fputs("moves,text,windows,tokens,nll,nll_se,minus_start,minus_start_se,minus_control,minus_control_se\n",
          out);
    for (int i = -1; i < GRAFT_KINDS; i++) {
        const int kind = i < 0 ? GRAFT_NONE : i;
        if (i >= 0 && !p->choice.kinds[i]) continue;
        for (int text = p->text_count > 1 ? -1 : 0; text < p->text_count; text++)
            if (text < 0 || p->windows_of[text] > 0) put_nll(out, r, kind, text);
    }
}

static void put_heads(FILE *out, const graft_results *r)
{
    const lm_config *c = r->plan->config;
    fputs("moves,seed,layer,head,ridge,temperature\n", out);
    for (int64_t run = 1; run < graft_runs(r->plan); run++) {
        const int kind = graft_run_kind(run);
        const graft_result of = graft_result_of(r, run);
        if (!graft_run_chosen(r->plan, run)) continue;
        if (!graft_has_ridges(kind) && !graft_has_temperatures(kind)) continue;
        for (int64_t i = 0; i < c->layers * c->heads_q; i++) {
            fprintf(out, "%s,%" PRId64 ",%" PRId64 ",%" PRId64, graft_name(kind),
                    r->plan->choice.seeds.items[graft_run_seed(run)], i / c->heads_q, i % c->heads_q);
            put_number(out, of.ridge[i]), put_number(out, of.temperature[i]);
            fputc('\n', out);
        }
    }
}

static void put_probes(FILE *out, const graft_results *r)
{
    fputs("seed,layer,negative\n", out);
    for (int seed = 0; seed < r->plan->choice.seeds.count; seed++)
        for (int64_t layer = 0; layer < r->plan->config->layers; layer++)
            fprintf(out, "%" PRId64 ",%" PRId64 ",%.6g\n", r->plan->choice.seeds.items[seed], layer,
                    graft_result_of(r, graft_run_of(r->plan, GRAFT_PARALLAX, seed)).negative[layer]);
}

static void put_curves(FILE *out, const graft_results *r)
{
    fputs("moves,seed,step,train,held_out,gradient\n", out);
    for (int64_t run = 1; run < graft_runs(r->plan); run++)
        for (int64_t i = 0; i < r->tests && graft_run_chosen(r->plan, run); i++) {
            const double *at = graft_result_of(r, run).curve + i * GRAFT_CURVE;
            fprintf(out, "%s,%" PRId64 ",%.0f,%.9g,%.9g,%.9g\n", graft_name(graft_run_kind(run)),
                    r->plan->choice.seeds.items[graft_run_seed(run)], at[GRAFT_STEP], at[GRAFT_TRAIN],
                    at[GRAFT_TEST], at[GRAFT_LENGTH]);
        }
}

static void put_times(FILE *out, const graft_results *r)
{
    fputs("moves,seed,parameters,seconds_per_step\n", out);
    for (int64_t run = 1; run < graft_runs(r->plan); run++)
        if (graft_run_chosen(r->plan, run))
            fprintf(out, "%s,%" PRId64 ",%.0f,%.4g\n", graft_name(graft_run_kind(run)),
                    r->plan->choice.seeds.items[graft_run_seed(run)], *graft_result_of(r, run).moved,
                    *graft_result_of(r, run).seconds);
}

static int write_tables(const graft_results *r, const char *directory, io_error *error)
{
    static const struct {
        const char *name;
        void (*put)(FILE *out, const graft_results *r);
    } tables[] = { { "nll.csv", put_all_nll },
                   { "heads.csv", put_heads },
                   { "probe.csv", put_probes },
                   { "curves.csv", put_curves },
                   { "times.csv", put_times } };
    const bool *chosen = r->plan->choice.kinds;
    int status = 0;
    for (size_t i = 0; i < sizeof tables / sizeof *tables && !status; i++) {
        char path[EXPERIMENT_PATH];
        out_file *file;
        if (tables[i].put == put_heads && !graft_has_heads(r->plan)) continue;
        if (tables[i].put == put_probes && !chosen[GRAFT_PARALLAX]) continue;
        snprintf(path, sizeof path, "%s/%s", directory, tables[i].name);
        status = out_open(&file, path, error);
        if (!status) tables[i].put(out_stream(file), r);
        if (!status) status = out_commit(file, error);
    }
    return status;
}

/* ---- the table */

static int print_table(const graft_results *r, const claim *claims, int count, io_error *error)
{
    out_file *file;
    char text[64];
    const int status = out_open(&file, "-", error);
    if (status) return status;
    FILE *out = out_stream(file);
    fprintf(out, "\n%-14s %10s  %s\n", "what moves", "NLL", "minus the model as it is; minus the control");
    for (int i = -1; i < GRAFT_KINDS; i++) {
        const int kind = i < 0 ? GRAFT_NONE : i;
        if (i >= 0 && !r->plan->choice.kinds[i]) continue;
        fprintf(out, "%-14s %10.5f", i < 0 ? "none" : graft_name(i), graft_difference(r, kind, -1, -1).mean);
        if (i >= 0) fprintf(out, "  %s", paired_text(graft_difference(r, kind, GRAFT_NONE, -1), text));
        if (i >= 0 && graft_is_controlled(r->plan, i))
            fprintf(out, "; %s", paired_text(graft_difference(r, i, graft_control(i), -1), text));
        fputc('\n', out);
    }
    for (int i = 0; i < count; i++)
        fprintf(out, "\n%s\n  %s: %s\n", claims[i].text, verdict_names[claims[i].verdict], claims[i].numbers);
    return out_commit(file, error);
}

int graft_report_write(const graft_report *r, const char *directory, io_error *error)
{
    claim claims[GRAFT_CLAIMS];
    char path[EXPERIMENT_PATH];
    const int count = graft_judge(r->results, claims);
    int status = write_tables(r->results, directory, error);
    if (!status && r->drawn) status = graft_draw(r->results, directory, error);
    snprintf(path, sizeof path, "%s/index.html", directory);
    if (!status) status = graft_page_write(r, claims, count, path, error);
    return status ? status : print_table(r->results, claims, count, error);
}
