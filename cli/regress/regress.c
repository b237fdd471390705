/* SPDX-License-Identifier: MIT */
#include "cli/command.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/regress/options.h"

#include <stdlib.h>
#include <string.h>

/* All there is of one run; points: of each model. */
typedef struct regress_run {
    const regress_options *o;
    regress_data data;
    regress_points *points;
    out_file *out, *json;
} regress_run;

static csv_request request_of(const regress_options *o)
{
    return (csv_request){ .columns = o->columns,
                          .column_count = o->column_count + 1,
                          .label = o->by,
                          .missing = CSV_DROP_ROW,
                          .delimiter = o->delimiter };
}

/* ---- points */

static int copy_points(const csv_table *at, const regress_model *model, regress_points *points,
                       io_error *error)
{
    const int status = regress_points_make(points, model, at->rows, error);
    if (!status) memcpy(points->x, at->values, (size_t)at->rows * (size_t)at->columns * sizeof *points->x);
    return status;
}

static int make_grid(const regress_options *o, const regress_model *model, regress_points *points,
                     io_error *error)
{
    int64_t grid = o->grid;
    if (!grid) grid = model->columns == 1 ? 200 : (int64_t)fmax(2, floor(pow(2000, 1.0 / model->columns)));
    return regress_points_grid(points, model, grid, error);
}

/* Each group predicts at all rows of --at, or at a grid of its own. */
static int make_points(regress_run *run, io_error *error)
{
    const regress_options *o = run->o;
    csv_table at = { 0 };
    csv_request request = request_of(o);
    request.columns = (const char *const *)run->data.raw.names;
    request.column_count = o->column_count;
    request.label = NULL;
    request.missing = CSV_MISSING_ERROR;
    int status = o->at ? csv_read(&at, o->at, &request, error) : EXIT_OK;
    run->points = calloc((size_t)run->data.count, sizeof *run->points);
    if (!status && !run->points) status = io_fail(error, EXIT_INTERNAL, "out of memory");
    for (int g = 0; !status && g < run->data.count; g++) {
        const regress_model *model = &run->data.models[g];
        if (!regress_is_fitted(model)) continue;
        status = o->at ? copy_points(&at, model, &run->points[g], error)
                       : make_grid(o, model, &run->points[g], error);
    }
    csv_table_free(&at);
    return status;
}

/* ---- from the table to the files */

static int prepare(regress_run *run, io_error *error)
{
    const regress_options *o = run->o;
    const csv_request request = request_of(o);
    int status = regress_data_read(&run->data, o->path, &request, &o->set, error);
    if (status) return status;
    if (o->plot && run->data.count > REGRESS_GROUPS_PICTURED)
        return io_fail(error, EXIT_USAGE, "--plot: '%s' has %d groups, and a picture shows at most %d",
                       run->data.raw.label_column, run->data.count, REGRESS_GROUPS_PICTURED);
    status = make_points(run, error);
    if (!status) status = out_open(&run->out, o->out, error);
    if (!status && o->json) status = out_open(&run->json, o->json, error);
    return status;
}

static int fit(regress_run *run, io_error *error)
{
    int status = EXIT_OK;
    for (int g = 0; !status && g < run->data.count; g++) {
        regress_model *model = &run->data.models[g];
        if (!regress_is_fitted(model)) continue;
        status = regress_model_estimate(model, error);
        if (!status) status = regress_predict(model, &run->points[g], "prediction", error);
    }
    return status;
}

static int commit(out_file **file, io_error *error)
{
    out_file *finished = *file;
    *file = NULL;
    return finished ? out_commit(finished, error) : EXIT_OK;
}

/* Names come last: what fails before leaves no file. */
static int write_results(regress_run *run, io_error *error)
{
    const regress_options *o = run->o;
    const char *path = strcmp(o->path, "-") ? o->path : "standard input";
    regress_write_csv(&run->data, run->points, out_stream(run->out));
    int status = out_finish(run->out, error);
    if (!status && run->json)
        status = regress_write_json(&run->data, run->points, path, out_stream(run->json), error);
    if (!status && run->json) status = out_finish(run->json, error);
    if (!status && o->plot) status = regress_picture(&run->data, o->plot, error);
    if (!status) status = commit(&run->json, error);
    if (!status) status = commit(&run->out, error);
    if (!status && !(o->json && !strcmp(o->json, "-")))
        regress_print_summary(&run->data, run->points, path, strcmp(o->out, "-") ? stdout : stderr);
    return status;
}

static int execute(const regress_options *o, io_error *error)
{
    regress_run run = { .o = o };
    int status = prepare(&run, error);
    if (!status) status = fit(&run, error);
    if (!status) status = write_results(&run, error);
    out_discard(run.out);
    out_discard(run.json);
    for (int g = 0; run.points && g < run.data.count; g++)
        regress_points_free(&run.points[g]);
    free(run.points);
    regress_data_free(&run.data);
    return status;
}

static void begin_bar(void *bar, const char *label, int64_t total) { progress_begin(bar, label, total); }
static void add_to_bar(void *bar, int64_t steps) { progress_add(bar, steps); }
static void end_bar(void *bar) { progress_end(bar); }

int command_regress(int argc, char **argv)
{
    regress_options options;
    io_error error;
    int status = regress_options_parse(&options, argc, argv, &error);
    progress bar;
    const regress_watch watch = { begin_bar, add_to_bar, end_bar, &bar };
    options.set.watch = &watch;
    if (!status && !options.help) status = execute(&options, &error);
    regress_options_free(&options);
    return status ? options_report("regress", &error) : EXIT_OK;
}
