/* SPDX-License-Identifier: MIT */
#include "regress/model.h"

#include <stdlib.h>
#include <string.h>

double regress_reach(double level)
{
    double low = 0, high = 40;
    for (int i = 0; i < 64; i++) {
        const double middle = 0.5 * (low + high);
        *(erfc(middle / sqrt(2)) > 1 - level ? &low : &high) = middle;
    }
    return 0.5 * (low + high);
}

/* ---- the model */

/* The bandwidths that were given: that of the first column becomes the one of the table, whose units carry
 * the others' ratios to it. */
static int take_bandwidths(regress_model *model, io_error *error)
{
    double shares[REGRESS_COLUMNS_MAX] = { 1 }, units[REGRESS_COLUMNS_MAX];
    for (int c = 0; c < model->columns; c++) {
        const double given = model->set->bandwidth[c], deviation = model->table.deviation[c];
        shares[c] = model->set->deviations[c] ? given : given / deviation;
        if (!(shares[c] >= 1e-100 && shares[c] <= 1e100))
            return io_fail(error, EXIT_USAGE,
                           "bandwidth: %g for column '%s' is not within 1e-100 and 1e100 of its standard "
                           "deviation, %g",
                           given, model->names[c], deviation);
        units[c] = deviation * (shares[c] / shares[0]);
    }
    if (model->columns > 1) regress_table_stretch(&model->table, units);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        model->with[e].bandwidth = shares[0];
    return EXIT_OK;
}

static int bins_of(const regress_model *model)
{
    if (model->set->bins >= 0) return model->set->bins;
    return model->columns == 1 && model->rows > REGRESS_BINNED_ROWS ? REGRESS_BINS_DEFAULT : 0;
}

int regress_model_make(regress_model *model, io_error *error)
{
    const double *y = model->values + model->columns * model->rows;
    int status = regress_table_make(&model->table, model->values, y, model->rows, model->columns,
                                    model->names, &model->why);
    if (status) return status == EXIT_INPUT ? EXIT_OK : io_fail(error, status, "%s", model->why.text);
    model->why.exit_status = EXIT_OK;
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        model->with[e] = (regress_smoother){ 1, model->set->ridge, model->set->threads, model->set->watch };
    if (!model->set->chosen) status = take_bandwidths(model, error);
    if (!status && bins_of(model)) status = regress_table_bin(&model->table, bins_of(model), error);
    if (!status) status = regress_sample_make(&model->sample, &model->table, model->set->seed, error);
    return status;
}

void regress_model_free(regress_model *model)
{
    regress_sample_free(&model->sample);
    regress_table_free(&model->table);
}

static int choose_bandwidths(regress_model *model, io_error *error)
{
    const int status = regress_choose_bandwidth(&model->table, model->with[0], &model->sample,
                                                model->set->wanted, model->choice, error);
    for (int e = 0; !status && e < REGRESS_ESTIMATORS; e++)
        if (model->set->wanted[e]) model->with[e].bandwidth = model->choice[e].bandwidth;
    return status;
}

int regress_model_estimate(regress_model *model, io_error *error)
{
    int status = model->set->chosen ? choose_bandwidths(model, error) : EXIT_OK;
    for (int e = 0; !status && e < REGRESS_ESTIMATORS; e++) {
        if (!model->set->wanted[e]) continue;
        model->noise[e] = (regress_noise){ .score = model->set->chosen ? model->choice[e].score : -1,
                                           .variance = -1,
                                           .parameters = -1 };
        if (model->set->errors)
            status = regress_estimate_noise(&model->table, model->with[e], &model->sample,
                                            (regress_estimator)e, &model->noise[e], error);
    }
    return status;
}

double regress_bandwidth_of(const regress_model *model, int estimator, int column)
{
    const bool as_given = !model->set->chosen && !model->set->deviations[column];
    return as_given ? model->set->bandwidth[column]
                    : model->with[estimator].bandwidth * model->table.unit[column];
}

/* ---- points */

