/* SPDX-License-Identifier: MIT */
#include "cli/training/pictures.h"

#include "cli/plot.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_PATH = 2048, WIDTH = 480, HEIGHT = 540 };

/* Line, point and dash types of cli/plot.h: what fits alike has one colour in all pictures. */
static const struct {
    const char *name, *title;
    int colour, mark, dash;
} looks[] = {
    { "lla", "LLA", 1, 7, 1 },           { "softmax", "softmax", 2, 5, 1 },
    { "parallax", "Parallax", 2, 4, 2 }, { "fox", "FoX", 2, 12, 3 },
    { "path", "PaTH", 2, 10, 4 },        { "mesa", "MesaNet", 3, 9, 1 },
    { "delta", "DeltaNet", 4, 13, 1 },   { "linear", "linear attention", 5, 6, 1 },
    { "gla", "GLA", 5, 8, 2 },           { "retention", "RetNet", 5, 14, 3 },
    { "mamba-2", "Mamba-2", 3, 11, 4 },  { "gated-delta", "Gated DeltaNet", 6, 13, 1 },
    { "kda", "KDA", 7, 8, 1 },           { "gated-delta-2", "Gated DeltaNet, beta to 2", 6, 12, 2 },
    { "hyena", "Hyena", 8, 2, 1 },
};
enum { LOOKS = sizeof looks / sizeof *looks };

static int look_of(const char *name)
{
    int i = 0;
    while (i < LOOKS - 1 && strcmp(looks[i].name, name) != 0)
        i++;
    return i;
}

const char *picture_mechanism(const char *name) { return looks[look_of(name)].title; }

/* ---- which there are */

/* Cells that one picture shows side by side: those of one length; of swaps all. */
static int group_of(const plan *p, int first)
{
    int end = first + 1;
    while (end < p->cell_count && (p->task == TRAIN_SWAPS || p->cells[end].length == p->cells[first].length))
        end++;
    return end - first;
}

static int points_of(const plan *p, int first, int count)
{
    int points = 0;
    for (int cell = first; cell < first + count; cell++)
        points += plan_parts(p, &p->cells[cell]);
    return points;
}

static picture sizes_picture(const plan *p, int first, int count)
{
    picture out = { .first = first, .count = count };
    if (p->task == TRAIN_SWAPS) {
        snprintf(out.name, sizeof out.name, "swaps.svg");
        snprintf(out.title, sizeof out.title, "Swaps");
    } else {
        snprintf(out.name, sizeof out.name, "%s-L%" PRId64 ".svg", p->name, p->cells[first].length);
        snprintf(out.title, sizeof out.title, "L = %" PRId64, p->cells[first].length);
    }
    return out;
}

/* Of a cell; of recall the mean over all its N. */
static picture curve_picture(const plan *p, int cell)
{
    const plan_cell *at = &p->cells[cell];
    picture out = { .first = cell, .count = 1, .curve = true };
    const char *size = p->task == TRAIN_REGRESSION ? "S" : "N";
    if (plan_parts(p, at) > 1) {
        snprintf(out.name, sizeof out.name, "steps-L%" PRId64 ".svg", at->length);
        snprintf(out.title, sizeof out.title, "L = %" PRId64, at->length);
    } else {
        snprintf(out.name, sizeof out.name, "steps-L%" PRId64 "-%s%" PRId64 ".svg", at->length, size,
                 plan_size(p, at, 0));
        snprintf(out.title, sizeof out.title, "L = %" PRId64 ", %s = %" PRId64, at->length, size,
                 plan_size(p, at, 0));
    }
    return out;
}

int pictures_list(const plan *p, picture *out)
{
    int pictures = 0;
    for (int first = 0; first < p->cell_count; first += group_of(p, first)) {
        const int count = group_of(p, first);
        if (points_of(p, first, count) > 1) out[pictures++] = sizes_picture(p, first, count);
    }
    for (int cell = 0; cell < p->cell_count; cell++)
        out[pictures++] = curve_picture(p, cell);
    return pictures;
}

/* ---- what they share */

