/* SPDX-License-Identifier: MIT */
#include "cli/experiment/rates_report.h"

#include "cli/plot.h"
#include "io/out_file.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { WIDTH = 480, HEIGHT = 480 };

const double rates_allowance = 0.05;

static const char *const region_names[RATES_REGIONS] = { "whole", "interior" };
static const char *const long_names[RATES_ESTIMATORS] = { "global line", "NW", "LL" };

/* Line and point types of cli/plot.h: what fits alike has one colour in all pictures. */
static const int colours[RATES_ESTIMATORS] = { 5, 2, 1 };
static const int marks[RATES_ESTIMATORS] = { 6, 5, 7 };

static const char *choice_of(int line)
{
    return rates_lines[line].estimator == RATES_GLOBAL ? "none"
           : rates_lines[line].validated               ? "validated"
                                                       : "best";
}

static const rates_task *task_of(const rates_sweep *s) { return &s->cells[0].task; }

/* ---- what the slopes say */

const char *rates_judgement(double slope, double theory)
{
    return slope < theory - rates_allowance   ? "steeper"
           : slope > theory + rates_allowance ? "flatter"
                                              : "agrees";
}

static double theory_of(const rates_sweep *s, int line, rates_region region)
{
    return rates_theory(task_of(s), rates_lines[line].estimator, region);
}

static const char *judgement_of(const rates_sweep *s, int line, rates_region region)
{
    return rates_judgement(rates_slope_of(s, line, region).value, theory_of(s, line, region));
}

static bool is(const rates_sweep *s, int line, const char *judgement)
{
    return strcmp(judgement_of(s, line, RATES_WHOLE), judgement) == 0;
}

rates_verdict rates_judge(const rates_sweep *s)
{
    const rates_value lead = rates_lead_of(s);
    return (rates_verdict){ .global_flat = is(s, RATES_GLOBAL, "agrees"),
                            .constant_falls = !is(s, RATES_CONSTANT, "flatter"),
                            .constant_bound = is(s, RATES_CONSTANT, "agrees"),
                            .linear_falls = !is(s, RATES_LINEAR, "flatter"),
                            .linear_leads = lead.value < -2 * lead.deviation };
}

/* ---- CSV */

static int write_points(const rates_sweep *sweeps, int count, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fputs("d,n,estimator,choice,region,repetitions,mse,se,bandwidth\n", out);
    for (const rates_sweep *s = sweeps; s < sweeps + count; s++)
        for (int i = 0; i < s->cell_count; i++)
            for (int line = 0; line < rates_line_count(s); line++)
                for (int r = 0; r < RATES_REGIONS; r++) {
                    const rates_value at = rates_error_of(s, i, line, (rates_region)r);
                    fprintf(out, "%" PRId64 ",%" PRId64 ",%s,%s,%s,%" PRId64 ",%.9g,%.9g,", task_of(s)->dim,
                            s->cells[i].task.pairs, rates_estimator_names[rates_lines[line].estimator],
                            choice_of(line), region_names[r], s->repetitions, at.value, at.deviation);
                    const double bandwidth = s->cells[i].bandwidth[line][r];
                    if (!isnan(bandwidth)) fprintf(out, "%.9g", bandwidth);
                    fputc('\n', out);
                }
    return out_commit(file, error);
}

static int write_slopes(const rates_sweep *sweeps, int count, const char *path, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, path, error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fputs("d,estimator,choice,region,repetitions,slope,se,theory,verdict\n", out);
    for (const rates_sweep *s = sweeps; s < sweeps + count; s++)
        for (int line = 0; line < rates_line_count(s); line++)
            for (int r = 0; r < RATES_REGIONS; r++) {
                const rates_value slope = rates_slope_of(s, line, (rates_region)r);
                fprintf(out, "%" PRId64 ",%s,%s,%s,%" PRId64 ",%.6f,%.6f,%.6f,%s\n", task_of(s)->dim,
                        rates_estimator_names[rates_lines[line].estimator], choice_of(line), region_names[r],
                        s->repetitions, slope.value, slope.deviation, theory_of(s, line, (rates_region)r),
                        judgement_of(s, line, (rates_region)r));
            }
    return out_commit(file, error);
}

