/* SPDX-License-Identifier: MIT
 * Cholesky factor A = U^T U in float64, U in the upper triangle, and solves; loops run along rows. */
#ifndef LOAM_SIMD_FACTOR64_H
#define LOAM_SIMD_FACTOR64_H

#include "src/simd/product64.h"

/* Overwrites the upper triangle of a [n][stride] with U; stride is a multiple of VL64, and entries below
 * the diagonal are overwritten with intermediate values. Returns false if a pivot is not above `least`. */
static inline bool factor64(double *restrict a, int64_t stride, int64_t n, double least)
{
    for (int64_t k = 0; k < n; k++) {
        double *restrict row = a + k * stride;
        if (!(row[k] > least)) return false;
        const double inverse = 1 / sqrt(row[k]);
        for (int64_t c = k; c < n; c++)
            row[c] *= inverse;
        for (int64_t r = k + 1; r < n; r++) {
            double *restrict rest = a + r * stride;
            const double factor = row[r];
            for (int64_t c = r / VL64 * VL64; c < stride; c += VL64)
                v64_store(rest + c, v64_load(rest + c) - v64_load(row + c) * factor);
        }
    }
    return true;
}

/* rows [n][width] <- U^-T rows by forward substitution; `row` [width] is scratch. */
static inline void factor64_rows(const double *u, int64_t stride, int64_t n, double *rows, int64_t width,
                                 double *row)
{
    for (int64_t i = 0; i < n; i++) {
        const matrix64 column = { u + i, 0, stride };
        const double inverse = 1 / u[i * stride + i];
        product64(row, width, 1, column, rows, width, i, width, false);
        for (int64_t c = 0; c < width; c++)
            rows[i * width + c] = (rows[i * width + c] - row[c]) * inverse;
    }
}

/* x <- A^-1 x: forward substitution with U^T, backward substitution with U. */
static inline void factor64_solve(const double *restrict u, int64_t stride, int64_t n, double *restrict x)
{
    for (int64_t i = 0; i < n; i++) {
        const double *row = u + i * stride, now = x[i] / row[i];
        x[i] = now;
#pragma omp simd
        for (int64_t c = i + 1; c < n; c++)
            x[c] -= row[c] * now;
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        const double *row = u + i * stride;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = i + 1; c < n; c++)
            sum += row[c] * x[c];
        x[i] = (x[i] - sum) / row[i];
    }
}

#endif
