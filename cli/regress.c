/* SPDX-License-Identifier: MIT */
#include "cli/command.h"
#include "cli/options.h"
#include "cli/plot.h"
#include "cli/regress_model.h"
#include "loam.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] = "loam regress TABLE.csv --x COLS --y COL [options]";

static const char about[] =
    "Local regression of the column y on the columns x, with a Gaussian kernel: a constant around each point "
    "(Nadaraya-Watson: softmax attention with the RBF score) and a line (Local Linear Attention with it).\n\n"
    "Bandwidths are in standard deviations of each column; `auto` chooses, for each estimator by itself, "
    "what predicts left-out rows best. Rows with a missing value are left out. Predictions are CSV: the x "
    "columns, then for each estimator its fit, standard error and band, then a note: `singular` (the linear "
    "fit needs more distinct rows in reach; the constant stands there) or `far` (no row within "
    "some 6 bandwidths).\n\n"
    "Exit status: 0 done, 1 a bug or too little memory, 2 wrong options, 3 wrong input, 4 output not "
    "written.";

typedef struct regress_options {
    bool help;
    const char *path, *x, *y, *at, *bandwidth, *estimator, *plot, *out;
    double ridge, level;
    int64_t grid, threads, seed;
} regress_options;

static int parse(regress_options *o, int argc, char **argv, io_error *error)
{
    const option_row rows[] = {
        { "x", OPTION_TEXT, &o->x, 0, 0, "COLS", "names or numbers of the x columns, with commas between" },
        { "y", OPTION_TEXT, &o->y, 0, 0, "COL", "name or number of the y column" },
        { "grid", OPTION_INT, &o->grid, 2, 1e7, "N",
          "predict at N values of each x column in all combinations; default 200, fewer with more columns" },
        { "at", OPTION_TEXT, &o->at, 0, 0, "FILE",
          "predict at the rows of this CSV file, which has the x columns" },
        { "bandwidth", OPTION_TEXT, &o->bandwidth, 0, 0, "X|auto",
          "default auto: leave-one-out cross-validation" },
        { "ridge", OPTION_REAL, &o->ridge, 0, 1e300, "X",
          "shrinks the slope: added to the covariance of the x in reach, in squared bandwidths. Default 0" },
        { "estimator", OPTION_TEXT, &o->estimator, 0, 0, "E", "constant, linear or both (default)" },
        { "out", OPTION_TEXT, &o->out, 0, 0, "F", "the predictions; default -, standard output" },
        { "plot", OPTION_TEXT, &o->plot, 0, 0, "F", "a picture, .svg or .png" },
        { "level", OPTION_REAL, &o->level, 0.01, 0.999999, "X", "of the bands, default 0.95" },
        { "threads", OPTION_INT, &o->threads, 1, 4096, "N", "default: all" },
        { "seed", OPTION_INT, &o->seed, 0, 9e15, "N",
          "of the sample of rows that large tables use; default 1" },
        { 0 }
    };
    const int status = options_parse(&argc, argv, rows, usage, about, &o->help, error);
    if (status || o->help) return status;
    if (argc < 2) return io_fail(error, EXIT_USAGE, "which table? usage: %s", usage);
    if (argc > 2) return io_fail(error, EXIT_USAGE, "unexpected argument '%s'; usage: %s", argv[2], usage);
    if (!o->x || !o->y)
        return io_fail(error, EXIT_USAGE, "--%s is missing; usage: %s", o->x ? "y" : "x", usage);
    if (o->at && o->grid) return io_fail(error, EXIT_USAGE, "--at and --grid exclude each other");
    o->path = argv[1];
    return EXIT_OK;
}

static int choose_estimators(const regress_options *o, regress_model *model, io_error *error)
{
    static const char *const names[] = { "constant", "linear", "both", NULL };
    const int choice = options_choice(o->estimator, names);
    if (choice < 0) {
        const char *nearest = options_nearest(o->estimator, names);
        return io_fail(error, EXIT_USAGE, "--estimator '%s': expected constant, linear or both%s%s%s",
                       o->estimator, nearest ? "; did you mean '" : "", nearest ? nearest : "",
                       nearest ? "'?" : "");
    }
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        model->wanted[e] = choice == e || choice == REGRESS_ESTIMATORS;
    return EXIT_OK;
}

static int choose_smoothers(const regress_options *o, regress_model *model, io_error *error)
{
    model->chosen = !strcmp(o->bandwidth, "auto");
    double bandwidth = 1;
    if (!model->chosen) {
        char *end;
        bandwidth = strtod(o->bandwidth, &end);
        if (end == o->bandwidth || *end || !(bandwidth >= 1e-100 && bandwidth <= 1e100))
            return io_fail(error, EXIT_USAGE,
                           "--bandwidth '%s': expected auto or a number from 1e-100 to 1e100", o->bandwidth);
    }
    const int threads = o->threads ? (int)o->threads : loam_max_threads();
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        model->with[e] = (regress_smoother){ .bandwidth = bandwidth, .ridge = o->ridge, .threads = threads };
    return EXIT_OK;
}

