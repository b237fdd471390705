/* SPDX-License-Identifier: MIT */
#include "cli/experiment/report.h"

#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>

static void name_cell(const sweep_cell *cell, char name[64])
{
    snprintf(name, 64, "%" PRId64 ",%" PRId64 ",%s", cell->task.dim, cell->task.segment,
             cell->hidden ? "hidden" : "visible");
}

void report_curves(FILE *out, const char *cell, const moments *m)
{
    const double reach = moments_reach(m->sequences);
    for (int e = 0; e < ESTIMATORS; e++)
        for (int64_t i = 0; i < m->length; i++) {
            const mean_error at = moments_position(m, (estimator)e, i);
            const double half = reach * at.error;
            fprintf(out, "%s,%s,%" PRId64 ",%.9g,%.9g,%.9g,%.9g\n", cell, estimator_names[e], i + 1, at.mean,
                    at.error, fmax(0, at.mean - half), at.mean + half);
        }
}

int report_positions(const sweep *s, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fputs("d,segment,own,estimator,position,mse,se,low95,high95\n", out_stream(file));
    for (int64_t i = 0; i < s->cell_count; i++) {
        char name[64];
        name_cell(&s->cells[i], name);
        report_curves(out_stream(file), name, &s->cells[i].sums);
    }
    return out_commit(file, error);
}

static void write_summary(FILE *out, const sweep_cell *cell, int e)
{
    const moments *m = &cell->sums;
    const int64_t segment = cell->task.segment, length = cell->task.length;
    const mean_error total = moments_total(m, (estimator)e);
    const mean_error ratio = moments_ratio(m, (estimator)e, ESTIMATOR_LLA);
    char name[64];
    name_cell(cell, name);
    fprintf(out, "%s,%s,%" PRId64 ",%.9g,%.9g,%.9g,", name, estimator_names[e], m->sequences, total.mean,
            total.error, moments_range(m, (estimator)e, 0, segment));
    if (segment < length) fprintf(out, "%.9g", moments_range(m, (estimator)e, segment, length));
    fprintf(out, ",%.9g,%.9g\n", ratio.mean, ratio.error);
}

int report_summary(const sweep *s, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    fputs("d,segment,own,estimator,sequences,mse,se,mse_first,mse_later,ratio_to_lla,ratio_se\n",
          out_stream(file));
    for (int64_t i = 0; i < s->cell_count; i++)
        for (int e = 0; e < ESTIMATORS; e++)
            write_summary(out_stream(file), &s->cells[i], e);
    return out_commit(file, error);
}

/* "47.3 ± 0.6" in 16 columns; the sign takes two bytes. */
static void write_value(FILE *out, mean_error value)
{
    char text[64];
    snprintf(text, sizeof text, "%.3g ± %.1g", value.mean, value.error);
    fprintf(out, "  %17s", text);
}

static void write_row(FILE *out, const sweep_cell *cell)
{
    const moments *m = &cell->sums;
    fprintf(out, "%4" PRId64 " %5" PRId64, cell->task.dim, cell->task.segment);
    for (int e = 0; e < ESTIMATORS; e++)
        if (e >= ESTIMATOR_LINEAR)
            fprintf(out, " %9.3g", moments_total(m, (estimator)e).mean);
        else
            write_value(out, moments_total(m, (estimator)e));
    write_value(out, moments_ratio(m, ESTIMATOR_SOFTMAX, ESTIMATOR_LLA));
    write_value(out, moments_ratio(m, ESTIMATOR_MESA, ESTIMATOR_LLA));
    fputc('\n', out);
}

static void write_heading(FILE *out, const sweep *s, const sweep_cell *cell)
{
    fprintf(out,
            "\nMean squared error, the query's own pair %s; %" PRId64 " sequences of %" PRId64
            " (value ± standard error)\n",
            cell->hidden ? "hidden" : "visible", s->sequences, cell->task.length);
    fprintf(out, "%4s %5s  %16s  %16s  %16s %9s %9s %9s %9s %9s  %16s  %16s\n", "d", "S", "LLA", "softmax",
            "MesaNet", "linear", "delta", "gated", "KDA", "random", "softmax / LLA", "MesaNet / LLA");
}

int report_table(const sweep *s, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, "-", error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    for (int64_t i = 0; i < s->cell_count; i++) {
        if (i == 0 || s->cells[i].hidden != s->cells[i - 1].hidden) write_heading(out, s, &s->cells[i]);
        write_row(out, &s->cells[i]);
    }
    return out_commit(file, error);
}
