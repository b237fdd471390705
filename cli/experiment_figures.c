/* SPDX-License-Identifier: MIT */
#include "cli/experiment_figures.h"

#include "cli/plot.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_PATH = 2048, FIGURE3_DIM = 64, FIGURE3_PANELS = 4 };

static const char *const titles[ESTIMATORS] = { "LLA",      "softmax",        "MesaNet", "linear attention",
                                                "DeltaNet", "Gated DeltaNet", "KDA",     "random guess" };
/* Line types of cli/plot.h. */
static const int colours[ESTIMATORS] = { 1, 2, 3, 5, 4, 6, 7, 8 };

/* Cells of the sweep as rows and columns of panels; NULL leaves a place empty. */
typedef struct grid {
    const sweep_cell **cells;
    int rows, columns;
} grid;

static const sweep_cell *cell_at(const sweep *s, int64_t dim, int64_t segment, int hidden)
{
    for (int64_t i = 0; i < s->cell_count; i++) {
        const sweep_cell *cell = &s->cells[i];
        if (cell->task.dim == dim && cell->task.segment == segment && cell->hidden == hidden) return cell;
    }
    return NULL;
}

static int settings_of(const sweep *s)
{
    return s->cells[0].hidden == s->cells[s->cell_count - 1].hidden ? 1 : 2;
}

static int segments_of(const sweep *s)
{
    int count = 1;
    while (count < s->cell_count && s->cells[count].task.segment > s->cells[count - 1].task.segment)
        count++;
    return count;
}

static const char *own_text(const sweep_cell *cell)
{
    return cell->hidden ? "own pair hidden" : "own pair visible";
}

/* ---- position-wise errors: figures 3 and 7 */

