/* SPDX-License-Identifier: MIT
 *
 * GROUP Cholesky factors in float32 at once, one per lane: without horizontal sums, for any size.
 *
 * A lower triangle is stored by blocks of FOUR rows, [block][column][FOUR][GROUP]; block n has its first 4 n
 * + 4 columns. So the FOUR rows of a block, for GROUP lanes, are the LANES columns of a panel. Sizes are
 * rounded up to whole blocks.
 */
#ifndef LOAM_LOCAL_CPU_FACTOR_H
#define LOAM_LOCAL_CPU_FACTOR_H

#include "src/simd/panel.h"
#include "src/simd/panel64.h"

enum { FOUR = LANES / GROUP };

static inline int64_t factor_blocks(int64_t d) { return (d + FOUR - 1) / FOUR; }

/* The offset of block n in floats, which is also the size of n blocks. */
static inline int64_t factor_block_at(int64_t n) { return n * (n + 1) / 2 * FOUR * LANES; }

typedef struct factor_square {
    vec x[FOUR][FOUR];
} factor_square;

/* The square of block n's rows and block k's columns, minus its products with the columns before:
 * A - sum_c L_rc L_kc. */
VEC_INLINE factor_square factor_reduce(const float *rows, const float *columns, int64_t blk)
{
    factor_square s;
#pragma GCC unroll 4
    for (int i = 0; i < FOUR; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < FOUR; j++)
            s.x[i][j] = v_load(rows + (blk * FOUR + j) * LANES + i * GROUP);
    }
    for (int64_t c = 0; c < blk * FOUR; c++) {
        vec y[FOUR];
#pragma GCC unroll 4
        for (int j = 0; j < FOUR; j++)
            y[j] = v_load(columns + c * LANES + j * GROUP);
#pragma GCC unroll 4
        for (int i = 0; i < FOUR; i++) {
            const vec x = v_load(rows + c * LANES + i * GROUP);
#pragma GCC unroll 4
            for (int j = 0; j < FOUR; j++)
                s.x[i][j] -= x * y[j];
        }
    }
    return s;
}

/* A pivot that is not above 0 is replaced by 1. That factor is useless, and the residuals of its
 * solves show it. */
VEC_INLINE vec inverse_root(vec pivot)
{
    float out[VL];
    v_store(out, v_select(pivot > 0, pivot, v_set(1)));
    for (int e = 0; e < VL; e++)
        out[e] = 1 / sqrtf(out[e]);
    return v_load(out);
}

/* A square below the diagonal: solves with `corner`, the finished diagonal square of its columns. */
VEC_INLINE void factor_below(factor_square *s, const float *corner)
{
#pragma GCC unroll 4
    for (int j = 0; j < FOUR; j++) {
#pragma GCC unroll 4
        for (int i = 0; i < FOUR; i++) {
#pragma GCC unroll 4
            for (int e = 0; e < j; e++)
                s->x[i][j] -= s->x[i][e] * v_load(corner + e * LANES + j * GROUP);
            s->x[i][j] *= v_load(corner + j * LANES + j * GROUP);
        }
    }
}

VEC_INLINE void factor_diagonal(factor_square *s)
{
#pragma GCC unroll 4
    for (int j = 0; j < FOUR; j++) {
#pragma GCC unroll 4
        for (int i = j; i < FOUR; i++) {
#pragma GCC unroll 4
            for (int e = 0; e < j; e++)
                s->x[i][j] -= s->x[i][e] * s->x[j][e];
        }
        s->x[j][j] = inverse_root(s->x[j][j]);
#pragma GCC unroll 4
        for (int i = j + 1; i < FOUR; i++)
            s->x[i][j] *= s->x[j][j];
    }
}

