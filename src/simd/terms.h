/* SPDX-License-Identifier: MIT
 * Sums of one or two matrix products on panels, accumulated in registers and stored once:
 *     C[r][lane] = scale_r C0[r][lane] + sum over terms and t of A(r, t) B[t][lane] */
#ifndef LOAM_SIMD_TERMS_H
#define LOAM_SIMD_TERMS_H

#include "src/simd/panel.h"

/* Rows of up to AHEAD arrays to prefetch, token by token: `step` bytes from row to row, `lines`
 * cache lines each. */
enum { AHEAD = 5 };
typedef struct ahead {
    struct ahead_rows {
        const char *data;
        int64_t step, lines;
    } of[AHEAD];
    int64_t rows, row; /* number of rows, and the next row to prefetch */
} ahead;

/* n elements of `size` bytes from element `at`, rows `stride` elements apart; data NULL: none. */
VEC_INLINE struct ahead_rows ahead_of(const void *data, int64_t at, int64_t stride, int64_t n, int64_t size)
{
    return data ? (struct ahead_rows){ (const char *)data + at * size, stride * size, (n * size + 63) / 64 }
                : (struct ahead_rows){ 0 };
}

/* Prefetches the next row of each array. */
static inline void ahead_fetch(ahead *x)
{
    if (x->row < x->rows) {
        for (int n = 0; n < AHEAD; n++)
            for (int64_t line = 0; line < x->of[n].lines; line++)
                __builtin_prefetch(x->of[n].data + x->row * x->of[n].step + 64 * line, 0, 2);
        x->row++;
    }
}

/* A(r, t) = a[r * row + t * column], b [count][LANES] */
typedef struct term {
    const float *a;
    int64_t row, column;
    const float *b;
    int64_t count;
} term;

/* The result and the initial value of the sums: rows `stride` floats apart. from: NULL (0) or c itself;
 * scale: NULL (1). */
typedef struct terms_rows {
    float *c;
    int64_t stride;
    const float *from;
    const float *scale;
} terms_rows;

/* `rows` and `terms` are constants at each call. */
VEC_INLINE void terms_tile(const int rows, const int terms, terms_rows to, int64_t first, const term *x)
{
    float *c = to.c + first * to.stride;
    for (int lane = 0; lane < LANES; lane += PANEL_WIDTH) {
        vec sum[PANEL_ROWS][PANEL_VECS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float *from = to.from ? to.from + (first + r) * to.stride + lane : NULL;
#pragma GCC unroll 4
            for (int n = 0; n < PANEL_VECS; n++) {
                sum[r][n] = !to.from   ? v_set(0)
                            : to.scale ? v_load(from + n * VL) * to.scale[first + r]
                                       : v_load(from + n * VL);
            }
        }
#pragma GCC unroll 2
        for (int e = 0; e < terms; e++) {
            const float *a = x[e].a + first * x[e].row, *b = x[e].b + lane;
            for (int64_t t = 0; t < x[e].count; t++, a += x[e].column, b += LANES) {
                vec y[PANEL_VECS];
#pragma GCC unroll 4
                for (int n = 0; n < PANEL_VECS; n++)
                    y[n] = v_load(b + n * VL);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    const vec each = v_set(a[r * x[e].row]);
#pragma GCC unroll 4
                    for (int n = 0; n < PANEL_VECS; n++)
                        sum[r][n] += each * y[n];
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
            for (int n = 0; n < PANEL_VECS; n++)
                v_store(c + r * to.stride + lane + n * VL, sum[r][n]);
        }
    }
}

/* Rows 0 .. rows - 1 of C; `terms` is a constant, 1 or 2. Prefetches two rows of `next` with
 * each register block. */
VEC_INLINE void terms_sum(terms_rows to, int64_t rows, const int terms, const term *x, ahead *next)
{
    int64_t r = 0;
    for (; r + PANEL_ROWS <= rows; r += PANEL_ROWS) {
        ahead_fetch(next), ahead_fetch(next);
        terms_tile(PANEL_ROWS, terms, to, r, x);
    }
    ahead_fetch(next), ahead_fetch(next);
    switch (rows - r) {
    case 5: terms_tile(5, terms, to, r, x); break;
    case 4: terms_tile(4, terms, to, r, x); break;
    case 3: terms_tile(3, terms, to, r, x); break;
    case 2: terms_tile(2, terms, to, r, x); break;
    case 1: terms_tile(1, terms, to, r, x); break;
    default: break;
    }
}

#endif
