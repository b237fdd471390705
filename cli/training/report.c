/* SPDX-License-Identifier: MIT */
#include "cli/training/report.h"

#include "io/out_file.h"

#include <inttypes.h>

static const char *score_name(const plan *p) { return results_are_errors(p) ? "error" : "accuracy"; }
static const char *size_name(const plan *p) { return p->task == TRAIN_REGRESSION ? "S" : "N"; }

/* ---- runs.csv */

/* Of LLA; others leave nothing there. */
static void write_solvers(FILE *out, const train_record *at)
{
    double rows = 0;
    for (int i = 0; i < TRAIN_SOLVERS; i++)
        rows += at->solved[i];
    for (int i = 0; i < TRAIN_SOLVERS; i++)
        if (rows > 0)
            fprintf(out, ",%.6g", at->solved[i]);
        else
            fputc(',', out);
    if (rows > 0)
        fprintf(out, ",%.6g\n", at->iterations);
    else
        fputs(",\n", out);
}

static void write_run(FILE *out, const results *r, int64_t number)
{
    const plan *p = r->plan;
    const plan_run run = plan_run_at(p, number);
    const plan_cell *cell = &p->cells[run.cell];
    for (int64_t test = 0; test < r->counts[number]; test++)
        for (int part = 0; part < plan_parts(p, cell); part++) {
            const train_record *at = results_record(r, number, test);
            fprintf(out, "%s,%s,%" PRId64 ",%" PRId64 ",%g,%" PRIu64 ",%.0f,%.9g,%.9g,%.9g,%.9g,%.6g",
                    p->name, p->mechanisms[run.mechanism].row->name, cell->length, plan_size(p, cell, part),
                    p->rates[run.rate], p->seeds[run.seed], at->step, at->train_loss, at->test_loss,
                    at->part[part], at->error[part], at->gradient);
            write_solvers(out, at);
        }
}

int training_report_runs(const results *r, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fprintf(out, "experiment,mechanism,L,%s,rate,seed,step,train_loss,test_loss,%s,se,gradient_norm",
            size_name(r->plan), score_name(r->plan));
    for (int i = 0; i < TRAIN_SOLVERS; i++)
        fprintf(out, ",%s", loam_solver_name((loam_solver)i));
    fputs(",iterations\n", out);
    for (int64_t run = 0; run < plan_runs(r->plan); run++)
        write_run(out, r, run);
    return out_commit(file, error);
}

/* ---- best.csv */

static void write_best(FILE *out, const results *r, int mechanism, int cell)
{
    const plan *p = r->plan;
    const int64_t best = results_best_test(r, mechanism, cell);
    double best_step, step;
    const double best_score = results_at(r, mechanism, cell, best, &best_step);
    results_at(r, mechanism, cell, r->most, &step);
    for (int part = 0; part < plan_parts(p, &p->cells[cell]); part++) {
        const result_value at = results_part(r, mechanism, cell, part);
        fprintf(out, "%s,%s,%" PRId64 ",%" PRId64 ",%g,%d,%.0f,%.9g,%.9g,%s,%.0f,%.9g\n", p->name,
                p->mechanisms[mechanism].row->name, p->cells[cell].length,
                plan_size(p, &p->cells[cell], part), p->rates[results_rate(r, mechanism, cell)],
                p->seed_count, step, at.mean, at.error,
                results_on_plateau(r, mechanism, cell, part) ? "yes" : "no", best_step, best_score);
    }
}

int training_report_best(const results *r, const char *path, io_error *error)
{
    const plan *p = r->plan;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fprintf(out_stream(file),
            "experiment,mechanism,L,%s,rate,seeds,steps,%s,se,on_plateau,best_step,best_%s\n", size_name(p),
            score_name(p), score_name(p));
    for (int mechanism = 0; mechanism < p->mechanism_count; mechanism++)
        for (int cell = 0; cell < p->cell_count; cell++)
            write_best(out_stream(file), r, mechanism, cell);
    return out_commit(file, error);
}

/* ---- times.csv */

int training_report_times(const results *r, const char *path, io_error *error)
{
    const plan *p = r->plan;
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fputs("experiment,mechanism,L,cell,rate,seed,step,ns_per_token\n", out_stream(file));
    for (int64_t number = 0; number < plan_runs(p); number++) {
        const plan_run run = plan_run_at(p, number);
        for (int64_t test = 0; test < r->counts[number]; test++)
            fprintf(out_stream(file), "%s,%s,%" PRId64 ",%d,%g,%" PRIu64 ",%.0f,%.1f\n", p->name,
                    p->mechanisms[run.mechanism].row->name, p->cells[run.cell].length, run.cell,
                    p->rates[run.rate], p->seeds[run.seed], results_record(r, number, test)->step,
                    r->times[number * r->most + test]);
    }
    return out_commit(file, error);
}

/* ---- the table */

static void write_cell(FILE *out, const results *r, int cell, int part)
{
    const plan *p = r->plan;
    fprintf(out, "%5" PRId64 " %4" PRId64, p->cells[cell].length, plan_size(p, &p->cells[cell], part));
    for (int mechanism = 0; mechanism < p->mechanism_count; mechanism++) {
        const result_value at = results_part(r, mechanism, cell, part);
        char text[64];
        snprintf(text, sizeof text, "%.3f ± %.3f", at.mean, at.error);
        fprintf(out, "  %14s", text);
    }
    fputc('\n', out);
}

void report_claims(FILE *out, const claim *claims, int count)
{
    fputc('\n', out);
    for (int i = 0; i < count; i++)
        fprintf(out, "%-11s  %s: %s\n             %s\n", verdict_names[claims[i].verdict], claims[i].source,
                claims[i].text, claims[i].numbers);
}

int training_report_table(const results *r, const claim *claims, int count, io_error *error)
{
    const plan *p = r->plan;
    out_file *file;
    const int status = out_open(&file, "-", error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fprintf(out, "%s at the best learning rate (± standard error over %s)\n%5s %4s",
            results_are_errors(p) ? "Mean squared error" : "Accuracy",
            p->seed_count > 1 ? "seeds" : "test examples", "L", size_name(p));
    for (int mechanism = 0; mechanism < p->mechanism_count; mechanism++)
        fprintf(out, "  %13s", p->mechanisms[mechanism].row->name);
    fputc('\n', out);
    for (int cell = 0; cell < p->cell_count; cell++)
        for (int part = 0; part < plan_parts(p, &p->cells[cell]); part++)
            write_cell(out, r, cell, part);
    report_claims(out, claims, count);
    return out_commit(file, error);
}