static void write_frame(FILE *out, const plan *p, const picture *what)
{
    fputs("set lmargin at screen 0.18\nset rmargin at screen 0.96\nset tmargin at screen 0.925\n"
          "set bmargin at screen 0.40\n"
          "set key at screen 0.55,0.29 center top vertical maxrows 5 Left reverse samplen 2.4 width 1\n"
          "set xtics offset 0,0.3\n",
          out);
    fprintf(out,
            "set title \"{/:Bold %s}\" offset 0,-0.5\nset label \"%s\" at screen 0.03,0.66 center rotate\n",
            what->title, results_are_errors(p) ? "mean squared error" : "accuracy");
    if (results_are_errors(p))
        fputs("set logscale y\nset format y '%g'\nset autoscale yfixmin\nset yrange [*:1.5]\n"
              "set ytics (0.001,0.002,0.005,0.01,0.02,0.05,0.1,0.2,0.3,0.5,0.7,1)\n",
              out);
    else
        fputs("set yrange [0:1.02]\n", out);
}

static double place_of(const plan *p, int cell, int part)
{
    const double size = (double)plan_size(p, &p->cells[cell], part);
    return p->task == TRAIN_REGRESSION ? size / (double)p->cells[cell].length : size;
}

/* ---- against S or N */

static void write_points(FILE *out, const results *r, const picture *what, int mechanism)
{
    fprintf(out, "$m%d << EOD\n", mechanism);
    for (int cell = what->first; cell < what->first + what->count; cell++)
        for (int part = 0; part < plan_parts(r->plan, &r->plan->cells[cell]); part++) {
            const result_value at = results_part(r, mechanism, cell, part);
            /* A logarithm has nothing to show of 0. */
            if (results_are_errors(r->plan) && !(at.mean > 0)) continue;
            fprintf(out, "%.6g %.6g %.6g %.6g\n", place_of(r->plan, cell, part), at.mean,
                    fmax(at.mean - at.error, 0.1 * at.mean), at.mean + at.error);
        }
    fputs("EOD\n", out);
}

static void write_line(FILE *out, const results *r, const picture *what, const plan_lines *lines, int line)
{
    fprintf(out, "$l%d << EOD\n", line);
    for (int cell = what->first; cell < what->first + what->count; cell++)
        for (int part = 0; part < plan_parts(r->plan, &r->plan->cells[cell]); part++) {
            const regression_lines *at = &lines->regression[cell];
            const double fits[] = { at->softmax, at->lla, at->map, at->own };
            const double place = place_of(r->plan, cell, part);
            const double value = r->plan->task == TRAIN_REGRESSION ? fits[line]
                                 : r->plan->task == TRAIN_SWAPS    ? lines->swaps[cell][line]
                                                                   : 1 / place;
            /* Beyond what is trained nothing is to be seen of a line. */
            if (results_are_errors(r->plan) && value < 1e-3) continue;
            fprintf(out, "%.6g %.6g\n", place, value);
        }
    fputs("EOD\n", out);
}

typedef struct line_look {
    const char *title;
    int colour, dash;
} line_look;

/* The lines that a task has; returns how many. */
static int lines_of_task(train_task task, const line_look **looks_of_lines)
{
    static const line_look regression[] = {
        { "line: softmax", 2, 2 }, { "line: LLA", 1, 2 }, { "line: one map", 3, 2 }, { "line: Bayes", 8, 2 }
    };
    static const line_look swaps[] = { { "no swap followed", 8, 2 },
                                       { "one swap", 8, 3 },
                                       { "two swaps", 8, 4 } };
    static const line_look recall[] = { { "1/N", 8, 2 } };
    *looks_of_lines = task == TRAIN_REGRESSION ? regression : task == TRAIN_SWAPS ? swaps : recall;
    return task == TRAIN_REGRESSION ? 4 : task == TRAIN_SWAPS ? 3 : 1;
}

