/* SPDX-License-Identifier: MIT
 * Cholesky factor A = L L^T of a small dense symmetric positive definite matrix, and the solve; float64. */
#ifndef LOAM_BASE_CHOLESKY_H
#define LOAM_BASE_CHOLESKY_H

#include <math.h>
#include <stdint.h>

static inline double cholesky_dot(const double *restrict x, const double *restrict y, int64_t n)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* a: lower triangle of A [n][n], row stride n; overwritten by L, with 1 / L_cc on the diagonal.
 * Returns 0, or 1 + the first column whose pivot is not above `least`. */
static inline int64_t cholesky_factor(double *a, int64_t n, double least)
{
    for (int64_t r = 0; r < n; r++) {
        double *row = a + r * n;
        for (int64_t c = 0; c < r; c++)
            row[c] = (row[c] - cholesky_dot(row, a + c * n, c)) * a[c * n + c];
        const double pivot = row[r] - cholesky_dot(row, row, r);
        if (!(pivot > least)) return r + 1;
        row[r] = 1.0 / sqrt(pivot);
    }
    return 0;
}

/* x <- A^-1 x, from the factor l of cholesky_factor. */
static inline void cholesky_solve(const double *restrict l, int64_t n, double *restrict x)
{
    for (int64_t r = 0; r < n; r++)
        x[r] = (x[r] - cholesky_dot(l + r * n, x, r)) * l[r * n + r];
    for (int64_t r = n - 1; r >= 0; r--) {
        x[r] *= l[r * n + r];
        for (int64_t c = 0; c < r; c++)
            x[c] -= l[r * n + c] * x[r];
    }
}

#endif
