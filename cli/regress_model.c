/* SPDX-License-Identifier: MIT */
#include "cli/regress_model.h"

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

int regress_points_make(regress_points *points, const regress_model *model, int64_t count, io_error *error)
{
    memset(points, 0, sizeof *points);
    points->count = count;
    size_t bytes;
    bool made = !__builtin_mul_overflow((size_t)count, sizeof(regress_fit) * REGRESS_COLUMNS_MAX, &bytes);
    if (made) points->x = malloc((size_t)count * (size_t)model->columns * sizeof(double));
    made = points->x != NULL;
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        if (!model->wanted[e] || !made) continue;
        points->fits[e] = calloc((size_t)count, sizeof(regress_fit));
        made = points->fits[e] != NULL;
    }
    if (made) return EXIT_OK;
    regress_points_free(points);
    return io_fail(error, EXIT_INTERNAL, "out of memory for %lld points", (long long)count);
}

void regress_points_free(regress_points *points)
{
    free(points->x);
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

int regress_predict(const regress_model *model, regress_points *points, const char *label, io_error *error)
{
    const int64_t cells = points->count * model->columns;
    double *standard = malloc((size_t)(cells ? cells : 1) * sizeof *standard);
    if (!standard)
        return io_fail(error, EXIT_INTERNAL, "out of memory for %lld points", (long long)points->count);
    for (int64_t i = 0; i < cells; i++)
        standard[i] = regress_standardise(&model->table, (int)(i / points->count), points->x[i]);
    progress bar;
    progress_begin(&bar, label, points->count * (model->wanted[0] + model->wanted[1]));
    for (int e = 0; e < REGRESS_ESTIMATORS; e++) {
        regress_fit *fits[REGRESS_ESTIMATORS] = { NULL };
        fits[e] = points->fits[e];
        if (fits[e]) regress_fit_at(&model->table, model->with[e], standard, points->count, fits, &bar);
    }
    progress_end(&bar);
    free(standard);
    return EXIT_OK;
}