/* Splits list at commas, in place. */
static int split_columns(char *list, const char **names, int *count, io_error *error)
{
    for (char *next = list; next; *count += 1) {
        if (*count == REGRESS_COLUMNS_MAX)
            return io_fail(error, EXIT_USAGE, "--x: more than %d columns", REGRESS_COLUMNS_MAX);
        names[*count] = next;
        next = strchr(next, ',');
        if (next) *next++ = '\0';
        if (!*names[*count]) return io_fail(error, EXIT_USAGE, "--x: an empty column name");
    }
    return EXIT_OK;
}

static int check_distinct(const csv_table *raw, io_error *error)
{
    for (int a = 0; a < raw->columns; a++)
        for (int b = 0; b < a; b++)
            if (!strcmp(raw->names[a], raw->names[b]))
                return io_fail(error, EXIT_USAGE, "column '%s' is given twice", raw->names[a]);
    return EXIT_OK;
}

static int read_points(const regress_model *model, const char *path, regress_points *points, io_error *error)
{
    csv_table at;
    int status = csv_read(&at, path, (const char *const *)model->raw.names, model->columns, error);
    if (status) return status;
    status = regress_points_make(points, model, at.rows, error);
    if (!status) memcpy(points->x, at.values, (size_t)at.rows * (size_t)at.columns * sizeof *points->x);
    csv_table_free(&at);
    return status;
}

static int make_points(const regress_options *o, const regress_model *model, regress_points *points,
                       io_error *error)
{
    if (o->at) return read_points(model, o->at, points, error);
    int64_t grid = o->grid;
    if (!grid) grid = model->columns == 1 ? 200 : (int64_t)fmax(2, floor(pow(2000, 1.0 / model->columns)));
    return regress_points_grid(points, model, grid, error);
}

static int read_model(const regress_options *o, regress_model *model, io_error *error)
{
    const size_t bytes = strlen(o->x) + 1;
    char *list = malloc(bytes);
    if (!list) return io_fail(error, EXIT_INTERNAL, "out of memory");
    memcpy(list, o->x, bytes);
    const char *names[REGRESS_COLUMNS_MAX + 1];
    int status = split_columns(list, names, &model->columns, error);
    if (!status) {
        names[model->columns] = o->y;
        status = csv_read_with(&model->raw, o->path, names, model->columns + 1, CSV_DROP_ROW, error);
    }
    free(list);
    if (!status) status = check_distinct(&model->raw, error);
    if (!status)
        status = regress_table_make(&model->table, model->raw.values,
                                    model->raw.values + model->columns * model->raw.rows, model->raw.rows,
                                    model->columns, (const char *const *)model->raw.names, error);
    return status;
}

static int estimate(const regress_options *o, regress_model *model, io_error *error)
{
    int status = regress_sample_make(&model->sample, model->raw.rows, (uint64_t)o->seed, error);
    if (!status && model->chosen) {
        status = regress_choose_bandwidth(&model->table, model->with[0], &model->sample, model->wanted,
                                          model->choice, error);
        for (int e = 0; !status && e < REGRESS_ESTIMATORS; e++)
            if (model->wanted[e]) model->with[e].bandwidth = model->choice[e].bandwidth;
    }
    for (int e = 0; !status && e < REGRESS_ESTIMATORS; e++)
        if (model->wanted[e])
            status = regress_estimate_noise(&model->table, model->with[e], &model->sample,
                                            (regress_estimator)e, &model->noise[e], error);
    return status;
}

/* The predictions take their name last: a picture that fails leaves neither. */
static int write_results(const regress_options *o, const regress_model *model, const regress_points *points,
                         out_file *out, io_error *error)
{
    regress_write_csv(model, points, out_stream(out));
    int status = out_finish(out, error);
    if (!status && o->plot) status = regress_picture(model, o->plot, error);
    if (status) {
        out_discard(out);
        return status;
    }
    return out_commit(out, error);
}

static int run(const regress_options *o, regress_model *model, regress_points *points, io_error *error)
{
    out_file *out = NULL;
    int status = choose_estimators(o, model, error);
    if (!status) status = choose_smoothers(o, model, error);
    if (!status && o->plot) status = plot_check(o->plot, error);
    if (!status) status = read_model(o, model, error);
    if (!status) status = make_points(o, model, points, error);
    if (!status) status = out_open(&out, o->out, error);
    if (!status) status = estimate(o, model, error);
    if (!status) status = regress_predict(model, points, "prediction", error);
    if (status) {
        out_discard(out);
        return status;
    }
    status = write_results(o, model, points, out, error);
    if (!status) regress_print_summary(model, points, o->path, strcmp(o->out, "-") ? stdout : stderr);
    return status;
}

int command_regress(int argc, char **argv)
{
    regress_options options = {
        .bandwidth = "auto", .estimator = "both", .out = "-", .level = 0.95, .seed = 1
    };
    io_error error;
    int status = parse(&options, argc, argv, &error);
    if (!status && !options.help) {
        regress_model model = { .level = options.level, .reach = regress_reach(options.level) };
        regress_points points = { 0 };
        status = run(&options, &model, &points, &error);
        regress_points_free(&points);
        regress_sample_free(&model.sample);
        regress_table_free(&model.table);
        csv_table_free(&model.raw);
    }
    return status ? options_report("regress", &error) : EXIT_OK;
}