static void write_tics(FILE *out, const plan *p, const picture *what)
{
    const bool ratio = p->task == TRAIN_REGRESSION;
    const char *comma = "";
    double least = INFINITY, most = 0;
    fprintf(out, "set logscale x 2\nset xlabel '%s' offset 0,0.6\nset xtics (", ratio ? "S / L" : "N");
    for (int cell = what->first; cell < what->first + what->count; cell++)
        for (int part = 0; part < plan_parts(p, &p->cells[cell]); part++) {
            const double place = place_of(p, cell, part);
            if (ratio && place < 1)
                fprintf(out, "%s'1/%g' %g", comma, 1 / place, place);
            else
                fprintf(out, "%s%g", comma, place);
            comma = ",";
            least = fmin(least, place), most = fmax(most, place);
        }
    fprintf(out, ")\nset xrange [%g:%g]\n", 0.85 * least, 1.18 * most);
}

static void draw_sizes(FILE *out, const results *r, const plan_lines *lines, const picture *what)
{
    const plan *p = r->plan;
    const line_look *line_looks;
    const int count = lines_of_task(p->task, &line_looks);
    write_tics(out, p, what);
    for (int line = 0; line < count; line++)
        write_line(out, r, what, lines, line);
    for (int m = 0; m < p->mechanism_count; m++)
        write_points(out, r, what, m);
    fputs("plot ", out);
    for (int line = 0; line < count; line++)
        fprintf(out, "$l%d using 1:2 with lines lt %d dt %d lw 1 title '%s', ", line, line_looks[line].colour,
                line_looks[line].dash, line_looks[line].title);
    for (int m = 0; m < p->mechanism_count; m++) {
        const int look = look_of(p->mechanisms[m].row->name);
        fprintf(
            out,
            "$m%d using 1:2:3:4 with yerrorbars lt %d pt %d ps 0.1 notitle, $m%d using 1:2 with linespoints "
            "lt %d dt %d lw 1.6 pt %d ps 0.9 title '%s'%s",
            m, looks[look].colour, looks[look].mark, m, looks[look].colour, looks[look].dash,
            looks[look].mark, looks[look].title, m + 1 < p->mechanism_count ? ", " : "\n");
    }
}

/* ---- against steps */

/* About five of them, at 1, 2 or 5 times a power of ten. */
static double tics_of(double most)
{
    const double rough = most / 5, power = pow(10, floor(log10(rough)));
    return power * (rough < 1.5 * power ? 1 : rough < 3.5 * power ? 2 : rough < 7.5 * power ? 5 : 10);
}

static void draw_curves(FILE *out, const results *r, const picture *what)
{
    const plan *p = r->plan;
    double last;
    results_at(r, 0, what->first, r->most, &last);
    fprintf(out, "set xlabel 'steps' offset 0,0.6\nset xtics %g\n", tics_of(last));
    for (int m = 0; m < p->mechanism_count; m++) {
        fprintf(out, "$m%d << EOD\n", m);
        for (int64_t test = 0; test < results_tests(r, m, what->first); test++) {
            double step;
            const double value = results_at(r, m, what->first, test, &step);
            fprintf(out, "%.0f %.6g\n", step, value);
        }
        fputs("EOD\n", out);
    }
    fputs("plot ", out);
    for (int m = 0; m < p->mechanism_count; m++) {
        const int look = look_of(p->mechanisms[m].row->name);
        fprintf(out, "$m%d using 1:2 with linespoints lt %d dt %d lw 1.6 pt %d ps 0.6 title '%s'%s", m,
                looks[look].colour, looks[look].dash, looks[look].mark, looks[look].title,
                m + 1 < p->mechanism_count ? ", " : "\n");
    }
}

static int write_picture(const results *r, const plan_lines *lines, const picture *what,
                         const char *directory, io_error *error)
{
    char path[MAX_PATH];
    plot *out;
    snprintf(path, sizeof path, "%s/%.63s", directory, what->name);
    const int status = plot_open(&out, path, WIDTH, HEIGHT, error);
    if (status != EXIT_OK) return status;
    write_frame(plot_script(out), r->plan, what);
    if (what->curve)
        draw_curves(plot_script(out), r, what);
    else
        draw_sizes(plot_script(out), r, lines, what);
    return plot_close(out, error);
}

int pictures_write(const results *r, const plan_lines *lines, const char *directory, io_error *error)
{
    picture list[PICTURES];
    const int count = pictures_list(r->plan, list);
    int status = EXIT_OK;
    for (int i = 0; i < count && status == EXIT_OK; i++)
        status = write_picture(r, lines, &list[i], directory, error);
    return status;
}
