/* SPDX-License-Identifier: MIT */
#include "regress/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct column_summary {
    double mean, deviation, least, most;
} column_summary;

/* The mean is of differences to the first value: it stays exact for equal ones. */
static column_summary summarise(const double *values, int64_t count)
{
    column_summary s = { .least = values[0], .most = values[0] };
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += values[i] - values[0];
        s.least = fmin(s.least, values[i]);
        s.most = fmax(s.most, values[i]);
    }
    s.mean = values[0] + sum / (double)count;
    for (int64_t i = 0; i < count; i++)
        squares += (values[i] - s.mean) * (values[i] - s.mean);
    s.deviation = sqrt(squares / (double)(count - 1));
    return s;
}

static int check_summary(const column_summary *s, const char *name, bool may_be_constant, io_error *error)
{
    if (s->least == s->most) {
        if (may_be_constant) return EXIT_OK;
        return io_fail(error, EXIT_INPUT, "column '%s' is constant: every value is %g", name, s->least);
    }
    if (isfinite(s->deviation) && s->deviation > 0) return EXIT_OK;
    return io_fail(error, EXIT_INPUT,
                   "column '%s': values from %g to %g have no standard deviation in float64", name, s->least,
                   s->most);
}

static int standardise_x(regress_table *table, const double *x, const char *const *names, io_error *error)
{
    const int64_t rows = table->rows.rows;
    for (int c = 0; c < table->rows.columns; c++) {
        const column_summary s = summarise(x + c * rows, rows);
        const int status = check_summary(&s, names[c], false, error);
        if (status) return status;
        table->mean[c] = s.mean, table->deviation[c] = table->unit[c] = s.deviation;
        table->least[c] = s.least, table->most[c] = s.most;
        for (int64_t j = 0; j < rows; j++)
            table->x[c * rows + j] = regress_standardise(table, c, x[c * rows + j]);
    }
    return EXIT_OK;
}

static int centre_y(regress_table *table, const double *y, const char *name, io_error *error)
{
    const column_summary s = summarise(y, table->rows.rows);
    const int status = check_summary(&s, name, true, error);
    table->y_mean = s.mean, table->y_deviation = s.deviation;
    for (int64_t j = 0; j < table->rows.rows; j++)
        table->y[j] = y[j] - s.mean;
    return status;
}

int regress_table_make(regress_table *table, const double *x, const double *y, int64_t rows, int columns,
                       const char *const *names, io_error *error)
{
    memset(table, 0, sizeof *table);
    if (rows < 2) return io_fail(error, EXIT_INPUT, "a fit needs at least 2 rows, not %lld", (long long)rows);
    size_t cells;
    if (!__builtin_mul_overflow((size_t)rows, sizeof(double) * (size_t)columns, &cells)) {
        table->x = malloc(cells);
        table->y = malloc((size_t)rows * sizeof(double));
    }
    int status = EXIT_OK;
    if (!table->x || !table->y)
        status = io_fail(error, EXIT_INTERNAL, "out of memory for %lld rows", (long long)rows);
    table->rows = (regress_rows){ table->x, table->y, rows, columns };
    if (!status) status = standardise_x(table, x, names, error);
    if (!status) status = centre_y(table, y, names[columns], error);
    if (status) regress_table_free(table);
    return status;
}

void regress_table_stretch(regress_table *table, const double *units)
{
    const int64_t rows = table->rows.rows;
    for (int c = 0; c < table->rows.columns; c++) {
        for (int64_t j = 0; j < rows; j++)
            table->x[c * rows + j] *= table->unit[c] / units[c];
        table->unit[c] = units[c];
    }
}

int regress_table_bin(regress_table *table, int per_bandwidth, io_error *error)
{
    table->bins = per_bandwidth;
    return regress_sorted_make(&table->sorted, table->x, table->y, table->rows.rows, error);
}

void regress_table_free(regress_table *table)
{
    regress_sorted_free(&table->sorted);
    free(table->x);
    free(table->y);
    memset(table, 0, sizeof *table);
}
