/* SPDX-License-Identifier: MIT
 *
 * Panels: the data layout of the float32 kernels. A panel is [rows][LANES] floats with one row of attention
 * (one query of one head) per lane. So softmax, conjugate gradients and all other work on rows is vertical:
 * without horizontal sums and without padding, for any head dimension.
 *
 * One small matrix product serves every use:
 *     C[r][lane] (+)= sum_t A(r, t) B[t][lane]
 * A is addressed with two strides, so that K (for scores) and K^T (for weighted sums of keys) are the same
 * memory.
 */
#ifndef LOAM_SIMD_PANEL_H
#define LOAM_SIMD_PANEL_H

#include "src/simd/vec.h"

#include <stdbool.h>
#include <string.h>

enum { LANES = 64 };

/* The register block: PANEL_ROWS x PANEL_VECS accumulators, beside PANEL_VECS registers of B and one of A. */
#if defined __AVX512F__
enum { PANEL_ROWS = 6, PANEL_VECS = 4 };
#else
enum { PANEL_ROWS = 6, PANEL_VECS = 2 };
#endif
enum { PANEL_WIDTH = PANEL_VECS * VL };

/* `rows` is a constant at each call, so that the loops are unrolled. */
VEC_INLINE void panel_product_rows(const int rows, float *restrict c, const float *restrict a,
                                   int64_t row_stride, int64_t t_stride, const float *restrict b,
                                   int64_t t_count, bool add)
{
    for (int lane = 0; lane < LANES; lane += PANEL_WIDTH) {
        vec sum[PANEL_ROWS][PANEL_VECS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int n = 0; n < PANEL_VECS; n++)
                sum[r][n] = add ? v_load(c + r * LANES + lane + n * VL) : v_set(0);
        }
        for (int64_t t = 0; t < t_count; t++) {
            vec x[PANEL_VECS];
#pragma GCC unroll 4
            for (int n = 0; n < PANEL_VECS; n++)
                x[n] = v_load(b + t * LANES + lane + n * VL);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const vec y = v_set(a[r * row_stride + t * t_stride]);
#pragma GCC unroll 4
                for (int n = 0; n < PANEL_VECS; n++)
                    sum[r][n] += y * x[n];
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int n = 0; n < PANEL_VECS; n++)
                v_store(c + r * LANES + lane + n * VL, sum[r][n]);
        }
    }
}

/* c [rows][LANES] (+)= sum over t of A(r, t) b [t][LANES];  A(r, t) = a[r * row_stride + t * t_stride] */
static inline void panel_product(float *restrict c, int64_t rows, const float *restrict a, int64_t row_stride,
                                 int64_t t_stride, const float *restrict b, int64_t t_count, bool add)
{
    int64_t r = 0;
    for (; r + PANEL_ROWS <= rows; r += PANEL_ROWS) {
        panel_product_rows(PANEL_ROWS, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count,
                           add);
    }
    switch (rows - r) {
    case 5:
        panel_product_rows(5, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    case 4:
        panel_product_rows(4, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    case 3:
        panel_product_rows(3, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    case 2:
        panel_product_rows(2, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    case 1:
        panel_product_rows(1, c + r * LANES, a + r * row_stride, row_stride, t_stride, b, t_count, add);
        break;
    default: break;
    }
}

/* Loops over the vectors of one panel row, or of its first `width` lanes. */
#define FOR_LANES_OF(lane, width) for (int lane = 0; lane < (width); lane += VL)
#define FOR_LANES(lane) FOR_LANES_OF(lane, LANES)

static inline void panel_fill(float *x, int64_t rows, float value)
{
    for (int64_t e = 0; e < rows * LANES; e++)
        x[e] = value;
}

static inline void panel_copy(float *restrict to, const float *restrict from, int64_t rows)
{
    memcpy(to, from, (size_t)rows * LANES * sizeof(float));
}

/* out[lane] = sum over rows of x y */
static inline void panel_dot(float *restrict out, const float *x, const float *y, int64_t rows)
{
    FOR_LANES(lane)
    {
        vec sum = v_set(0);
        for (int64_t r = 0; r < rows; r++)
            sum += v_load(x + r * LANES + lane) * v_load(y + r * LANES + lane);
        v_store(out + lane, sum);
    }
}

/* out[lane] += sum over rows of x */
static inline void panel_sum(float *restrict out, const float *restrict x, int64_t rows)
{
    FOR_LANES(lane)
    {
        vec sum = v_load(out + lane);
        for (int64_t r = 0; r < rows; r++)
            sum += v_load(x + r * LANES + lane);
        v_store(out + lane, sum);
    }
}

/* x[r] *= s[lane] */
static inline void panel_scale(float *restrict x, int64_t rows, const float *restrict s)
{
    for (int64_t r = 0; r < rows; r++) {
        FOR_LANES(lane) { v_store(x + r * LANES + lane, v_load(x + r * LANES + lane) * v_load(s + lane)); }
    }
}

/* y[r] += s[lane] x[r] */
static inline void panel_axpy(float *restrict y, int64_t rows, const float *restrict s,
                              const float *restrict x)
{
    for (int64_t r = 0; r < rows; r++) {
        FOR_LANES(lane)
        {
            v_store(y + r * LANES + lane,
                    v_load(y + r * LANES + lane) + v_load(s + lane) * v_load(x + r * LANES + lane));
        }
    }
}

#endif
