/* SPDX-License-Identifier: MIT
 * Cholesky factor A = L L^T of a small dense symmetric positive definite matrix and the solve, float64, from
 * the equations: for the references, which share nothing with kernels (those have base/cholesky.h). */
#ifndef LOAM_EXACT_CHOLESKY_H
#define LOAM_EXACT_CHOLESKY_H

#include <math.h>
#include <stdint.h>

static inline double exact_dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* a: lower triangle of A [n][n], becomes L. Returns 0, or 1 + the first column whose pivot is not above
 * `least`. */
static inline int64_t exact_factor(double *a, int64_t n, double least)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < r; c++)
            a[r * n + c] = (a[r * n + c] - exact_dot(a + r * n, a + c * n, c)) / a[c * n + c];
        const double pivot = a[r * n + r] - exact_dot(a + r * n, a + r * n, r);
        if (!(pivot > least)) return r + 1;
        a[r * n + r] = sqrt(pivot);
    }
    return 0;
}

/* x <- A^-1 x, from L: L y = x, then L^T x = y. */
static inline void exact_solve(const double *l, int64_t n, double *x)
{
    for (int64_t r = 0; r < n; r++)
        x[r] = (x[r] - exact_dot(l + r * n, x, r)) / l[r * n + r];
    for (int64_t r = n - 1; r >= 0; r--) {
        for (int64_t t = r + 1; t < n; t++)
            x[r] -= l[t * n + r] * x[t];
        x[r] /= l[r * n + r];
    }
}

#endif
