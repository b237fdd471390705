/* SPDX-License-Identifier: MIT */
#include "cli/experiment/figures.h"

#include "cli/plot.h"

#include <inttypes.h>
#include <math.h>

enum { MAX_PATH = 2048, WIDTH = 480, HEIGHT = 480 };

const char *const figure_names[ESTIMATORS] = { "LLA",      "softmax",        "MesaNet", "linear attention",
                                               "DeltaNet", "Gated DeltaNet", "KDA",     "random guess" };
/* Line and point types of cli/plot.h. */
static const int colours[ESTIMATORS] = { 1, 2, 3, 5, 4, 6, 7, 8 };
static const int marks[ESTIMATORS] = { 7, 5, 9, 6, 13, 12, 8, 2 };

static const char *own_text(const sweep_cell *cell)
{
    return cell->hidden ? "own pair hidden" : "own pair visible";
}

static const char *own_name(const sweep_cell *cell) { return cell->hidden ? "hidden" : "visible"; }

/* ---- what the pictures share */

/* The range of an axis of errors. */
typedef struct range {
    double low, high;
} range;

static void range_add(range *r, double value)
{
    if (!(value > 0 && isfinite(value))) return;
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

/* Logarithmic: tics at 1, 2 and 5 within three decades, else at powers of ten, 1 among them, six at most. */
static void write_range(FILE *out, const range *r)
{
    fputs("set logscale y\n", out);
    if (!(r->low < r->high)) return;
    const double decades = log10(r->high / r->low);
    fprintf(out, "set yrange [%g:%g]\n", r->low / pow(10, 0.04 * decades + 0.01),
            r->high * pow(10, 0.04 * decades + 0.01));
    if (decades <= 3) {
        fputs("set ytics (", out);
        for (int k = (int)floor(log10(r->low)); k <= (int)ceil(log10(r->high)); k++)
            fprintf(out, "'%g' %g, '%g' %g, '%g' %g, ", pow(10, k), pow(10, k), 2 * pow(10, k),
                    2 * pow(10, k), 5 * pow(10, k), 5 * pow(10, k));
        fputs("'' 1e300)\n", out);
    } else {
        const double step = ceil(decades / 6);
        fprintf(out, "set ytics %g,%g\nset mytics 1\nset format y '10^{%%T}'\n", pow(10, -20 * step),
                pow(10, step));
    }
}

/* The title above, and the legend below in two columns. */
static void write_frame(FILE *out, const figure_text *text)
{
    fputs(
        "set lmargin at screen 0.18\nset rmargin at screen 0.96\nset tmargin at screen 0.925\nset bmargin at "
        "screen 0.35\n"
        "set key at screen 0.55,0.24 center top vertical maxrows 4 Left reverse samplen 2.4 width 2\n"
        "set xtics offset 0,0.3\n",
        out);
    /* A label and not ylabel, whose place depends on the width of the tics. */
    fprintf(out,
            "set title \"{/:Bold %s}\" offset 0,-0.5\nset label \"%s\" at screen 0.03,0.64 center rotate\n",
            text->title, text->error);
}

/* ---- errors by position */

/* position, mean and confidence band of each window; gaps where a logarithm has nothing to show. */
static void write_curve(FILE *out, const moments *m, int e)
{
    const double reach = moments_reach(m->sequences);
    fprintf(out, "$curve%d << EOD\n", e);
    for (int64_t w = 0; w < m->windows; w++) {
        const mean_error at = moments_window(m, (estimator)e, w);
        const double half = reach * at.error, low = fmax(at.mean - half, 0.1 * at.mean);
        const double position = ((double)w + 0.5) * (double)m->window + 0.5;
        if (at.mean > 0)
            fprintf(out, "%.6g %.6g %.6g %.6g\n", position, at.mean, low, at.mean + half);
        else
            fprintf(out, "%.6g nan nan nan\n", position);
    }
    fputs("EOD\n", out);
}

/* Some of the windows, at other places of each curve: where colours look alike, marks do not. */
static void write_marks(FILE *out, const moments *m, const figure_text *text, int e)
{
    enum { MARKS = 6 };
    fprintf(out, "$marks%d << EOD\n", e);
    for (int i = 0; i < MARKS; i++) {
        const double part = (i + (e + 0.5) / ESTIMATORS) / MARKS, last = (double)(m->windows - 1);
        const int64_t w = (int64_t)round(text->logarithmic ? pow(last + 1, part) - 1 : part * last);
        const double mean = moments_window(m, (estimator)e, w).mean;
        fprintf(out, "%.6g %.6g\n", ((double)w + 0.5) * (double)m->window + 0.5, mean > 0 ? mean : NAN);
    }
    fputs("EOD\n", out);
}

/* LLA last, above the others. */
static void plot_curves(FILE *out)
{
    fputs("plot ", out);
    for (int e = ESTIMATORS - 1; e >= 0; e--)
        fprintf(out, "$curve%d using 1:3:4 with filledcurves lt %d notitle, ", e, colours[e]);
    for (int e = ESTIMATORS - 1; e >= 0; e--)
        fprintf(out, "$curve%d using 1:2 with lines lt %d lw 1.6 notitle, ", e, colours[e]);
    for (int e = ESTIMATORS - 1; e >= 0; e--)
        fprintf(out, "$marks%d using 1:2 with points lt %d pt %d ps 0.8 notitle, ", e, colours[e], marks[e]);
    for (int e = 0; e < ESTIMATORS; e++)
        fprintf(out, "NaN with linespoints lt %d lw 1.6 pt %d ps 0.8 title '%s'%s", colours[e], marks[e],
                figure_names[e], e + 1 < ESTIMATORS ? ", " : "\n");
}

static void draw_positions(FILE *out, const moments *m, const figure_text *text)
{
    range r = { INFINITY, 0 };
    for (int e = 0; e < ESTIMATORS; e++)
        for (int64_t w = 0; w < m->windows; w++)
            range_add(&r, moments_window(m, (estimator)e, w).mean);
    write_frame(out, text);
    write_range(out, &r);
    fputs("set xlabel 'position in the sequence (pairs)' offset 0,0.9\n", out);
    if (text->logarithmic)
        fprintf(out, "set logscale x 2\nset xrange [%g:%" PRId64 "]\n", 0.5 * (double)m->window + 0.5,
                m->length);
    else
        fprintf(out, "set xrange [0:%" PRId64 "]\nset xtics %g\n", m->length, (double)m->length / 4);
    for (int e = 0; e < ESTIMATORS; e++) {
        write_curve(out, m, e);
        write_marks(out, m, text, e);
    }
    plot_curves(out);
}

int figure_positions(const moments *sums, const figure_text *text, const char *path, io_error *error)
{
    plot *p;
    const int status = plot_open(&p, path, WIDTH, HEIGHT, error);
    if (status != EXIT_OK) return status;
    draw_positions(plot_script(p), sums, text);
    return plot_close(p, error);
}

static int write_cell(const sweep_cell *cell, const char *directory, io_error *error)
{
    char path[MAX_PATH], title[128];
    snprintf(path, sizeof path, "%s/position-d%" PRId64 "-S%" PRId64 "-%s.svg", directory, cell->task.dim,
             cell->task.segment, own_name(cell));
    snprintf(title, sizeof title, "d = %" PRId64 ", S = %" PRId64 ", %s", cell->task.dim, cell->task.segment,
             own_text(cell));
    const figure_text text = { title, "squared error (all d channels)", false };
    return figure_positions(&cell->sums, &text, path, error);
}

/* ---- errors over that of LLA, against d */

static bool same_line(const sweep_cell *a, const sweep_cell *b)
{
    return a->task.segment == b->task.segment && a->hidden == b->hidden;
}

static void write_ratios(FILE *out, const sweep *s, const sweep_cell *first, estimator which, range *r)
{
    fprintf(out, "$ratio%d << EOD\n", (int)which);
    for (int64_t i = 0; i < s->cell_count; i++) {
        const sweep_cell *cell = &s->cells[i];
        if (!same_line(cell, first)) continue;
        const mean_error ratio = moments_ratio(&cell->sums, which, ESTIMATOR_LLA);
        const double half = moments_reach(cell->sums.sequences) * ratio.error;
        fprintf(out, "%" PRId64 " %.6g %.6g %.6g\n", cell->task.dim, ratio.mean,
                fmax(ratio.mean - half, 0.1 * ratio.mean), ratio.mean + half);
        range_add(r, ratio.mean);
    }
    fputs("EOD\n", out);
}

static void write_dims(FILE *out, const sweep *s, const sweep_cell *first)
{
    const sweep_cell *last = first;
    const char *comma = "";
    fputs("set logscale x 2\nset xlabel 'd, channels of keys and values' offset 0,0.9\nset xtics (", out);
    for (int64_t i = 0; i < s->cell_count; i++) {
        if (!same_line(&s->cells[i], first)) continue;
        last = &s->cells[i];
        fprintf(out, "%s%" PRId64, comma, last->task.dim);
        comma = ",";
    }
    fprintf(out, ")\nset xrange [%g:%g]\n", 0.8 * (double)first->task.dim, 1.25 * (double)last->task.dim);
}

static void draw_ratios(FILE *out, const sweep *s, const sweep_cell *first)
{
    char title[128];
    range r = { INFINITY, 0 };
    snprintf(title, sizeof title, "S = %" PRId64 ", %s", first->task.segment, own_text(first));
    write_frame(out, &(figure_text){ title, "squared error over that of LLA", false });
    for (int e = ESTIMATOR_LLA; e < ESTIMATORS; e++)
        write_ratios(out, s, first, (estimator)e, &r);
    write_range(out, &r);
    write_dims(out, s, first);
    fputs("plot ", out);
    for (int e = ESTIMATOR_LLA; e < ESTIMATORS; e++)
        fprintf(out,
                "$ratio%d using 1:2:3:4 with yerrorbars lt %d pt %d ps 0.1 notitle, $ratio%d using 1:2 with "
                "linespoints lt %d pt %d ps 0.9 title '%s'%s",
                e, colours[e], marks[e], e, colours[e], marks[e], figure_names[e],
                e + 1 < ESTIMATORS ? ", " : "\n");
}

/* `first` is the first cell of its segment size and setting. */
static int write_ratio(const sweep *s, const sweep_cell *first, const char *directory, io_error *error)
{
    char path[MAX_PATH];
    plot *p;
    snprintf(path, sizeof path, "%s/ratio-S%" PRId64 "-%s.svg", directory, first->task.segment,
             own_name(first));
    const int status = plot_open(&p, path, WIDTH, HEIGHT, error);
    if (status != EXIT_OK) return status;
    draw_ratios(plot_script(p), s, first);
    return plot_close(p, error);
}

int figures_write(const sweep *s, const char *directory, io_error *error)
{
    int status = EXIT_OK;
    for (int64_t i = 0; i < s->cell_count && status == EXIT_OK; i++) {
        const sweep_cell *cell = &s->cells[i];
        int64_t first = 0;
        while (!same_line(&s->cells[first], cell))
            first++;
        status = write_cell(cell, directory, error);
        if (status == EXIT_OK && first == i) status = write_ratio(s, cell, directory, error);
    }
    return status;
}
