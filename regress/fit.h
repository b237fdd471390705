/* SPDX-License-Identifier: MIT
 * Local constant and local linear regression with a Gaussian kernel, in float64.
 *
 * The constant fit is softmax attention with the RBF score, the linear fit is Local Linear Attention with it:
 * with p_j the normalised weights, z_j = (x_j - q) / h, zbar = sum p z, C = sum p (z - zbar)(z - zbar)^T,
 *
 *     fit = sum_j l_j y_j,   l_j = p_j (1 - rho . (z_j - zbar)),   (C + ridge I) rho = zbar
 *
 * and rho = 0 for the constant. The ridge is relative to normalised weights, in units of the bandwidth. */
#ifndef LOAM_REGRESS_FIT_H
#define LOAM_REGRESS_FIT_H

#include "regress/table.h"
#include "regress/watch.h"

typedef enum regress_estimator { REGRESS_CONSTANT, REGRESS_LINEAR, REGRESS_ESTIMATORS } regress_estimator;

/* "constant", "linear", NULL. */
extern const char *const regress_names[REGRESS_ESTIMATORS + 1];

typedef struct regress_smoother {
    double bandwidth;           /* h, > 0, in the units of the table */
    double ridge;               /* >= 0 */
    int threads;                /* >= 1; results are the same bits for any number */
    const regress_watch *watch; /* or NULL */
} regress_smoother;

typedef struct regress_fit {
    double value;
    double norm2;  /* sum_j l_j^2: the variance of value over that of y */
    double own;    /* at the x of a row: l of that row */
    double weight; /* sum_j w_j: 1 for each row at the point itself */
    bool far;      /* all weights underflow or nearly so (no row within some 6 bandwidths): they are then
                      taken relative to the nearest row's, which is the same fit in exact arithmetic */
    bool singular; /* linear: C + ridge I is singular, as with fewer than columns + 1 distinct rows in
                      reach; value is that of the constant, and the slopes are NaN */
} regress_fit;

typedef struct regress_wish {
    regress_fit *fits[REGRESS_ESTIMATORS]; /* [count], or NULL where an estimator is not wanted */
    double *slopes;                        /* [columns, count] of the line, in units of the table; or NULL */
    bool squares;                          /* norm2 is wanted */
} regress_wish;

/* points: [columns, count], standardised. The watch gets a step per point. Through bins where the table has
 * them; out of memory is the one error. */
int regress_fit_points(const regress_table *table, regress_smoother with, const double *points, int64_t count,
                       const regress_wish *wish, io_error *error);

/* The fits at rows[i] from all the other rows (count of them); norm2 and own are not computed. */
int regress_fit_others(const regress_table *table, regress_smoother with, const int64_t *rows, int64_t count,
                       regress_fit *const fits[REGRESS_ESTIMATORS], io_error *error);

#endif