/* ---- the table */

static void write_row(FILE *out, const rates_sweep *s, int line)
{
    fprintf(out, "%4" PRId64 "  %-11s  %-9s", task_of(s)->dim, long_names[rates_lines[line].estimator],
            choice_of(line));
    for (int r = 0; r < RATES_REGIONS; r++) {
        const rates_value slope = rates_slope_of(s, line, (rates_region)r);
        fprintf(out, "  %7.3f ± %-6.3f %7.3f  %-7s", slope.value, slope.deviation,
                theory_of(s, line, (rates_region)r), judgement_of(s, line, (rates_region)r));
    }
    fputc('\n', out);
}

/* The upper bounds, then the bound from below of NW, which small n may not have come to. */
static void write_propositions(FILE *out, const rates_sweep *s)
{
    const rates_verdict v = rates_judge(s);
    const double constant = theory_of(s, RATES_CONSTANT, RATES_WHOLE);
    const double linear = theory_of(s, RATES_LINEAR, RATES_WHOLE);
    fprintf(out,
            "  2.1 %s: the global line %s, NW falls %s n^%.2f.\n"
            "  2.2 %s: LL falls %s n^%.2f, %s than NW; NW %s.\n",
            v.global_flat && v.constant_falls ? "holds" : "does not show",
            v.global_flat ? "does not fall" : "does not stay",
            v.constant_falls ? "at least as" : "slower than", constant,
            !v.linear_falls || !v.linear_leads ? "does not show"
            : v.constant_bound                 ? "holds"
                                               : "holds but for its bound from below",
            v.linear_falls ? "at least as" : "slower than", linear, v.linear_leads ? "faster" : "not faster",
            v.constant_bound   ? "has the slope of its bound"
            : v.constant_falls ? "is still steeper than its bound at these n"
                               : "is flatter than its bound");
}

static void write_verdict(FILE *out, const rates_sweep *s)
{
    const rates_value lead = rates_lead_of(s);
    fprintf(out,
            "Verdict, d = %" PRId64 ", n = %" PRId64 " .. %" PRId64
            ": LL's error over NW's falls as n^%.3f ± %.3f.\n",
            task_of(s)->dim, s->cells[0].task.pairs, s->cells[s->cell_count - 1].task.pairs, lead.value,
            lead.deviation);
    if (task_of(s)->setting != RATES_ORDERED) write_propositions(out, s);
    fprintf(out, "  A ridge 100 times smaller changes LL's errors by at most %.1g of themselves.\n",
            s->ridge_effect);
}

static int write_table(const rates_sweep *sweeps, int count, io_error *error)
{
    out_file *file;
    const int status = out_open(&file, "-", error);
    if (status != EXIT_OK) return status;
    FILE *out = out_stream(file);
    fprintf(
        out,
        "\nSlopes of log error on log n (value ± standard error, theory, verdict)\n%4s  %-11s  %-9s  %-34s  "
        "%s\n",
        "d", "", "bandwidth", "over all of D", "in its interior");
    for (const rates_sweep *s = sweeps; s < sweeps + count; s++)
        for (int line = 0; line < rates_line_count(s); line++)
            write_row(out, s, line);
    fputc('\n', out);
    for (const rates_sweep *s = sweeps; s < sweeps + count; s++)
        write_verdict(out, s);
    return out_commit(file, error);
}

/* ---- pictures */

static void write_curves(FILE *out, const rates_sweep *s, rates_region region)
{
    for (int line = 0; line < rates_line_count(s); line++) {
        fprintf(out, "$line%d << EOD\n", line);
        for (int i = 0; i < s->cell_count; i++) {
            const rates_value at = rates_error_of(s, i, line, region);
            fprintf(out, "%" PRId64 " %.6g %.6g %.6g\n", s->cells[i].task.pairs, at.value,
                    fmax(at.value - 2 * at.deviation, 0.1 * at.value), at.value + 2 * at.deviation);
        }
        fputs("EOD\n", out);
    }
}

