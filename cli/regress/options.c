/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/regress/options.h"

#include "cli/files.h"
#include "cli/options.h"
#include "cli/plot.h"
#include "loam.h"

#include <stdlib.h>
#include <string.h>

static const char usage[] = "loam regress TABLE.csv --x COLS --y COL [options]";

static const char about[] =
    "Local regression of the column y on the columns x, with a Gaussian kernel: a constant around each point "
    "(Nadaraya-Watson: softmax attention with the RBF score) and a line (Local Linear Attention with it).\n\n"
    "TABLE.csv is separated by commas, semicolons or tabs; - is standard input. Rows with a missing value "
    "are left out. Bandwidths are in the units of their column; `auto` chooses, for each estimator by "
    "itself, what predicts left-out rows best. Predictions are CSV: the x columns, then for each estimator "
    "its fit, standard error and band, then a note: `singular` (the linear fit needs more distinct rows in "
    "reach; the constant stands there), `far` (no row within some 6 bandwidths) or `no data` (a point of a "
    "grid of several columns without rows around it: its fields are empty).\n\n"
    "Exit status: 0 done, 1 a bug or too little memory, 2 wrong options, 3 wrong input, 4 output not "
    "written.";

/* As given; numbers that were not are NAN or -1. */
typedef struct raw_options {
    const char *x, *bandwidth, *estimator, *delimiter;
    bool slopes, no_se;
    double ridge, level;
    int64_t threads, seed, bins;
} raw_options;

static int parse_rows(regress_options *o, raw_options *raw, int argc, char **argv, io_error *error)
{
    const option_row rows[] = {
        { "x", OPTION_TEXT, &raw->x, 0, 0, "COLS", "names or numbers of the x columns, with commas between" },
        { "y", OPTION_TEXT, &o->y, 0, 0, "COL", "name or number of the y column" },
        { "by", OPTION_TEXT, &o->by, 0, 0, "COL",
          "one fit for each value of this column, in order of appearance" },
        { "delimiter", OPTION_TEXT, &raw->delimiter, 0, 0, "D",
          "of the tables: ',', ';' or tab; default: told by the content" },
        { "grid", OPTION_INT, &o->grid, 2, 1e7, "N",
          "predict at N values of each x column in all combinations; default 200, fewer with more columns" },
        { "at", OPTION_TEXT, &o->at, 0, 0, "FILE",
          "predict at the rows of this CSV file, which has the x columns" },
        { "bandwidth", OPTION_TEXT, &raw->bandwidth, 0, 0, "H|COL=H,...|auto",
          "in the units of the column, or in its standard deviations where H ends in sd (0.5sd); one H is "
          "for every x column. Default auto: leave-one-out cross-validation" },
        { "ridge", OPTION_REAL, &raw->ridge, 0, 1e300, "X",
          "shrinks the slope: added to the covariance of the x in reach, in squared bandwidths. Default 0" },
        { "estimator", OPTION_TEXT, &raw->estimator, 0, 0, "E", "constant, linear or both (default)" },
        { "bins", OPTION_INT, &raw->bins, 0, REGRESS_BINS_MOST, "N",
          "one x column: N bins per bandwidth, 0 for none; default 4 above 10000 rows, else 0" },
        { "slopes", OPTION_FLAG, &raw->slopes, 0, 0, NULL, "also the slopes of the local line" },
        { "no-se", OPTION_FLAG, &raw->no_se, 0, 0, NULL, "no standard errors and bands, in less time" },
        { "level", OPTION_REAL, &raw->level, 0.01, 0.999999, "X", "of the bands, default 0.95" },
        { "out", OPTION_TEXT, &o->out, 0, 0, "F", "the predictions; default -, standard output" },
        { "json", OPTION_TEXT, &o->json, 0, 0, "F",
          "the summary as JSON too; -: on standard output in place of the text" },
        { "plot", OPTION_TEXT, &o->plot, 0, 0, "F", "a picture, .svg or .png" },
        { "threads", OPTION_INT, &raw->threads, 1, 4096, "N", "default: all" },
        { "seed", OPTION_INT, &raw->seed, 0, 9e15, "N",
          "of the sample of rows that large tables use; default 1" },
        { 0 }
    };
    const int status = options_parse(&argc, argv, rows, usage, about, &o->help, error);
    if (status || o->help) return status;
    if (argc < 2) return io_fail(error, EXIT_USAGE, "which table? usage: %s", usage);
    if (argc > 2) return io_fail(error, EXIT_USAGE, "unexpected argument '%s'; usage: %s", argv[2], usage);
    if (!raw->x || !o->y)
        return io_fail(error, EXIT_USAGE, "--%s is missing; usage: %s", raw->x ? "y" : "x", usage);
    if (o->at && o->grid) return io_fail(error, EXIT_USAGE, "--at and --grid exclude each other");
    o->path = argv[1];
    return EXIT_OK;
}