/* Overwrites the lower triangles by L with L L^T = A; the diagonal holds 1 / L_cc. */
static inline void factor_make(float *factor, int64_t blocks)
{
    for (int m = 0; m < GROUP; m += VL) {
        for (int64_t n = 0; n < blocks; n++) {
            float *rows = factor + factor_block_at(n) + m;
            for (int64_t k = 0; k <= n; k++) {
                const float *columns = factor + factor_block_at(k) + m;
                factor_square s = factor_reduce(rows, columns, k);
                if (k < n)
                    factor_below(&s, columns + k * FOUR * LANES);
                else
                    factor_diagonal(&s);
#pragma GCC unroll 4
                for (int i = 0; i < FOUR; i++) {
#pragma GCC unroll 4
                    for (int j = 0; j < FOUR; j++)
                        v_store(rows + (k * FOUR + j) * LANES + i * GROUP, s.x[i][j]);
                }
            }
        }
    }
}

/* Forward substitution for block n of z, from the blocks before: z <- L^-1 z. */
VEC_INLINE void factor_forward(const float *rows, int64_t n, float *z)
{
    const float *corner = rows + n * FOUR * LANES;
    float *here = z + n * FOUR * GROUP;
    vec y[FOUR];
#pragma GCC unroll 4
    for (int i = 0; i < FOUR; i++)
        y[i] = v_load(here + i * GROUP);
    for (int64_t c = 0; c < n * FOUR; c++) {
#pragma GCC unroll 4
        for (int i = 0; i < FOUR; i++)
            y[i] -= v_load(rows + c * LANES + i * GROUP) * v_load(z + c * GROUP);
    }
#pragma GCC unroll 4
    for (int i = 0; i < FOUR; i++) {
#pragma GCC unroll 4
        for (int e = 0; e < i; e++)
            y[i] -= v_load(corner + e * LANES + i * GROUP) * y[e];
        y[i] *= v_load(corner + i * LANES + i * GROUP);
        v_store(here + i * GROUP, y[i]);
    }
}

/* Backward substitution for block n of z, whose part is subtracted from the blocks before: z <- L^-T z. */
VEC_INLINE void factor_backward(const float *rows, int64_t n, float *z)
{
    const float *corner = rows + n * FOUR * LANES;
    float *here = z + n * FOUR * GROUP;
    vec y[FOUR];
#pragma GCC unroll 4
    for (int i = FOUR - 1; i >= 0; i--) {
        y[i] = v_load(here + i * GROUP);
#pragma GCC unroll 4
        for (int e = i + 1; e < FOUR; e++)
            y[i] -= v_load(corner + i * LANES + e * GROUP) * y[e];
        y[i] *= v_load(corner + i * LANES + i * GROUP);
        v_store(here + i * GROUP, y[i]);
    }
    for (int64_t c = 0; c < n * FOUR; c++) {
        vec x = v_load(z + c * GROUP);
#pragma GCC unroll 4
        for (int i = 0; i < FOUR; i++)
            x -= v_load(rows + c * LANES + i * GROUP) * y[i];
        v_store(z + c * GROUP, x);
    }
}

/* z [rows of whole blocks][GROUP] <- (L L^T)^-1 z */
static inline void factor_solve(const float *factor, int64_t blocks, float *z)
{
    for (int m = 0; m < GROUP; m += VL) {
        for (int64_t n = 0; n < blocks; n++)
            factor_forward(factor + factor_block_at(n) + m, n, z + m);
        for (int64_t n = blocks - 1; n >= 0; n--)
            factor_backward(factor + factor_block_at(n) + m, n, z + m);
    }
}

/* out[m] = 1 / min L_cc over the first d columns, which is near 1 / sqrt(least eigenvalue). */
static inline void factor_steepest(const float *factor, int64_t d, double *restrict out)
{
    for (int m = 0; m < GROUP; m++) {
        out[m] = 0;
        for (int64_t c = 0; c < d; c++) {
            const float *block = factor + factor_block_at(c / FOUR);
            out[m] = fmax(out[m], (double)block[c * LANES + c % FOUR * GROUP + m]);
        }
    }
}

#endif
