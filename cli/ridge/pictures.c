/* SPDX-License-Identifier: MIT */
#include "cli/ridge/pictures.h"

#include "cli/experiment/options.h"
#include "cli/plot.h"

#include <inttypes.h>
#include <math.h>

enum { WIDTH = 480, HEIGHT = 480 };

/* Changes go from a millionth to several nats and have both signs: y is asinh(change / this). */
static const double middle = 0.002;

static void write_frame(FILE *out, const ridge_plan *p, const char *title, const char *x)
{
    fprintf(out,
            "set lmargin at screen 0.22\nset rmargin at screen 0.95\nset tmargin at screen 0.92\n"
            "set bmargin at screen 0.32\n"
            "set key at screen 0.57,0.2 center top vertical maxrows 3 Left reverse samplen 2 width 1\n"
            "set title \"{/:Bold %s}\" offset 0,-0.5\nset xlabel '%s' offset 0,0.5\n"
            "set label \"change of %s from softmax\" at screen 0.03,0.6 center rotate\n",
            title, x, ridge_measure(p));
}

static void write_series(FILE *out, const ridge_results *r, arm_kind kind, loam_ridge_unit unit)
{
    bool any = false;
    fprintf(out, "$s%d%d << EOD\n", (int)kind, (int)unit);
    for (int i = 0; i < r->plan->curve_count; i++) {
        const ridge_arm *a = &r->plan->arms[i];
        if (a->kind != kind || a->unit != unit) continue;
        const paired x = ridge_difference(r, i, 0, -1);
        const double half = isnan(x.error) ? 0 : 2 * x.error;
        fprintf(out, "%g %.6g %.6g %.6g\n", a->ridge, asinh(x.mean / middle), asinh((x.mean - half) / middle),
                asinh((x.mean + half) / middle));
        any = true;
    }
    fprintf(out, "%sEOD\n", any ? "" : "nan nan nan nan\n");
}

static void write_tics(FILE *out)
{
    static const double tics[] = { -1, -0.1, -0.01, -0.001, 0, 0.001, 0.01, 0.1, 1, 10 };
    fputs("set ytics (", out);
    for (size_t i = 0; i < sizeof tics / sizeof *tics; i++)
        fprintf(out, "%s'%g' %.6g", i ? "," : "", tics[i], asinh(tics[i] / middle));
    fputs(")\n", out);
}

static int draw_curve(const ridge_results *r, const char *path, io_error *error)
{
    plot *p;
    const int status = plot_open(&p, path, WIDTH, HEIGHT, error);
    if (status) return status;
    FILE *out = plot_script(p);
    write_frame(out, r->plan, "LLA in all layers, no training", "ridge");
    fputs("set logscale x\nset format x '10^{%T}'\nset xzeroaxis lt 1 lc rgb '#5A5A5A' lw 1\n", out);
    write_tics(out);
    write_series(out, r, ARM_LLA, LOAM_RIDGE_NORMALISED);
    write_series(out, r, ARM_CONTROL, LOAM_RIDGE_NORMALISED);
    write_series(out, r, ARM_LLA, LOAM_RIDGE_TRACE);
    const bool trace = r->plan->choice.trace.count > 0;
    fprintf(out,
            "plot $s%d%d using 1:2:3:4 with yerrorlines lt 1 pt 7 ps 0.5 title 'LLA', "
            "$s%d%d using 1:2:3:4 with yerrorlines lt 2 pt 5 ps 0.5 title 'sharper softmax'",
            (int)ARM_LLA, (int)LOAM_RIDGE_NORMALISED, (int)ARM_CONTROL, (int)LOAM_RIDGE_NORMALISED);
    if (trace)
        fprintf(out,
                ", $s%d%d using 1:2:3:4 with yerrorlines lt 1 dt 2 pt 6 ps 0.5 "
                "title 'LLA, in units of the trace'",
                (int)ARM_LLA, (int)LOAM_RIDGE_TRACE);
    fputc('\n', out);
    return plot_close(p, error);
}