/* Splits x at commas. */
static int split_columns(regress_options *o, const char *x, io_error *error)
{
    o->list = strdup(x);
    if (!o->list) return io_fail(error, EXIT_INTERNAL, "out of memory");
    for (char *next = o->list; next; o->column_count++) {
        if (o->column_count == REGRESS_COLUMNS_MAX)
            return io_fail(error, EXIT_USAGE, "--x: more than %d columns", REGRESS_COLUMNS_MAX);
        o->columns[o->column_count] = next;
        next = strchr(next, ',');
        if (next) *next++ = '\0';
        if (!*o->columns[o->column_count]) return io_fail(error, EXIT_USAGE, "--x: an empty column name");
    }
    o->columns[o->column_count] = o->y;
    return EXIT_OK;
}

/* ---- single options */

static int choose_estimators(regress_settings *set, const char *estimator, io_error *error)
{
    static const char *const names[] = { "constant", "linear", "both", NULL };
    const int choice = options_choice(estimator, names);
    if (choice < 0) {
        const char *nearest = options_nearest(estimator, names);
        return io_fail(error, EXIT_USAGE, "--estimator '%s': expected constant, linear or both%s%s%s",
                       estimator, nearest ? "; did you mean '" : "", nearest ? nearest : "",
                       nearest ? "'?" : "");
    }
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        set->wanted[e] = choice == e || choice == REGRESS_ESTIMATORS;
    return EXIT_OK;
}

static int choose_delimiter(regress_options *o, const char *text, io_error *error)
{
    static const char *const names[] = { ",", ";", "tab", NULL };
    if (!text) return EXIT_OK;
    const int choice = options_choice(text, names);
    if (choice < 0) return io_fail(error, EXIT_USAGE, "--delimiter '%s': expected ',', ';' or tab", text);
    o->delimiter = ",;\t"[choice];
    return EXIT_OK;
}

/* "0.5" or "0.5sd", up to `end`. */
static int take_bandwidth(regress_settings *set, int column, const char *text, const char *end,
                          io_error *error)
{
    char *stop;
    const double value = strtod(text, &stop);
    set->bandwidth[column] = value;
    set->deviations[column] = end - stop == 2 && !strncmp(stop, "sd", 2);
    if (stop > text && (stop == end || set->deviations[column]) && value > 0 && value <= 1e300)
        return EXIT_OK;
    return io_fail(error, EXIT_USAGE,
                   "--bandwidth '%.*s': expected auto or a number above 0, with sd behind it for standard "
                   "deviations; with several columns also COL=H,COL=H",
                   (int)(end - text), text);
}

/* Index among the x columns of the name before the last '=' of the entry, or an error. */
static int find_column(const regress_options *o, const char *entry, const char *equals, io_error *error)
{
    const size_t length = (size_t)(equals - entry);
    for (int c = 0; c < o->column_count; c++)
        if (strlen(o->columns[c]) == length && !strncmp(o->columns[c], entry, length)) return c;
    io_fail(error, EXIT_USAGE, "--bandwidth: '%.*s' is not among the columns of --x", (int)length, entry);
    return -1;
}

static const char *last_equals(const char *entry, const char *end)
{
    while (end > entry && *end != '=')
        end--;
    return *end == '=' ? end : NULL;
}