/* Through the middle of the points, in logarithms. */
static void write_theory(FILE *out, const rates_sweep *s, rates_region region)
{
    for (int line = 1; line < RATES_ORACLES; line++) {
        double offset = 0;
        const double theory = theory_of(s, line, region);
        for (int i = 0; i < s->cell_count; i++)
            offset += (log(rates_error_of(s, i, line, region).value) -
                       theory * log((double)s->cells[i].task.pairs)) /
                      s->cell_count;
        fprintf(out, "theory%d(x) = exp(%.9g + %.9g * log(x))\n", line, offset, theory);
    }
}

/* Six at most. */
static void write_tics(FILE *out, const rates_sweep *s)
{
    fputs("set xtics (", out);
    for (int i = 0; i < s->cell_count; i += (s->cell_count + 5) / 6)
        fprintf(out, "%s%" PRId64, i ? "," : "", s->cells[i].task.pairs);
    fputs(")\n", out);
}

static void draw(FILE *out, const rates_sweep *s, rates_region region)
{
    const int64_t first = s->cells[0].task.pairs, last = s->cells[s->cell_count - 1].task.pairs;
    fprintf(
        out,
        "set lmargin at screen 0.18\nset rmargin at screen 0.96\nset tmargin at screen 0.925\n"
        "set bmargin at screen 0.33\n"
        "set key at screen 0.55,0.22 center top vertical maxrows 4 Left reverse samplen 2.4 width 2\n"
        "set title \"{/:Bold d = %" PRId64 ", %s}\" offset 0,-0.5\n"
        "set label \"mean squared distance from f\" at screen 0.03,0.64 center rotate\n"
        "set xlabel 'pairs, n' offset 0,0.6\nset logscale xy\nset xrange [%g:%g]\nset format y '10^{%%T}'\n",
        task_of(s)->dim, region == RATES_WHOLE ? "all of D" : "interior", 0.8 * (double)first,
        1.25 * (double)last);
    write_tics(out, s);
    write_curves(out, s, region);
    write_theory(out, s, region);
    fputs("plot ", out);
    for (int line = 1; line < RATES_ORACLES; line++)
        fprintf(out, "theory%d(x) with lines lt %d lw 1 dt 2 title 'n^{%.2f}', ", line,
                colours[rates_lines[line].estimator], theory_of(s, line, region));
    for (int line = 0; line < rates_line_count(s); line++) {
        const rates_estimator e = rates_lines[line].estimator;
        fprintf(out,
                "$line%d using 1:2:3:4 with yerrorbars lt %d pt %d ps 0.1 notitle, $line%d using 1:2 with "
                "linespoints lt %d lw 1.6 pt %d ps 0.9 title '%s%s'%s",
                line, colours[e], marks[e], line, colours[e],
                rates_lines[line].validated ? marks[e] - 1 : marks[e], long_names[e],
                rates_lines[line].validated ? ", validated" : "",
                line + 1 < rates_line_count(s) ? ", " : "\n");
    }
}

static int write_picture(const rates_sweep *s, rates_region region, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    plot *p;
    snprintf(path, sizeof path, "%s/rates-d%" PRId64 "-%s.svg", directory, task_of(s)->dim,
             region_names[region]);
    const int status = plot_open(&p, path, WIDTH, HEIGHT, error);
    if (status != EXIT_OK) return status;
    draw(plot_script(p), s, region);
    return plot_close(p, error);
}

int rates_report(const rates_sweep *sweeps, int count, const char *directory, io_error *error)
{
    char path[EXPERIMENT_PATH];
    snprintf(path, sizeof path, "%s/rates.csv", directory);
    int status = write_points(sweeps, count, path, error);
    snprintf(path, sizeof path, "%s/summary.csv", directory);
    if (status == EXIT_OK) status = write_slopes(sweeps, count, path, error);
    for (int i = 0; i < count; i++)
        for (int r = 0; r < RATES_REGIONS && status == EXIT_OK; r++)
            status = write_picture(&sweeps[i], (rates_region)r, directory, error);
    return status == EXIT_OK ? write_table(sweeps, count, error) : status;
}
