/* SPDX-License-Identifier: MIT
 * The matrix product of panel.h in float64, for rows of any width. */
#ifndef LOAM_SIMD_PRODUCT64_H
#define LOAM_SIMD_PRODUCT64_H

#include "src/simd/vec.h"

#include <stdbool.h>

#if defined __AVX512F__
enum { PRODUCT64_ROWS = 6, PRODUCT64_VECS = 4 };
#else
enum { PRODUCT64_ROWS = 6, PRODUCT64_VECS = 2 };
#endif

typedef struct matrix64 {
    const double *at;
    int64_t row, column; /* strides */
} matrix64;

/* `rows` and `vecs` are constants at each call. */
VEC_INLINE void product64_block(const int rows, const int vecs, double *restrict c, int64_t c_stride,
                                matrix64 a, const double *restrict b, int64_t b_stride, int64_t count,
                                bool add)
{
    vec64 sum[PRODUCT64_ROWS][PRODUCT64_VECS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int n = 0; n < vecs; n++)
            sum[r][n] = add ? v64_load(c + r * c_stride + n * VL64) : v64_set(0);
    }
    for (int64_t t = 0; t < count; t++) {
        vec64 x[PRODUCT64_VECS];
#pragma GCC unroll 4
        for (int n = 0; n < vecs; n++)
            x[n] = v64_load(b + t * b_stride + n * VL64);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const vec64 y = v64_set(a.at[r * a.row + t * a.column]);
#pragma GCC unroll 4
            for (int n = 0; n < vecs; n++)
                sum[r][n] += y * x[n];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int n = 0; n < vecs; n++)
            v64_store(c + r * c_stride + n * VL64, sum[r][n]);
    }
}

VEC_INLINE void product64_rows(const int rows, double *restrict c, int64_t c_stride, matrix64 a,
                               const double *restrict b, int64_t b_stride, int64_t count, int64_t columns,
                               bool add)
{
    int64_t n = 0;
    for (; n + PRODUCT64_VECS * VL64 <= columns; n += PRODUCT64_VECS * VL64)
        product64_block(rows, PRODUCT64_VECS, c + n, c_stride, a, b + n, b_stride, count, add);
    for (; n + 2 * VL64 <= columns; n += 2 * VL64)
        product64_block(rows, 2, c + n, c_stride, a, b + n, b_stride, count, add);
    for (; n < columns; n += VL64)
        product64_block(rows, 1, c + n, c_stride, a, b + n, b_stride, count, add);
}

/* c [rows][columns] (+)= sum over t < count of A(r, t) b[t][columns]; columns are rounded up
 * to whole vectors. */
static inline void product64(double *restrict c, int64_t c_stride, int64_t rows, matrix64 a,
                             const double *restrict b, int64_t b_stride, int64_t count, int64_t columns,
                             bool add)
{
    int64_t r = 0;
    for (; r + PRODUCT64_ROWS <= rows; r += PRODUCT64_ROWS, a.at += PRODUCT64_ROWS * a.row)
        product64_rows(PRODUCT64_ROWS, c + r * c_stride, c_stride, a, b, b_stride, count, columns, add);
    if (r + 4 <= rows) {
        product64_rows(4, c + r * c_stride, c_stride, a, b, b_stride, count, columns, add);
        r += 4, a.at += 4 * a.row;
    }
    if (r + 2 <= rows) {
        product64_rows(2, c + r * c_stride, c_stride, a, b, b_stride, count, columns, add);
        r += 2, a.at += 2 * a.row;
    }
    if (r < rows) product64_rows(1, c + r * c_stride, c_stride, a, b, b_stride, count, columns, add);
}

#endif
