/* SPDX-License-Identifier: MIT
 * Pictures of a fit. Colours: the rows grey, the local constant vermilion and dashed, the local linear fit
 * blue; with groups each has a colour, its rows too, and the line is drawn where there is one, else the
 * constant. */
#include "cli/plot.h"
#include "cli/regress/data.h"

#include <stdlib.h>
#include <string.h>

static const int colours[REGRESS_ESTIMATORS] = { 2, 1 };

enum { CURVE_POINTS = 200, DOTS_MOST = 4000, PANELS_MOST = 6, PANELS_A_ROW = 3, GREY = 8 };

typedef struct picture {
    const regress_data *data;
    const regress_settings *set;
    regress_points *points; /* of each model: CURVE_POINTS a panel */
    int columns, panels;
    const char *letters; /* of key and title: larger ones leave the narrow .png no room */
} picture;

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int find_medians(const regress_model *model, double *medians, io_error *error)
{
    const int64_t rows = model->rows;
    double *sorted = malloc((size_t)rows * sizeof *sorted);
    if (!sorted) return io_fail(error, EXIT_INTERNAL, "out of memory");
    for (int c = 0; c < model->columns; c++) {
        memcpy(sorted, model->values + c * rows, (size_t)rows * sizeof *sorted);
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
    points->gaps = model->columns > 1;
    for (int c = 0; c < model->columns; c++) {
        for (int64_t i = 0; i < points->count; i++) {
            const double share = (double)(i % CURVE_POINTS) / (CURVE_POINTS - 1);
            const double along = (1 - share) * model->table.least[c] + share * model->table.most[c];
            points->x[c * points->count + i] = i / CURVE_POINTS == c ? along : medians[c];
        }
    }
    return regress_predict(model, points, "picture", error);
}

static bool is_drawn(const picture *all, int e)
{
    if (!all->data->raw.label_column) return all->set->wanted[e];
    return e == (all->set->wanted[REGRESS_LINEAR] ? REGRESS_LINEAR : REGRESS_CONSTANT);
}

static int colour_of(const picture *all, int group, int e)
{
    return all->data->raw.label_column ? group + 1 : colours[e];
}

static void write_rows(const picture *all, int group, int column, FILE *script)
{
    const regress_model *model = &all->data->models[group];
    const int64_t rows = model->rows, step = (all->data->raw.rows + DOTS_MOST - 1) / DOTS_MOST;
    const double *x = model->values + column * rows, *y = model->values + model->columns * rows;
    fprintf(script, "$rows_%d_%d << EOD\n", group, column);
    for (int64_t j = 0; j < rows; j += step)
        fprintf(script, "%.9g %.9g\n", x[j], y[j]);
    fputs("EOD\n", script);
}

/* An empty line, where there are no data, breaks the curve. */
static void write_curve(const picture *all, int group, int panel, regress_estimator e, FILE *script)
{
    const regress_model *model = &all->data->models[group];
    const regress_points *points = &all->points[group];
    fprintf(script, "$%s_%d_%d << EOD\n", regress_names[e], group, panel);
    for (int64_t i = (int64_t)panel * CURVE_POINTS; i < ((int64_t)panel + 1) * CURVE_POINTS; i++) {
        const regress_fit *fit = &points->fits[e][i];
        const double error = fmax(regress_standard_error(model, e, fit), 0);
        if (regress_has_data(points, e, i))
            fprintf(script, "%.9g %.9g %.9g %.9g\n", points->x[panel * points->count + i], fit->value,
                    fit->value - all->set->reach * error, fit->value + all->set->reach * error);
        else
            fputc('\n', script);
    }
    fputs("EOD\n", script);
}

static bool has_curve(const picture *all, int group, int panel, int e)
{
    const regress_points *points = &all->points[group];
    for (int64_t i = (int64_t)panel * CURVE_POINTS; i < ((int64_t)panel + 1) * CURVE_POINTS; i++)
        if (regress_has_data(points, e, i)) return true;
    return false;
}

static void write_data(const picture *all, int group, int panel, FILE *script)
{
    write_rows(all, group, panel, script);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (is_drawn(all, e)) write_curve(all, group, panel, (regress_estimator)e, script);
}

static void plot_band(const picture *all, int group, int panel, int e, plot *p)
{
    if (all->set->errors && has_curve(all, group, panel, e))
        fprintf(plot_script(p), ", $%s_%d_%d using 1:3:4 with filledcurves lt %d notitle", regress_names[e],
                group, panel, colour_of(all, group, e));
}

/* A curve without points is still in the key, which the first panel writes for all. */
static void plot_line(const picture *all, int group, int panel, int e, plot *p)
{
    FILE *script = plot_script(p);
    const char *title = all->data->models[group].group;
    if (has_curve(all, group, panel, e))
        fprintf(script, ", $%s_%d_%d using 1:2", regress_names[e], group, panel);
    else
        fputs(", keyentry", script);
    fprintf(script, " with lines lt %d lw 2.5%s title ", colour_of(all, group, e),
            e == REGRESS_LINEAR ? "" : " dt (12,5)");
    plot_quote(p, title ? title : e == REGRESS_LINEAR ? "local linear" : "local constant");
}

static void plot_curves(const picture *all, int panel,
                        void (*draw)(const picture *, int group, int panel, int e, plot *), plot *p)
{
    for (int g = 0; g < all->data->count; g++)
        for (int e = 0; e < REGRESS_ESTIMATORS; e++)
            if (regress_is_fitted(&all->data->models[g]) && is_drawn(all, e)) draw(all, g, panel, e, p);
}

static void write_panel(const picture *all, int panel, plot *p)
{
    FILE *script = plot_script(p);
    const csv_table *raw = &all->data->raw;
    for (int g = 0; g < all->data->count; g++)
        if (regress_is_fitted(&all->data->models[g])) write_data(all, g, panel, script);
    fputs("set xlabel ", script);
    plot_quote(p, raw->names[panel]);
    fputs("\nset ylabel ", script);
    plot_quote(p, panel % PANELS_A_ROW ? "" : raw->names[all->columns]);
    const char *between = "\nplot ";
    for (int g = 0; g < all->data->count; g++) {
        if (!regress_is_fitted(&all->data->models[g])) continue;
        fprintf(script, "%s$rows_%d_%d with points lt %d ps %g %s", between, g, panel,
                raw->label_column ? g + 1 : GREY, raw->rows > 500 ? 0.3 : 0.6,
                raw->label_column ? "notitle" : "title 'rows'");
        between = ", ";
    }
    plot_curves(all, panel, plot_band, p);
    plot_curves(all, panel, plot_line, p);
    fputs("\nunset key\n", script);
}

static bool has_bands(const picture *all)
{
    bool bands = false;
    for (int g = 0; g < all->data->count; g++)
        for (int e = 0; e < REGRESS_ESTIMATORS; e++)
            bands |= regress_is_fitted(&all->data->models[g]) && is_drawn(all, e) &&
                     all->data->models[g].noise[e].variance >= 0;
    return bands;
}

/* "NAME by local regression, 95 % bands": bands only where there is a variance. */
static void write_title(const picture *all, plot *p)
{
    const csv_table *raw = &all->data->raw;
    char title[600];
    const char *y = raw->names[all->columns];
    int n = raw->label_column
                ? snprintf(title, sizeof title, "%.200s, local %s for each %.200s", y,
                           is_drawn(all, REGRESS_LINEAR) ? "linear" : "constant", raw->label_column)
                : snprintf(title, sizeof title, "%.200s by local regression", y);
    if (has_bands(all))
        n += snprintf(title + n, sizeof title - (size_t)n, ", %.4g %% bands", 100 * all->set->level);
    if (all->panels > 1) snprintf(title + n, sizeof title - (size_t)n, "; other columns at their medians");
    plot_quote(p, title);
}

/* The key stands below the panels, that of groups above them: beside no curve. */
static void write_layout(const picture *all, int across, int down, plot *p)
{
    static const char single[] = "set tmargin at screen 0.91\n"
                                 "set bmargin at screen 0.26\n"
                                 "set key at screen 0.57, screen 0.04 center vertical maxrows 1 width -2\n"
                                 "set title offset 0,-0.6";
    const bool grouped = all->data->raw.label_column != NULL;
    FILE *script = plot_script(p);
    fprintf(script,
            "set xtics offset 0,0.3\nset xlabel offset 0,0.9\nset ylabel offset 1,0\n"
            "set key Left reverse samplen 2%s\n",
            all->letters);
    if (all->panels > 1)
        fputs("set multiplot title ", script);
    else
        fprintf(script, "%s%s ", grouped ? "set key above\nset title" : single, all->letters);
    write_title(all, p);
    if (all->panels > 1)
        fprintf(script,
                " layout %d,%d margins %g,0.98,%g,%g spacing %g,%g\n"
                "set key at screen 0.5, screen %g center",
                down, across, 0.18 / across, 0.24 / down, 1 - 0.12 / down, 0.16 / across, 0.2 / down,
                0.07 / down);
    fputc('\n', script);
}

static int draw_panels(const picture *all, const char *path, io_error *error)
{
    const int panels = all->panels, across = panels < PANELS_A_ROW ? panels : PANELS_A_ROW,
              down = (panels + across - 1) / across;
    plot *p;
    const int width = panels == 1 && all->data->raw.label_column ? 720 : 480 * across;
    const int status = plot_open(&p, path, width, (panels == 1 ? 400 : 420) * down, error);
    if (status) return status;
    write_layout(all, across, down, p);
    for (int panel = 0; panel < panels; panel++)
        write_panel(all, panel, p);
    return plot_close(p, error);
}

int regress_picture(const regress_data *data, const char *path, io_error *error)
{
    const int columns = data->models[0].columns;
    picture all = { .data = data,
                    .set = data->models[0].set,
                    .columns = columns,
                    .letters = strcmp(strrchr(path, '.'), ".svg") ? "" : " font ',14'",
                    .panels = columns < PANELS_MOST ? columns : PANELS_MOST };
    all.points = calloc((size_t)data->count, sizeof *all.points);
    if (!all.points) return io_fail(error, EXIT_INTERNAL, "out of memory");
    int status = EXIT_OK;
    for (int g = 0; !status && g < data->count; g++)
        if (regress_is_fitted(&data->models[g]))
            status = make_curves(&data->models[g], all.panels, &all.points[g], error);
    if (!status) status = draw_panels(&all, path, error);
    for (int g = 0; g < data->count; g++)
        regress_points_free(&all.points[g]);
    free(all.points);
    return status;
}