int regress_points_make(regress_points *points, const regress_model *model, int64_t count, io_error *error)
{
    memset(points, 0, sizeof *points);
    points->count = count;
    size_t bytes;
    bool made = !__builtin_mul_overflow((size_t)count, sizeof(regress_fit) * REGRESS_COLUMNS_MAX, &bytes);
    if (made) points->x = malloc((size_t)count * (size_t)model->columns * sizeof(double));
    made = points->x != NULL;
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!model->set->wanted[e] || !made) continue;
        points->fits[e] = calloc((size_t)count, sizeof(regress_fit));
        made = points->fits[e] != NULL;
    }
    if (made && model->set->slopes) {
        points->slopes = malloc((size_t)count * (size_t)model->columns * sizeof(double));
        made = points->slopes != NULL;
    }
    if (made) return EXIT_OK;
    regress_points_free(points);
    return io_fail(error, EXIT_INTERNAL, "out of memory for %lld points", (long long)count);
}

void regress_points_free(regress_points *points)
{
    free(points->x);
    free(points->slopes);
    for (int e = 0; e < REGRESS_ESTIMATORS; e++)
        free(points->fits[e]);
    memset(points, 0, sizeof *points);
}

int regress_points_grid(regress_points *points, const regress_model *model, int64_t per_column,
                        io_error *error)
{
    const int64_t most = 10000000;
    int64_t count = 1;
    for (int c = 0; c < model->columns; c++) {
        if (count > most / per_column)
            return io_fail(error, EXIT_USAGE,
                           "a grid of %lld values in each of %d columns has more than %lld points",
                           (long long)per_column, model->columns, (long long)most);
        count *= per_column;
    }
    const int status = regress_points_make(points, model, count, error);
    if (status) return status;
    points->gaps = model->columns > 1;
    int64_t period = 1;
    for (int c = model->columns - 1; c >= 0; c--, period *= per_column) {
        const double least = model->table.least[c], most_here = model->table.most[c];
        for (int64_t i = 0; i < count; i++) {
            const double share = (double)(i / period % per_column) / (double)(per_column - 1);
            points->x[c * count + i] = (1 - share) * least + share * most_here;
        }
    }
    return EXIT_OK;
}

bool regress_has_data(const regress_points *points, int estimator, int64_t i)
{
    const regress_fit *fit = &points->fits[estimator][i];
    return !points->gaps || (fit->weight >= 0.5 && fit->norm2 <= 1 + 1e-9);
}

regress_tally regress_count_points(const regress_points *points, int estimator)
{
    regress_tally tally = { 0 };
    for (int64_t i = 0; i < points->count; i++) {
        const bool empty = !regress_has_data(points, estimator, i);
        tally.empty += empty;
        tally.far += !empty && points->fits[estimator][i].far;
        tally.singular += !empty && points->fits[estimator][i].singular;
    }
    return tally;
}

static void give_slopes_units(const regress_model *model, regress_points *points)
{
    for (int c = 0; c < model->columns; c++)
        for (int64_t i = 0; i < points->count; i++)
            points->slopes[c * points->count + i] /= model->table.unit[c];
}

static int predict(const regress_model *model, regress_points *points, const double *standard,
                   io_error *error)
{
    int status = EXIT_OK;
    for (int e = 0; !status && e < REGRESS_ESTIMATORS; e++) {
        if (!points->fits[e]) continue;
        regress_wish wish = { .squares = model->set->errors || points->gaps };
        wish.fits[e] = points->fits[e];
        wish.slopes = e == REGRESS_LINEAR ? points->slopes : NULL;
        status = regress_fit_points(&model->table, model->with[e], standard, points->count, &wish, error);
    }
    if (!status && points->slopes) give_slopes_units(model, points);
    return status;
}

int regress_predict(const regress_model *model, regress_points *points, const char *label, io_error *error)
{
    const int64_t cells = points->count * model->columns;
    double *standard = malloc((size_t)(cells ? cells : 1) * sizeof *standard);
    if (!standard)
        return io_fail(error, EXIT_INTERNAL, "out of memory for %lld points", (long long)points->count);
    for (int64_t i = 0; i < cells; i++)
        standard[i] = regress_standardise(&model->table, (int)(i / points->count), points->x[i]);
    regress_watch_begin(model->set->watch, label,
                        points->count * (model->set->wanted[0] + model->set->wanted[1]));
    const int status = predict(model, points, standard, error);
    regress_watch_end(model->set->watch);
    free(standard);
    return status;
}
