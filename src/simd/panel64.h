/* SPDX-License-Identifier: MIT
 * Panels of doubles, [rows][GROUP], and their matrix product: panel.h in float64, with fewer lanes. */
#ifndef LOAM_SIMD_PANEL64_H
#define LOAM_SIMD_PANEL64_H

#include "src/simd/vec.h"

#include <stdbool.h>

enum { GROUP = 16 };

/* The register block, as in panel.h; of 32 registers it leaves room for rows that divide a tile of keys. */
#if defined __AVX512F__
enum { PANEL64_ROWS = 8, PANEL64_VECS = 2 };
#else
enum { PANEL64_ROWS = 6, PANEL64_VECS = 2 };
#endif

VEC_INLINE void panel64_rows(const int rows, double *restrict c, const double *restrict a, int64_t row_stride,
                             int64_t t_stride, const double *restrict b, int64_t t_count, bool add)
{
    for (int m = 0; m < GROUP; m += PANEL64_VECS * VL64) {
        vec64 sum[PANEL64_ROWS][PANEL64_VECS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (int n = 0; n < PANEL64_VECS; n++)
                sum[r][n] = add ? v64_load(c + r * GROUP + m + n * VL64) : v64_set(0);
        }
        for (int64_t t = 0; t < t_count; t++) {
            vec64 x[PANEL64_VECS];
#pragma GCC unroll 2
            for (int n = 0; n < PANEL64_VECS; n++)
                x[n] = v64_load(b + t * GROUP + m + n * VL64);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const vec64 y = v64_set(a[r * row_stride + t * t_stride]);
#pragma GCC unroll 2
                for (int n = 0; n < PANEL64_VECS; n++)
                    sum[r][n] += y * x[n];
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (int n = 0; n < PANEL64_VECS; n++)
                v64_store(c + r * GROUP + m + n * VL64, sum[r][n]);
        }
    }
}

/* As panel_product, GROUP doubles wide. */
static inline void panel64_product(double *restrict c, int64_t rows, const double *restrict a,
                                   int64_t row_stride, int64_t t_stride, const double *restrict b,
                                   int64_t t_count, bool add)
{
    int64_t r = 0;
    for (; r + PANEL64_ROWS <= rows; r += PANEL64_ROWS)
        panel64_rows(PANEL64_ROWS, c + r * GROUP, a + r * row_stride, row_stride, t_stride, b, t_count, add);
    for (; r < rows; r++)
        panel64_rows(1, c + r * GROUP, a + r * row_stride, row_stride, t_stride, b, t_count, add);
}

#endif
