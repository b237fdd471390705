/* SPDX-License-Identifier: MIT
 *
 * C += sum_j x_j x_j^T, lower triangle, for few rows x_j: float32 products summed in registers over the rows at hand, then
 * added to C in float64. So the rounding errors are those of sums of as many terms as there are rows, and rows that come
 * in pieces of a bounded number can be arbitrarily many.
 */
#ifndef LOAM_SIMD_GRAM_H
#define LOAM_SIMD_GRAM_H

#include "src/simd/table.h"

/* Accumulators: GRAM_ROWS x 2 registers. GRAM_ROWS divides VL. */
#if defined __AVX512F__
enum { GRAM_ROWS = 8 };
#else
enum { GRAM_ROWS = 4 };
#endif

/* Row j of what is read next comes from memory by one line from `next + j step` for each j; NULL: none. */
VEC_INLINE void gram_block(const int vecs, double *restrict c, const float *restrict rows,
                           const float *restrict columns, int64_t stride, int64_t n, const char *next,
                           int64_t step)
{
    vec sum[GRAM_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < GRAM_ROWS; r++) {
        sum[r][0] = sum[r][1] = v_set(0);
    }
    for (int64_t j = 0; j < n; j++, rows += stride, columns += stride) {
        vec x[2];
        if (next) {
            __builtin_prefetch(next + j * step, 0, 2);
        }
#pragma GCC unroll 2
        for (int e = 0; e < vecs; e++) {
            x[e] = v_load(columns + e * VL);
        }
#pragma GCC unroll 8
        for (int r = 0; r < GRAM_ROWS; r++) {
            const vec y = v_set(rows[r]);
#pragma GCC unroll 2
            for (int e = 0; e < vecs; e++) {
                sum[r][e] += y * x[e];
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < GRAM_ROWS; r++) {
        float part[2 * VL];
        v_store(part, sum[r][0]);
        v_store(part + VL, sum[r][1]);
        for (int e = 0; e < vecs * VL; e++) {
            c[r * stride + e] += (double)part[e];
        }
    }
}

/* x [n][stride], c [stride][stride]; stride is a multiple of VL, and entries above the diagonal are left anyhow. `next`
 * is what the caller reads after this: its way from memory hides behind the products. */
static inline void gram_add(double *restrict c, const float *restrict x, int64_t stride, int64_t n,
                            const table *next)
{
    const int64_t lines = next->rows > 0 ? (next->channels * (next->dtype == LOAM_F32 ? 4 : 2) + 63) / 64 : 0;
    const int64_t strips = stride / GRAM_ROWS;
    for (int64_t r = 0; r < stride; r += GRAM_ROWS) {
        const int64_t strip = r / GRAM_ROWS;
        int64_t line = strip * lines / strips;
        const int64_t last = (strip + 1) * lines / strips;
        for (int64_t e = 0; e < r + GRAM_ROWS; e += 2 * VL) {
            const char *ahead = line < last ? next->data + 64 * line++ : NULL;
            if (e + VL < r + GRAM_ROWS) {
                gram_block(2, c + r * stride + e, x + r, x + e, stride, n, ahead, next->step);
            } else {
                gram_block(1, c + r * stride + e, x + r, x + e, stride, n, ahead, next->step);
            }
        }
    }
}

#endif