/* COL=H,COL=H: each column once. */
static int take_bandwidths(regress_options *o, const char *text, io_error *error)
{
    for (const char *entry = text, *next; entry; entry = next) {
        const char *end = strchr(entry, ',');
        next = end ? end + 1 : NULL;
        if (!end) end = entry + strlen(entry);
        const char *equals = last_equals(entry, end);
        if (!equals)
            return io_fail(error, EXIT_USAGE, "--bandwidth '%.*s': expected COL=H", (int)(end - entry),
                           entry);
        const int column = find_column(o, entry, equals, error);
        if (column < 0) return EXIT_USAGE;
        if (o->set.bandwidth[column] > 0)
            return io_fail(error, EXIT_USAGE, "--bandwidth: column '%s' is given twice", o->columns[column]);
        const int status = take_bandwidth(&o->set, column, equals + 1, end, error);
        if (status) return status;
    }
    for (int c = 0; c < o->column_count; c++)
        if (!(o->set.bandwidth[c] > 0))
            return io_fail(error, EXIT_USAGE, "--bandwidth: column '%s' has none", o->columns[c]);
    return EXIT_OK;
}

static int choose_bandwidths(regress_options *o, const char *text, io_error *error)
{
    o->set.chosen = !strcmp(text, "auto");
    if (o->set.chosen) return EXIT_OK;
    if (strchr(text, '=')) return take_bandwidths(o, text, error);
    int status = EXIT_OK;
    for (int c = 0; !status && c < o->column_count; c++)
        status = take_bandwidth(&o->set, c, text, text + strlen(text), error);
    return status;
}

/* ---- what excludes what */

static int check_settings(const regress_options *o, const raw_options *raw, io_error *error)
{
    if (o->set.slopes && !o->set.wanted[REGRESS_LINEAR])
        return io_fail(error, EXIT_USAGE, "--slopes are of the line: --estimator constant has none");
    if (raw->no_se && !isnan(raw->level))
        return io_fail(error, EXIT_USAGE, "--level is of the bands, which --no-se leaves out");
    if (raw->bins > 0 && o->column_count > 1)
        return io_fail(error, EXIT_USAGE, "--bins %lld: expected one x column, not %d", (long long)raw->bins,
                       o->column_count);
    return EXIT_OK;
}

static int check_files(const regress_options *o, io_error *error)
{
    const named_file inputs[] = { { "the table", o->path }, { "--at", o->at }, { NULL, NULL } };
    const named_file outputs[] = {
        { "--out", o->out }, { "--json", o->json }, { "--plot", o->plot }, { NULL, NULL }
    };
    if (o->at && !strcmp(o->path, "-") && !strcmp(o->at, "-"))
        return io_fail(error, EXIT_USAGE, "--at -: standard input is the table already");
    if (o->json && !strcmp(o->json, "-") && !strcmp(o->out, "-"))
        return io_fail(error, EXIT_USAGE, "--json -: the predictions go to standard output; give --out F");
    const int status = o->plot ? plot_check(o->plot, error) : EXIT_OK;
    return status ? status : files_check(inputs, outputs, error);
}

int regress_options_parse(regress_options *o, int argc, char **argv, io_error *error)
{
    raw_options raw = { .bandwidth = "auto", .estimator = "both", .level = NAN, .seed = 1, .bins = -1 };
    *o = (regress_options){ .out = "-" };
    int status = parse_rows(o, &raw, argc, argv, error);
    if (status || o->help) return status;
    const double level = isnan(raw.level) ? 0.95 : raw.level;
    o->set = (regress_settings){ .errors = !raw.no_se,
                                 .slopes = raw.slopes,
                                 .level = level,
                                 .reach = regress_reach(level),
                                 .ridge = raw.ridge,
                                 .threads = raw.threads ? (int)raw.threads : loam_max_threads(),
                                 .bins = (int)raw.bins,
                                 .seed = (uint64_t)raw.seed };
    status = split_columns(o, raw.x, error);
    if (!status) status = choose_estimators(&o->set, raw.estimator, error);
    if (!status) status = choose_delimiter(o, raw.delimiter, error);
    if (!status) status = choose_bandwidths(o, raw.bandwidth, error);
    if (!status) status = check_settings(o, &raw, error);
    return status ? status : check_files(o, error);
}

void regress_options_free(regress_options *o) { free(o->list); }
