/* SPDX-License-Identifier: MIT
 * The summary as JSON: what the text says, and null for what is not known. */
#define _POSIX_C_SOURCE 200809L
#include "cli/regress/data.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Names in files may be no UTF-8: their bytes beyond ASCII then become question marks. */
static json_t *json_text(const char *text)
{
    if (!text) return json_null();
    json_t *string = json_string(text);
    char *ascii = string ? NULL : strdup(text);
    if (!ascii) return string;
    for (char *c = ascii; *c; c++)
        if ((unsigned char)*c > 127) *c = '?';
    string = json_string(ascii);
    free(ascii);
    return string;
}

static json_t *json_number(double value) { return value < 0 ? json_null() : json_real(value); }
static json_t *json_root(double square) { return json_number(square < 0 ? -1 : sqrt(square)); }

static json_t *json_bandwidths(const regress_model *model, int e)
{
    json_t *list = json_array();
    for (int c = 0; c < model->columns; c++) {
        const double bandwidth = regress_bandwidth_of(model, e, c);
        json_array_append_new(list, json_pack("{s:o, s:f, s:f}", "column", json_text(model->names[c]),
                                              "value", bandwidth, "standard_deviations",
                                              bandwidth / model->table.deviation[c]));
    }
    return list;
}

/* "smallest" or "largest" where the search ended at its border. */
static const char *limit_of(const regress_model *model, int e)
{
    if (!model->set->chosen) return NULL;
    return model->choice[e].smallest ? "smallest" : model->choice[e].largest ? "largest" : NULL;
}

static json_t *json_bins(const regress_model *model, int e)
{
    if (!model->table.bins) return json_null();
    const int64_t count = regress_bins_count(&model->table.sorted, model->with[e].bandwidth,
                                             model->table.bins);
    return json_pack("{s:i, s:I}", "per_bandwidth", model->table.bins, "count", (json_int_t)count);
}

static json_t *json_points(const regress_points *points, int e)
{
    const regress_tally tally = regress_count_points(points, e);
    return json_pack("{s:I, s:I, s:I, s:I}", "count", (json_int_t)points->count, "singular",
                     (json_int_t)tally.singular, "far", (json_int_t)tally.far, "no_data",
                     (json_int_t)tally.empty);
}

static json_t *json_estimate(const regress_model *model, const regress_points *points, int e)
{
    const regress_noise *noise = &model->noise[e];
    return json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "bandwidth", json_bandwidths(model, e),
                     "bandwidth_from", model->set->chosen ? "leave-one-out cross-validation" : "given",
                     "bandwidth_limit", json_text(limit_of(model, e)), "criterion", json_number(noise->score),
                     "leave_one_out_error", json_root(noise->score), "noise", json_root(noise->variance),
                     "effective_parameters", json_number(noise->parameters), "bins", json_bins(model, e),
                     "points", json_points(points, e));
}

static json_t *json_estimates(const regress_model *model, const regress_points *points)
{
    json_t *object = json_object();
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        if (model->set->wanted[e])
            json_object_set_new(object, regress_names[e], json_estimate(model, points, e));
    return object;
}

static json_t *json_model(const regress_model *model, const regress_points *points)
{
    const bool fitted = regress_is_fitted(model);
    return json_pack("{s:o, s:I, s:b, s:o, s:o, s:o}", "group", json_text(model->group), "rows",
                     (json_int_t)model->rows, "fitted", fitted, "reason",
                     fitted ? json_null() : json_text(model->why.text), "sampled_rows",
                     fitted ? json_integer(model->sample.count) : json_null(), "estimators",
                     fitted ? json_estimates(model, points) : json_null());
}

static json_t *json_names(const regress_data *data)
{
    json_t *list = json_array();
    for (int c = 0; c < data->raw.columns - 1; c++)
        json_array_append_new(list, json_text(data->raw.names[c]));
    return list;
}

static json_t *json_run(const regress_data *data, const regress_points *points, const char *path)
{
    const csv_table *raw = &data->raw;
    const regress_settings *set = data->models[0].set;
    const char delimiter[] = { raw->delimiter, 0 };
    json_t *fits = json_array();
    for (int g = 0; g < data->count; g++)
        json_array_append_new(fits, json_model(&data->models[g], &points[g]));
    return json_pack("{s:o, s:s, s:o, s:o, s:o, s:I, s:I, s:f, s:o, s:I, s:o}", "table", json_text(path),
                     "delimiter", delimiter, "x", json_names(data), "y",
                     json_text(raw->names[raw->columns - 1]), "by", json_text(raw->label_column), "rows",
                     (json_int_t)raw->rows, "rows_left_out_for_missing_values", (json_int_t)raw->dropped,
                     "ridge", set->ridge, "level", set->errors ? json_real(set->level) : json_null(), "seed",
                     (json_int_t)set->seed, "fits", fits);
}

int regress_write_json(const regress_data *data, const regress_points *points, const char *path, FILE *to,
                       io_error *error)
{
    json_t *root = json_run(data, points, path);
    if (!root) return io_fail(error, EXIT_INTERNAL, "out of memory for the JSON summary");
    const bool failed = json_dumpf(root, to, JSON_INDENT(2)) != 0;
    json_decref(root);
    if (failed || fputc('\n', to) == EOF)
        return io_fail(error, EXIT_OUTPUT, "the JSON summary could not be written");
    return EXIT_OK;
}
