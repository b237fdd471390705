/* SPDX-License-Identifier: MIT
 * Pictures of a fit. Colours: the rows grey, the local constant vermilion and dashed, the local linear fit blue. */
#include "cli/plot.h"
#include "cli/regress_model.h"

#include <stdlib.h>
#include <string.h>

static const int colours[REGRESS_ESTIMATORS] = { 2, 1 };

enum { CURVE_POINTS = 200, DOTS_MOST = 4000, PANELS_MOST = 6, PANELS_A_ROW = 3 };

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int find_medians(const regress_model *model, double *medians, io_error *error)
{
    const int64_t rows = model->raw.rows;
    double *sorted = malloc((size_t)rows * sizeof *sorted);
    if (!sorted) return io_fail(error, EXIT_INTERNAL, "out of memory");
    for (int c = 0; c < model->columns; c++) {
        memcpy(sorted, model->raw.values + c * rows, (size_t)rows * sizeof *sorted);
        qsort(sorted, (size_t)rows, sizeof *sorted, compare_doubles);
        medians[c] = 0.5 * (sorted[(rows - 1) / 2] + sorted[rows / 2]);
    }
    free(sorted);
    return EXIT_OK;
}

/* CURVE_POINTS values of one column after another, the other columns at their medians. */
static int make_curves(const regress_model *model, int panels, regress_points *points, io_error *error)
{
    double medians[REGRESS_COLUMNS_MAX];
    int status = find_medians(model, medians, error);
    if (!status) status = regress_points_make(points, model, (int64_t)panels * CURVE_POINTS, error);
    if (status) return status;
    for (int c = 0; c < model->columns; c++) {
        for (int64_t i = 0; i < points->count; i++) {
            const double share = (double)(i % CURVE_POINTS) / (CURVE_POINTS - 1);
            const double along = (1 - share) * model->table.least[c] + share * model->table.most[c];
            points->x[c * points->count + i] = i / CURVE_POINTS == c ? along : medians[c];
        }
    }
    status = regress_predict(model, points, "picture", error);
    if (status) regress_points_free(points);
    return status;
}

static void write_rows(const regress_model *model, int column, FILE *script)
{
    const int64_t rows = model->raw.rows, step = (rows + DOTS_MOST - 1) / DOTS_MOST;
    const double *x = model->raw.values + column * rows, *y = model->raw.values + model->columns * rows;
    fprintf(script, "$rows%d << EOD\n", column);
    for (int64_t j = 0; j < rows; j += step)
        fprintf(script, "%.9g %.9g\n", x[j], y[j]);
    fputs("EOD\n", script);
}

static void write_curve(const regress_model *model, const regress_points *points, int panel,
                        regress_estimator e, FILE *script)
{
    fprintf(script, "$%s%d << EOD\n", regress_names[e], panel);
    for (int64_t i = (int64_t)panel * CURVE_POINTS; i < ((int64_t)panel + 1) * CURVE_POINTS; i++) {
        const regress_fit *fit = &points->fits[e][i];
        const double error = fmax(regress_standard_error(model, e, fit), 0);
        fprintf(script, "%.9g %.9g %.9g %.9g\n", points->x[panel * points->count + i], fit->value,
                fit->value - model->reach * error, fit->value + model->reach * error);
    }
    fputs("EOD\n", script);
}

static void write_panel(const regress_model *model, const regress_points *points, int panel, plot *p)
{
    FILE *script = plot_script(p);
    write_rows(model, panel, script);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (model->wanted[e]) write_curve(model, points, panel, (regress_estimator)e, script);
    fputs("set xlabel ", script);
    plot_quote(p, model->raw.names[panel]);
    fputs("\nset ylabel ", script);
    plot_quote(p, panel % PANELS_A_ROW ? "" : model->raw.names[model->columns]);
    fprintf(script, "\nplot $rows%d with points lt 8 ps %g title 'rows'", panel,
            model->raw.rows > 500 ? 0.3 : 0.6);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (model->wanted[e])
            fprintf(script, ", $%s%d using 1:3:4 with filledcurves lt %d notitle", regress_names[e], panel,
                    colours[e]);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (model->wanted[e])
            fprintf(script, ", $%s%d using 1:2 with lines lt %d lw 2.5%s title 'local %s'", regress_names[e],
                    panel, colours[e], e ? "" : " dt (12,5)", regress_names[e]);
    fputs("\nunset key\n", script);
}

/* "NAME by local regression, 95 % bands": bands only where there is a variance. */
static void write_title(const regress_model *model, int panels, plot *p)
{
    bool bands = false;
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        bands |= model->wanted[e] && model->noise[e].variance >= 0;
    char title[400];
    int n = snprintf(title, sizeof title, "%.200s by local regression", model->raw.names[model->columns]);
    if (bands) n += snprintf(title + n, sizeof title - (size_t)n, ", %.4g %% bands", 100 * model->level);
    if (panels > 1) snprintf(title + n, sizeof title - (size_t)n, "; other columns at their medians");
    plot_quote(p, title);
}

/* The key stands below the panels: beside no curve. */
static void write_layout(const regress_model *model, int panels, int across, int down, plot *p)
{
    static const char single[] =
        "set tmargin at screen 0.91\n"
        "set bmargin at screen 0.26\n"
        "set key at screen 0.57, screen 0.04 center\nset title offset 0,-0.6 font ',14' ";
    FILE *script = plot_script(p);
    fputs("set xtics offset 0,0.3\nset xlabel offset 0,0.9\nset ylabel offset 1,0\n"
          "set key vertical maxrows 1 Left reverse samplen 2 width -2 font ',14'\n",
          script);
    fputs(panels == 1 ? single : "set multiplot title ", script);
    write_title(model, panels, p);
    if (panels > 1)
        fprintf(script,
                " layout %d,%d margins %g,0.98,%g,%g spacing %g,%g\n"
                "set key at screen 0.5, screen %g center",
                down, across, 0.18 / across, 0.24 / down, 1 - 0.12 / down, 0.16 / across, 0.2 / down,
                0.07 / down);
    fputc('\n', script);
}

int regress_picture(const regress_model *model, const char *path, io_error *error)
{
    const int panels = model->columns < PANELS_MOST ? model->columns : PANELS_MOST;
    const int across = panels < PANELS_A_ROW ? panels : PANELS_A_ROW, down = (panels + across - 1) / across;
    plot *p;
    regress_points points;
    int status = make_curves(model, panels, &points, error);
    if (status) return status;
    status = plot_open(&p, path, panels == 1 ? 480 : 480 * across, panels == 1 ? 400 : 420 * down, error);
    if (!status) {
        write_layout(model, panels, across, down, p);
        for (int panel = 0; panel < panels; panel++)
            write_panel(model, &points, panel, p);
        status = plot_close(p, error);
    }
    regress_points_free(&points);
    return status;
}
