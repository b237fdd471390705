/* SPDX-License-Identifier: MIT
 * From a file to the models of its groups. */
#include "cli/regress/data.h"

#include <stdlib.h>
#include <string.h>

static int check_distinct(const csv_table *raw, io_error *error)
{
    for (int a = 0; a < raw->columns; a++) {
        bool twice = raw->label_column && !strcmp(raw->names[a], raw->label_column);
        for (int b = 0; b < a; b++)
            twice |= !strcmp(raw->names[a], raw->names[b]);
        if (twice) return io_fail(error, EXIT_USAGE, "column '%s' is given twice", raw->names[a]);
    }
    return EXIT_OK;
}

static void count_rows(regress_data *data)
{
    for (int64_t j = 0; j < data->raw.rows; j++)
        data->models[data->raw.label[j]].rows++;
}

/* Copies the rows of each group together, in their order. */
static void gather_rows(regress_data *data, int64_t *filled)
{
    const csv_table *raw = &data->raw;
    double *next = data->grouped;
    for (int g = 0; g < data->count; g++) {
        data->models[g].values = next;
        next += data->models[g].rows * raw->columns;
    }
    for (int64_t j = 0; j < raw->rows; j++) {
        const int g = raw->label[j];
        double *values = data->grouped + (data->models[g].values - data->grouped);
        for (int c = 0; c < raw->columns; c++)
            values[c * data->models[g].rows + filled[g]] = raw->values[c * raw->rows + j];
        filled[g]++;
    }
}

static int split_groups(regress_data *data, io_error *error)
{
    const csv_table *raw = &data->raw;
    int64_t *filled = calloc((size_t)data->count, sizeof *filled);
    data->grouped = malloc((size_t)raw->rows * (size_t)raw->columns * sizeof *data->grouped);
    if (!filled || !data->grouped) {
        free(filled);
        return io_fail(error, EXIT_INTERNAL, "out of memory for the groups of %lld rows",
                       (long long)raw->rows);
    }
    for (int g = 0; g < data->count; g++)
        data->models[g].group = raw->labels[g];
    count_rows(data);
    gather_rows(data, filled);
    free(filled);
    return EXIT_OK;
}

static int make_models(regress_data *data, const regress_settings *set, io_error *error)
{
    const csv_table *raw = &data->raw;
    data->count = raw->label_column ? raw->label_count : 1;
    data->models = calloc((size_t)data->count, sizeof *data->models);
    if (!data->models) return io_fail(error, EXIT_INTERNAL, "out of memory for %d groups", data->count);
    data->models[0].values = raw->values;
    const int status = raw->label_column ? split_groups(data, error) : EXIT_OK;
    if (status) return status;
    if (!raw->label_column) data->models[0].rows = raw->rows;
    for (int g = 0; g < data->count; g++) {
        data->models[g].set = set;
        data->models[g].names = (const char *const *)raw->names;
        data->models[g].columns = raw->columns - 1;
    }
    return EXIT_OK;
}

/* Groups that have no fit are told in the summary, unless no group has one. */
static int fit_models(regress_data *data, io_error *error)
{
    int fitted = 0;
    for (int g = 0; g < data->count; g++) {
        const int status = regress_model_make(&data->models[g], error);
        if (status) return status;
        fitted += regress_is_fitted(&data->models[g]);
    }
    if (fitted) return EXIT_OK;
    const regress_model *first = &data->models[0];
    if (!first->group) return io_fail(error, first->why.exit_status, "%s", first->why.text);
    return io_fail(error, EXIT_INPUT, "none of the %d groups of '%s' can be fitted; '%.60s': %s", data->count,
                   data->raw.label_column, first->group, first->why.text);
}

int regress_data_read(regress_data *data, const char *path, const csv_request *request,
                      const regress_settings *set, io_error *error)
{
    memset(data, 0, sizeof *data);
    int status = csv_read(&data->raw, path, request, error);
    if (!status) status = check_distinct(&data->raw, error);
    if (!status) status = make_models(data, set, error);
    if (!status) status = fit_models(data, error);
    if (status) regress_data_free(data);
    return status;
}

void regress_data_free(regress_data *data)
{
    for (int g = 0; data->models && g < data->count; g++)
        regress_model_free(&data->models[g]);
    free(data->models);
    free(data->grouped);
    csv_table_free(&data->raw);
    memset(data, 0, sizeof *data);
}