static int draw_layers(const ridge_results *r, const char *path, io_error *error)
{
    const ridge_list *ridges = &r->plan->choice.parts;
    plot *p;
    const int status = plot_open(&p, path, WIDTH, HEIGHT, error);
    if (status) return status;
    FILE *out = plot_script(p);
    write_frame(out, r->plan, "LLA in one layer", "layer");
    fprintf(out, "set xrange [-1:%" PRId64 "]\nset xtics %d\nset xzeroaxis lt 1 lc rgb '#5A5A5A' lw 1\n",
            r->plan->layers, r->plan->layers > 10 ? 5 : 1);
    for (int i = 0; i < ridges->count; i++) {
        fprintf(out, "$s%d << EOD\n", i);
        for (int64_t layer = 0; layer < r->plan->layers; layer++) {
            const paired x = ridge_difference(
                r, ridge_find(r->plan, ARM_LAYER, ridges->items[i], LOAM_RIDGE_NORMALISED, layer, -1), 0, -1);
            const double half = isnan(x.error) ? 0 : 2 * x.error;
            fprintf(out, "%g %.6g %.6g %.6g\n", (double)layer + 0.2 * i, x.mean, x.mean - half,
                    x.mean + half);
        }
        fputs("EOD\n", out);
    }
    for (int i = 0; i < ridges->count; i++)
        fprintf(out, "%s$s%d using 1:2:3:4 with yerrorbars lt %d pt %d ps 0.5 title 'ridge %g'",
                i ? ", " : "plot ", i, i % 8 + 1, 5 + 2 * (i % 4), ridges->items[i]);
    fputc('\n', out);
    return plot_close(p, error);
}

/* White is no change; heads within two standard errors of it are marked by a dot. */
static int draw_heads(const ridge_results *r, double ridge, const char *path, io_error *error)
{
    const ridge_plan *of = r->plan;
    double most = 0;
    plot *p;
    const int status = plot_open(&p, path, WIDTH, HEIGHT + 120, error);
    if (status) return status;
    FILE *out = plot_script(p);
    fputs("$h << EOD\n", out);
    for (int64_t layer = 0; layer < of->layers; layer++)
        for (int64_t head = 0; head < of->heads; head++) {
            const paired x = ridge_difference(
                r, ridge_find(of, ARM_HEAD, ridge, LOAM_RIDGE_NORMALISED, layer, head), 0, -1);
            most = fmax(most, fabs(x.mean));
            fprintf(out, "%" PRId64 " %" PRId64 " %.6g %s\n", head, layer, x.mean,
                    fabs(x.mean) < 2 * x.error ? "0" : "nan");
        }
    fprintf(out,
            "EOD\nset title \"{/:Bold %s by one head, ridge %g}\" offset 0,-0.3\n"
            "set xlabel 'head' offset 0,0.5\n"
            "set label 'layer' at screen 0.04,0.56 center rotate\nset style fill solid noborder\n"
            "set xrange [-0.5:%g]\nset yrange [-0.5:%g]\nunset grid\nset xtics 1\n"
            "set palette defined (-1 '#0072B2', 0 '#FFFFFF', 1 '#D55E00')\nset cbrange [%.6g:%.6g]\n"
            "set colorbox horizontal user origin screen 0.19,0.08 size screen 0.76,0.025\n"
            "set lmargin at screen 0.16\nset rmargin at screen 0.96\nset bmargin at screen 0.24\n"
            "set format cb '%%g'\nset cbtics %.1g\n"
            "plot $h using 1:2:3 with image pixels notitle, "
            "$h using 1:($4+$2) with points lt 8 pt 7 ps 0.2 notitle\n",
            ridge_measure(of), ridge, (double)of->heads - 0.5, (double)of->layers - 0.5,
            most > 0 ? -most : -1, most > 0 ? most : 1, most > 0 ? most / 2 : 0.5);
    return plot_close(p, error);
}

int ridge_draw(const ridge_results *r, const char *directory, io_error *error)
{
    const ridge_choice *choice = &r->plan->choice;
    char path[EXPERIMENT_PATH];
    snprintf(path, sizeof path, "%s/curve.svg", directory);
    int status = draw_curve(r, path, error);
    snprintf(path, sizeof path, "%s/layers.svg", directory);
    if (!status && choice->layers) status = draw_layers(r, path, error);
    for (int i = 0; !status && choice->heads && i < choice->parts.count; i++) {
        snprintf(path, sizeof path, "%s/heads-%g.svg", directory, choice->parts.items[i]);
        status = draw_heads(r, choice->parts.items[i], path, error);
    }
    return status;
}
