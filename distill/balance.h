/* SPDX-License-Identifier: MIT
 * Shift and balance of a head (docs/distill.md): two changes of queries and keys that leave softmax as it is,
 * and make its estimate by positive features less noisy. All float64. */
#ifndef LOAM_DISTILL_BALANCE_H
#define LOAM_DISTILL_BALANCE_H

#include "dof/degrees.h"

/* Sums over queries or keys, each times the root of the scale of scores. */
typedef struct moments {
    int64_t count, channels;
    double *first, *second; /* [channels], [channels][channels] */
} moments;

/* On failure *m is all zero. */
int moments_open(moments *m, int64_t channels, io_error *error);
void moments_close(moments *m);
/* Adds `count` rows, `row` apart, times `factor`. */
void moments_add(moments *m, const float *x, int64_t row, int64_t count, double factor);

/* r = (mean x + mean y) / factor, where queries and keys were multiplied by `factor`. */
void balance_shift(const moments *x, const moments *y, double factor, double *r);
/* A = A^T and B = A^-1 [channels][channels] that make second moments of A x and B (y - factor r) equal; r as
 * above, or NULL for 0. An error where LAPACK finds no eigenvalues, as of moments that are no numbers. */
int balance_matrices(const moments *x, const moments *y, double factor, const double *r, double *a, double *b,
                     io_error *error);

#endif
