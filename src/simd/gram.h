/* SPDX-License-Identifier: MIT
 *
 * Gram matrix of n rows x_j, lower triangle: C += sum_j x_j x_j^T. The float32 products are summed over
 * the n rows in registers, and the sum is added to C in float64. The rounding error is that of a float32
 * sum of n terms: a caller that splits its rows into calls of bounded n may add any number of rows.
 */
#ifndef LOAM_SIMD_GRAM_H
#define LOAM_SIMD_GRAM_H

#include "src/simd/table.h"

/* The register block: GRAM_ROWS x 2 vector accumulators. GRAM_ROWS divides VL. */
#if defined __AVX512F__
enum { GRAM_ROWS = 8 };
#else
enum { GRAM_ROWS = 4 };
#endif

/* One register block of `vecs` vectors. With each row j it prefetches the cache line at next + j * step,
 * unless next is NULL. */
VEC_INLINE void gram_block(const int vecs, double *restrict c, const float *restrict rows,
                           const float *restrict columns, int64_t stride, int64_t n, const char *next,
                           int64_t step)
{
    vec sum[GRAM_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < GRAM_ROWS; r++)
        sum[r][0] = sum[r][1] = v_set(0);
    for (int64_t j = 0; j < n; j++, rows += stride, columns += stride) {
        vec x[2];
        if (next) __builtin_prefetch(next + j * step, 0, 2);
#pragma GCC unroll 2
        for (int e = 0; e < vecs; e++)
            x[e] = v_load(columns + e * VL);
#pragma GCC unroll 8
        for (int r = 0; r < GRAM_ROWS; r++) {
            const vec y = v_set(rows[r]);
#pragma GCC unroll 2
            for (int e = 0; e < vecs; e++)
                sum[r][e] += y * x[e];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < GRAM_ROWS; r++) {
        float part[2 * VL];
        v_store(part, sum[r][0]);
        v_store(part + VL, sum[r][1]);
        for (int e = 0; e < vecs * VL; e++)
            c[r * stride + e] += (double)part[e];
    }
}

/* x [n][stride], c [stride][stride]; stride is a multiple of VL; entries of c above the diagonal are
 * undefined. `next` is the table that the caller reads next: its rows are prefetched here. */
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
            const char *fetched = line < last ? next->data + 64 * line++ : NULL;
            if (e + VL < r + GRAM_ROWS)
                gram_block(2, c + r * stride + e, x + r, x + e, stride, n, fetched, next->step);
            else
                gram_block(1, c + r * stride + e, x + r, x + e, stride, n, fetched, next->step);
        }
    }
}

#endif
