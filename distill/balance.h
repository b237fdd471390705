/* SPDX-License-Identifier: MIT
 * Shift and balance of a head (docs/distill.md): two changes of queries and keys that leave softmax as it is,
 * and make its estimate by positive features less noisy. All float64. */
#ifndef LOAM_DISTILL_BALANCE_H
#define LOAM_DISTILL_BALANCE_H

#include "dof/degrees.h"

/* Sums over queries or keys, each times the root of the scale of scores. */
typedef struct balance_sums {
    int64_t count, channels;
    double *first, *second; /* [channels], [channels][channels] */
} balance_sums;

/* On failure *m is all zero. */
int balance_open(balance_sums *m, int64_t channels, io_error *error);
void balance_close(balance_sums *m);
/* Adds `count` rows, `row` apart, times `factor`. */
void balance_add(balance_sums *m, const float *x, int64_t row, int64_t count, double factor);

/* r = (mean x + mean y) / factor, where queries and keys were multiplied by `factor`. */
void balance_shift(const balance_sums *x, const balance_sums *y, double factor, double *r);
/* A = A^T and B = A^-1 [channels][channels] that make second moments of A x and B (y - factor r) equal; r as
 * above, or NULL for 0. An error where LAPACK finds no eigenvalues, as of moments that are no numbers. */
int balance_matrices(const balance_sums *x, const balance_sums *y, double factor, const double *r, double *a,
                     double *b, io_error *error);

#endif
