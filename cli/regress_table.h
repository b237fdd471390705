/* SPDX-License-Identifier: MIT
 * The table in the units of the fit: each x column less its mean and over its standard deviation, y less its
 * mean. One bandwidth then means the same for all columns, and sums lose no digits to a far origin. */
#ifndef LOAM_CLI_REGRESS_TABLE_H
#define LOAM_CLI_REGRESS_TABLE_H

#include "cli/regress_sums.h"
#include "io/error.h"

typedef struct regress_table {
    regress_rows rows; /* standardised */
    double *x, *y;     /* what rows points to */
    double mean[REGRESS_COLUMNS_MAX], deviation[REGRESS_COLUMNS_MAX];
    double least[REGRESS_COLUMNS_MAX], most[REGRESS_COLUMNS_MAX]; /* of the raw values */
    double y_mean, y_deviation;
} regress_table;

/* Copies. x: [columns, rows], columns <= REGRESS_COLUMNS_MAX. names: of the x columns, then of y. A constant
 * x column is an error, as is one row. On failure *table is all zero. */
int regress_table_make(regress_table *table, const double *x, const double *y, int64_t rows, int columns,
                       const char *const *names, io_error *error);
void regress_table_free(regress_table *table);

static inline double regress_standardise(const regress_table *table, int column, double value)
{
    return (value - table->mean[column]) / table->deviation[column];
}

#endif