/* position, mean and confidence band of each window; gaps where a logarithm has nothing to show. */
static void write_curve(FILE *out, const sweep_cell *cell, int e)
{
    const moments *m = &cell->sums;
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

static void plot_curves(FILE *out)
{
    fputs("plot ", out);
    for (int e = ESTIMATORS - 1; e >= 0; e--)
        fprintf(out, "$curve%d using 1:3:4 with filledcurves lt %d notitle, ", e, colours[e]);
    for (int e = ESTIMATORS - 1; e >= 0; e--)
        fprintf(out, "$curve%d using 1:2 with lines lt %d lw 1.6 notitle%s", e, colours[e], e ? ", " : "\n");
}

/* The decades that hold every window of a row of panels. */
static void set_range(FILE *out, const sweep_cell *const *row, int columns)
{
    double low = INFINITY, high = 0;
    for (int c = 0; c < columns; c++)
        for (int e = 0; row[c] && e < ESTIMATORS; e++)
            for (int64_t w = 0; w < row[c]->sums.windows; w++) {
                const double mean = moments_window(&row[c]->sums, (estimator)e, w).mean;
                low = mean > 0 ? fmin(low, mean) : low;
                high = fmax(high, mean);
            }
    if (low < high)
        fprintf(out, "set yrange [%g:%g]\n", pow(10, floor(log10(low))), pow(10, ceil(log10(high))));
    else
        fputs("set yrange [*:*]\n", out);
}

static void draw_panel(FILE *out, const grid *g, int index)
{
    const sweep_cell *cell = g->cells[index];
    const int row = index / g->columns, column = index % g->columns;
    if (!cell) {
        fputs("set multiplot next\n", out);
        return;
    }
    fprintf(out, "set title \"{/:Bold d = %" PRId64 ",  S = %" PRId64 "}\" offset 0,-0.6\n", cell->task.dim,
            cell->task.segment);
    fprintf(out, "set xrange [0:%" PRId64 "]\nset xtics %g\n", cell->task.length,
            (double)cell->task.length / 4);
    fputs(row + 1 == g->rows ? "set xlabel 'position' offset 0,0.3\nset format x '%g'\n"
                             : "unset xlabel\nset format x ''\n",
          out);
    if (column == 0)
        fprintf(out, "set ylabel \"squared error\\n%s\" offset 0.5,0\nset format y '10^{%%T}'\n",
                own_text(cell));
    else
        fputs("unset ylabel\nset format y ''\n", out);
    for (int e = 0; e < ESTIMATORS; e++)
        write_curve(out, cell, e);
    plot_curves(out);
}

/* The measures of a picture in pixels. */
typedef struct frame {
    int rows, columns, panel_width, panel_height, gap_x, gap_y;
} frame;

enum { LEFT = 110, RIGHT = 24, BOTTOM = 105, TOP = 82 };

static int width_of(const frame *f)
{
    const int width = LEFT + f->columns * f->panel_width + (f->columns - 1) * f->gap_x + RIGHT;
    return width > 900 ? width : 900;
}

static int height_of(const frame *f)
{
    return BOTTOM + f->rows * f->panel_height + (f->rows - 1) * f->gap_y + TOP;
}

/* Begins the panels, with the title above them. */
static void write_layout(FILE *out, const frame *f, const char *title)
{
    const double width = width_of(f), height = height_of(f);
    fprintf(out,
            "set multiplot layout %d,%d margins %.4f,%.4f,%.4f,%.4f spacing %.4f,%.4f\nunset key\n"
            "set label 99 \"%s\" at screen 0.5,%.4f center font ',16'\n",
            f->rows, f->columns, LEFT / width, 1 - RIGHT / width, BOTTOM / height, 1 - TOP / height,
            f->gap_x / width, f->gap_y / height, title, 1 - 28 / height);
}

/* An entry of the legend below the panels, `index` of `count`; it goes with the first panel's labels. */
static void write_legend(FILE *out, const frame *f, int index, int count, int colour, const char *text)
{
    const double width = width_of(f), step = 165 / width;
    fprintf(out, "set label \"%s\" at screen %.4f,%.4f left point lt %d pt 5 ps 1.4 offset 1.2,0\n", text,
            0.5 + (index - 0.5 * count) * step + 0.15 * step, 22 / (double)height_of(f), colour);
}

static void draw_grid(FILE *out, const sweep *s, const grid *g, const frame *f)
{
    char title[256];
    snprintf(title, sizeof title,
             "Squared error by position (%" PRId64 " sequences, windows of %" PRId64 ", 95 %% bands)",
             s->sequences, s->cells[0].sums.window);
    write_layout(out, f, title);
    for (int e = 0; e < ESTIMATORS; e++)
        write_legend(out, f, e, ESTIMATORS, colours[e], titles[e]);
    fputs("set logscale y\nset ytics 100\nset mytics 1\n", out);
    for (int i = 0; i < g->rows * g->columns; i++) {
        if (i % g->columns == 0) set_range(out, g->cells + i, g->columns);
        draw_panel(out, g, i);
        fputs("unset label\n", out);
    }
    fputs("unset multiplot\n", out);
}

static int write_grid(const sweep *s, const grid *g, const char *path, io_error *error)
{
    const frame f = { g->rows, g->columns, 270, g->rows > 2 ? 190 : 250, 40, 40 };
    plot *p;
    const int status = plot_open(&p, path, width_of(&f), height_of(&f), error);
    if (status != EXIT_OK) return status;
    draw_grid(plot_script(p), s, g, &f);
    return plot_close(p, error);
}

/* ---- the error of the others over that of LLA: figure 4 */

static void write_ratios(FILE *out, const sweep *s, const sweep_cell *first, estimator which)
{
    fprintf(out, "$ratio%" PRId64 " << EOD\n", first->task.segment);
    for (int64_t i = 0; i < s->cell_count; i++) {
        const sweep_cell *cell = &s->cells[i];
        if (cell->task.segment != first->task.segment || cell->hidden != first->hidden) continue;
        const mean_error ratio = moments_ratio(&cell->sums, which, ESTIMATOR_LLA);
        const double half = moments_reach(cell->sums.sequences) * ratio.error;
        fprintf(out, "%" PRId64 " %.6g %.6g %.6g\n", cell->task.dim, ratio.mean,
                fmax(ratio.mean - half, 0.1 * ratio.mean), ratio.mean + half);
    }
    fputs("EOD\n", out);
}

/* A line for each segment size of the sweep. */
static void plot_ratios(FILE *out, const sweep *s, const sweep_cell *first, estimator which)
{
    int line = 0;
    for (int64_t i = 0; i < s->cell_count; i++) {
        const sweep_cell *cell = &s->cells[i];
        if (cell->hidden == first->hidden && cell->task.dim == first->task.dim)
            write_ratios(out, s, cell, which);
    }
    fputs("plot 1 with lines lc rgb '#5A5A5A' dt 2 lw 1 notitle", out);
    for (int64_t i = 0; i < s->cell_count; i++) {
        const sweep_cell *cell = &s->cells[i];
        if (cell->hidden != first->hidden || cell->task.dim != first->task.dim) continue;
        fprintf(out, ", $ratio%" PRId64 " using 1:2:3:4 with yerrorlines lt %d pt 7 ps 0.6 notitle",
                cell->task.segment, ++line);
    }
    fputc('\n', out);
}

static void draw_ratio_panel(FILE *out, const sweep *s, const sweep_cell *first, estimator which, bool last)
{
    fprintf(out, "set title \"{/:Bold %s / LLA}\" offset 0,-0.6\n", titles[which]);
    fputs(last ? "set xlabel 'd' offset 0,0.3\n" : "unset xlabel\n", out);
    if (which == ESTIMATOR_SOFTMAX)
        fprintf(out, "set ylabel \"ratio of squared errors\\n%s\" offset -0.5,0\n", own_text(first));
    else
        fputs("unset ylabel\n", out);
    plot_ratios(out, s, first, which);
    fputs("unset label\n", out);
}

/* A tic for each dimension, and the segment sizes in the legend. */
static void name_dims_and_segments(FILE *out, const sweep *s, const frame *f, int segments)
{
    const experiment_task *first = &s->cells[0].task, *last = &s->cells[s->cell_count - 1].task;
    fprintf(out, "set xrange [%g:%g]\nset xtics (", 0.8 * (double)first->dim, 1.25 * (double)last->dim);
    for (int64_t i = 0; i < s->cell_count / f->rows; i += segments)
        fprintf(out, "%s%" PRId64, i ? "," : "", s->cells[i].task.dim);
    fputs(")\n", out);
    for (int i = 0; i < segments; i++) {
        char text[32];
        snprintf(text, sizeof text, "S = %" PRId64, s->cells[i].task.segment);
        write_legend(out, f, i, segments, i + 1, text);
    }
}

static void draw_ratios(FILE *out, const sweep *s, const frame *f)
{
    const int64_t per_setting = s->cell_count / f->rows;
    write_layout(out, f, "Squared error of the others in units of LLA's (95 % intervals)");
    fputs("set logscale x 2\nset logscale y\nset format y '10^{%T}'\n", out);
    name_dims_and_segments(out, s, f, segments_of(s));
    for (int row = 0; row < f->rows; row++)
        for (int e = ESTIMATOR_SOFTMAX; e < ESTIMATORS; e++)
            draw_ratio_panel(out, s, &s->cells[row * per_setting], (estimator)e, row + 1 == f->rows);
    fputs("unset multiplot\n", out);
}

/* ---- the three pictures */

static int write_figure4(const sweep *s, const char *path, io_error *error)
{
    const frame f = { settings_of(s), ESTIMATORS - 1, 250, 250, 62, 62 };
    plot *p;
    const int status = plot_open(&p, path, width_of(&f), height_of(&f), error);
    if (status != EXIT_OK) return status;
    draw_ratios(plot_script(p), s, &f);
    return plot_close(p, error);
}

/* The dimension of the paper's figure, or else the largest of the sweep. */
static int64_t figure3_dim(const sweep *s)
{
    int64_t largest = 0;
    for (int64_t i = 0; i < s->cell_count; i++) {
        if (s->cells[i].task.dim == FIGURE3_DIM) return FIGURE3_DIM;
        if (s->cells[i].task.dim > largest) largest = s->cells[i].task.dim;
    }
    return largest;
}

/* The segment sizes of the paper's figure as far as the sweep has them, or else its last ones. */
static int figure3_segments(const sweep *s, int64_t dim, int64_t segments[FIGURE3_PANELS])
{
    static const int64_t wanted[FIGURE3_PANELS] = { 64, 256, 512, 1024 };
    int count = 0;
    for (int i = 0; i < FIGURE3_PANELS; i++)
        if (cell_at(s, dim, wanted[i], s->cells[0].hidden)) segments[count++] = wanted[i];
    for (int64_t i = s->cell_count - 1; i >= 0 && count == 0; i--)
        segments[count++] = s->cells[i].task.segment;
    return count;
}

static int write_figure3(const sweep *s, const char *path, io_error *error)
{
    const sweep_cell *cells[2 * FIGURE3_PANELS];
    int64_t segments[FIGURE3_PANELS];
    const int64_t dim = figure3_dim(s);
    const grid g = { cells, settings_of(s), figure3_segments(s, dim, segments) };
    for (int row = 0; row < g.rows; row++)
        for (int i = 0; i < g.columns; i++)
            cells[row * g.columns + i] = cell_at(s, dim, segments[i], row ? 1 : s->cells[0].hidden);
    return write_grid(s, &g, path, error);
}

/* The cells of a setting lie as the panels do: dimensions, then segments. */
static int write_figure7(const sweep *s, int setting, const char *path, io_error *error)
{
    const int64_t per_setting = s->cell_count / settings_of(s);
    const int columns = segments_of(s);
    const sweep_cell **cells = calloc((size_t)per_setting, sizeof *cells);
    if (!cells) return io_fail(error, EXIT_INTERNAL, "out of memory");
    for (int64_t i = 0; i < per_setting; i++)
        cells[i] = &s->cells[setting * per_setting + i];
    const grid g = { cells, (int)(per_setting / columns), columns };
    const int status = write_grid(s, &g, path, error);
    free(cells);
    return status;
}

int figures_write(const sweep *s, const char *directory, io_error *error)
{
    static const char *const endings[] = { "svg", "png" };
    int status = EXIT_OK;
    for (int i = 0; i < 2; i++) {
        char path[MAX_PATH];
        snprintf(path, sizeof path, "%s/figure3.%s", directory, endings[i]);
        if (status == EXIT_OK) status = write_figure3(s, path, error);
        snprintf(path, sizeof path, "%s/figure4.%s", directory, endings[i]);
        if (status == EXIT_OK) status = write_figure4(s, path, error);
        for (int setting = 0; setting < settings_of(s) && status == EXIT_OK; setting++) {
            snprintf(path, sizeof path, "%s/figure7%s.%s", directory, setting ? "-hidden" : "", endings[i]);
            status = write_figure7(s, setting, path, error);
        }
    }
    return status;
}
