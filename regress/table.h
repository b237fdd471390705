/* SPDX-License-Identifier: MIT
 * The table in the units of the fit: each x column less its mean and over its unit, y less its mean. The
 * unit is the standard deviation unless the columns have bandwidths of their own: one bandwidth then means
 * the right thing for all columns, and sums lose no digits to a far origin. */
#ifndef LOAM_REGRESS_TABLE_H
#define LOAM_REGRESS_TABLE_H

#include "io/error.h"
#include "regress/sums.h"

typedef struct regress_table {
    regress_rows rows; /* standardised */
    double *x, *y;     /* what rows points to */
    double mean[REGRESS_COLUMNS_MAX], deviation[REGRESS_COLUMNS_MAX], unit[REGRESS_COLUMNS_MAX];
    double least[REGRESS_COLUMNS_MAX], most[REGRESS_COLUMNS_MAX]; /* of the raw values */
    double y_mean, y_deviation;
    int bins;              /* per bandwidth, 0: none, the rows themselves */
    regress_sorted sorted; /* where there are bins */
} regress_table;

/* Copies. x: [columns, rows], columns <= REGRESS_COLUMNS_MAX. names: of the x columns, then of y. A constant
 * x column is an error, as is one row. On failure *table is all zero. */
int regress_table_make(regress_table *table, const double *x, const double *y, int64_t rows, int columns,
                       const char *const *names, io_error *error);
void regress_table_free(regress_table *table);

/* units[c] becomes that of column c. */
void regress_table_stretch(regress_table *table, const double *units);
/* From now on fits go through bins; one column. */
int regress_table_bin(regress_table *table, int per_bandwidth, io_error *error);

static inline double regress_standardise(const regress_table *table, int column, double value)
{
    return (value - table->mean[column]) / table->unit[column];
}

#endif
