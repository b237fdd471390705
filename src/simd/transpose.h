/* SPDX-License-Identifier: MIT
 * Transposition of tiles, and the product of panel.h on a part of the lanes. */
#ifndef LOAM_SIMD_TRANSPOSE_H
#define LOAM_SIMD_TRANSPOSE_H

#include "src/simd/panel.h"

/* One butterfly step with (TRANSPOSE_LOW_h, TRANSPOSE_HIGH_h): the lanes of x whose number has bit h set are
 * exchanged with the lanes of y whose bit is clear. */
#define TRANSPOSE_PAIR(x, y, low, high) \
    do { \
        const vec first = low(x, y), second = high(x, y); \
        (x) = first, (y) = second; \
    } while (0)

#if VEC_BYTES == 64
#define TRANSPOSE_LOW_8(a, b) \
    __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define TRANSPOSE_HIGH_8(a, b) \
    __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define TRANSPOSE_LOW_4(a, b) \
    __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define TRANSPOSE_HIGH_4(a, b) \
    __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define TRANSPOSE_LOW_2(a, b) \
    __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define TRANSPOSE_HIGH_2(a, b) \
    __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define TRANSPOSE_LOW_1(a, b) \
    __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define TRANSPOSE_HIGH_1(a, b) \
    __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#elif VEC_BYTES == 32
#define TRANSPOSE_LOW_4(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define TRANSPOSE_HIGH_4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#define TRANSPOSE_LOW_2(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define TRANSPOSE_HIGH_2(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define TRANSPOSE_LOW_1(a, b) __builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define TRANSPOSE_HIGH_1(a, b) __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#else
#define TRANSPOSE_LOW_2(a, b) __builtin_shufflevector(a, b, 0, 1, 4, 5)
#define TRANSPOSE_HIGH_2(a, b) __builtin_shufflevector(a, b, 2, 3, 6, 7)
#define TRANSPOSE_LOW_1(a, b) __builtin_shufflevector(a, b, 0, 4, 2, 6)
#define TRANSPOSE_HIGH_1(a, b) __builtin_shufflevector(a, b, 1, 5, 3, 7)
#endif

/* Transposes a tile of VL x VL floats in registers: x[r][c] becomes x[c][r]. */
VEC_INLINE void transpose_vectors(vec x[VL])
{
#if VEC_BYTES == 64
#pragma GCC unroll 16
    for (int r = 0; r < VL; r++)
        if (!(r & 8)) TRANSPOSE_PAIR(x[r], x[r + 8], TRANSPOSE_LOW_8, TRANSPOSE_HIGH_8);
#endif
#if VEC_BYTES >= 32
#pragma GCC unroll 16
    for (int r = 0; r < VL; r++)
        if (!(r & 4)) TRANSPOSE_PAIR(x[r], x[r + 4], TRANSPOSE_LOW_4, TRANSPOSE_HIGH_4);
#endif
#pragma GCC unroll 16
    for (int r = 0; r < VL; r++)
        if (!(r & 2)) TRANSPOSE_PAIR(x[r], x[r + 2], TRANSPOSE_LOW_2, TRANSPOSE_HIGH_2);
#pragma GCC unroll 16
    for (int r = 0; r < VL; r++)
        if (!(r & 1)) TRANSPOSE_PAIR(x[r], x[r + 1], TRANSPOSE_LOW_1, TRANSPOSE_HIGH_1);
}

/* to[c][r] = from[r][c]; rows and columns are multiples of VL. */
static inline void transpose_tile(float *restrict to, int64_t to_stride, const float *restrict from,
                                  int64_t from_stride, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r += VL) {
        for (int64_t c = 0; c < columns; c += VL) {
            vec x[VL];
#pragma GCC unroll 16
            for (int e = 0; e < VL; e++)
                x[e] = v_load(from + (r + e) * from_stride + c);
            transpose_vectors(x);
#pragma GCC unroll 16
            for (int e = 0; e < VL; e++)
                v_store(to + (c + e) * to_stride + r, x[e]);
        }
    }
}

/* `rows` and `vecs` are constants at each call. */
VEC_INLINE void lanes_product_rows(const int rows, const int vecs, float *restrict c, const float *restrict a,
                                   int64_t row_stride, int64_t t_stride, const float *restrict b,
                                   int64_t t_count, bool add)
{
    vec sum[8][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int n = 0; n < vecs; n++)
            sum[r][n] = add ? v_load(c + r * LANES + n * VL) : v_set(0);
    }
    for (int64_t t = 0; t < t_count; t++) {
        vec x[2];
#pragma GCC unroll 2
        for (int n = 0; n < vecs; n++)
            x[n] = v_load(b + t * LANES + n * VL);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const vec y = v_set(a[r * row_stride + t * t_stride]);
#pragma GCC unroll 2
            for (int n = 0; n < vecs; n++)
                sum[r][n] += y * x[n];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
        for (int n = 0; n < vecs; n++)
            v_store(c + r * LANES + n * VL, sum[r][n]);
    }
}

VEC_INLINE void lanes_product_vectors(const int vecs, float *restrict c, int64_t rows,
                                      const float *restrict a, int64_t row_stride, int64_t t_stride,
                                      const float *restrict b, int64_t t_count, bool add)
{
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8)
        lanes_product_rows(8, vecs, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
    for (; r < rows; r++)
        lanes_product_rows(1, vecs, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
}

/* panel_product on the first `width` lanes, a multiple of VL. */
static inline void lanes_product(float *restrict c, int64_t rows, const float *restrict a, int64_t row_stride,
                                 int64_t t_stride, const float *restrict b, int64_t t_count, int64_t width,
                                 bool add)
{
    if (width == LANES) {
        panel_product(c, rows, a, row_stride, t_stride, b, t_count, add);
        return;
    }
    int64_t lane = 0;
    for (; lane + 2 * VL <= width; lane += 2 * VL)
        lanes_product_vectors(2, c + lane, rows, a, row_stride, t_stride, b + lane, t_count, add);
    if (lane < width)
        lanes_product_vectors(1, c + lane, rows, a, row_stride, t_stride, b + lane, t_count, add);
}

#endif
