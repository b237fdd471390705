/* SPDX-License-Identifier: MIT
 * Rows of a float32 state where they lie, several at a time, so that none waits for another's sums: read once, written once,
 * and on their way from memory while those before them are at work. */
#ifndef LOAM_RECURRENT_DECODE_ROWS_H
#define LOAM_RECURRENT_DECODE_ROWS_H

#include "src/simd/table.h"

enum {
    DECODE_AHEAD = 4096 / sizeof(float), /* between what is at work and what is asked for */
    DECODE_LINE = 64 / sizeof(float),
    DELTA_ROWS = VL / 2
};

/* Rows `step` floats apart. Most states lie one after the other: what follows the last row is wanted too. */
typedef struct decode_state {
    float *at;
    int64_t step, rows, ahead; /* ahead: DECODE_AHEAD, or 0 where it would not be a row of the state */
} decode_state;

/* What one token brings, as whole vectors with zeros at the end. */
typedef struct decode_token {
    float *q, *k, *decay;
    float *q_in, *k_in; /* times the decay */
    float *w;           /* [rows in whole vectors] of the generalised value; in the end y */
    float *none;        /* a row for those that are not there */
    float beta, along;  /* along: k . q */
} decode_token;

/* Rows r .. of `count`; `none` from the last on. */
VEC_INLINE void decode_rows_at(const int count, const decode_state *s, int64_t r, float *none, float **row)
{
    row[0] = s->at + r * s->step;
    for (int e = 1; e < count; e++) {
        row[e] = r + e < s->rows ? row[e - 1] + s->step : none;
    }
}

/* Channels are taken as whole vectors, then as the first n of one. */
VEC_INLINE vec decode_load(const float *row, int n)
{
    return n == VL ? v_load(row) : v_load_part(LOAM_F32, (const char *)row, n);
}

VEC_INLINE void decode_store(float *row, vec v, int n)
{
    if (n == VL) {
        v_store(row, v);
    } else {
        memcpy(row, &v, (size_t)n * sizeof(float));
    }
}

VEC_INLINE void decode_prefetch(const float *row, int64_t ahead, int64_t c)
{
    if (c % DECODE_LINE == 0) {
        __builtin_prefetch(row + c + ahead);
    }
}

/* VL rows: M <- M Diag(e^g) + u k^T, sum += M . q */
VEC_INLINE void decode_add_step(float *const *row, const decode_token *x, const float *u, int64_t ahead,
                                int64_t c, int n, vec *sum)
{
    const vec q = v_load(x->q + c), k = v_load(x->k + c), decay = v_load(x->decay + c);
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++) {
        const vec m = decode_load(row[e] + c, n) * decay + v_set(u[e]) * k;
        decode_store(row[e] + c, m, n);
        sum[e] += m * q;
        decode_prefetch(row[e], ahead, c);
    }
}

/* VL rows from r on; their entries of w become those of y. */
static inline void decode_add_rows(const decode_state *s, int64_t r, const decode_token *x, int64_t d)
{
    const int rest = (int)(d % VL);
    float *row[VL], u[VL];
    vec sum[VL];
    decode_rows_at(VL, s, r, x->none, row);
    v_store(u, v_load(x->w + r) * x->beta);
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++) {
        sum[e] = v_set(0);
    }
    for (int64_t c = 0; c < d - rest; c += VL) {
        decode_add_step(row, x, u, s->ahead, c, VL, sum);
    }
    if (rest > 0) {
        decode_add_step(row, x, u, s->ahead, d - rest, rest, sum);
    }
    v_store(x->w + r, v_sums(sum));
}

/* DELTA_ROWS rows: sum += M Diag(e^g) k, then M Diag(e^g) q */
VEC_INLINE void decode_look_step(float *const *row, const decode_token *x, int64_t ahead, int64_t c, int n,
                                 vec *sum)
{
    const vec q = v_load(x->q_in + c), k = v_load(x->k_in + c);
#pragma GCC unroll 8
    for (int e = 0; e < DELTA_ROWS; e++) {
        const vec m = decode_load(row[e] + c, n);
        sum[e] += m * k;
        sum[DELTA_ROWS + e] += m * q;
        decode_prefetch(row[e], ahead, c);
    }
}

VEC_INLINE void decode_write_step(float *const *row, const decode_token *x, const float *u, int64_t c, int n)
{
    const vec k = v_load(x->k + c), decay = v_load(x->decay + c);
#pragma GCC unroll 8
    for (int e = 0; e < DELTA_ROWS; e++) {
        decode_store(row[e] + c, decode_load(row[e] + c, n) * decay + v_set(u[e]) * k, n);
    }
}

/* The same by the delta rule, DELTA_ROWS at a time. With D = M Diag(e^g) both D . k and y = D . q + u (k . q) come from one
 * look at the rows, which are still in the nearest cache when they are written. */
static inline void decode_delta_rows(const decode_state *s, int64_t r, const decode_token *x, int64_t d)
{
    const int rest = (int)(d % VL);
    float *row[DELTA_ROWS], u[DELTA_ROWS], seen[VL];
    vec sum[VL];
    decode_rows_at(DELTA_ROWS, s, r, x->none, row);
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++) {
        sum[e] = v_set(0);
    }
    for (int64_t c = 0; c < d - rest; c += VL) {
        decode_look_step(row, x, s->ahead, c, VL, sum);
    }
    if (rest > 0) {
        decode_look_step(row, x, s->ahead, d - rest, rest, sum);
    }
    v_store(seen, v_sums(sum));
    for (int e = 0; e < DELTA_ROWS; e++) {
        u[e] = x->beta * (x->w[r + e] - seen[e]);
        x->w[r + e] = seen[DELTA_ROWS + e] + u[e] * x->along;
    }
    for (int64_t c = 0; c < d - rest; c += VL) {
        decode_write_step(row, x, u, c, VL);
    }
    if (rest > 0) {
        decode_write_step(row, x, u, d - rest, rest);
    }
}

/* All rows of a state. */
static inline void decode_rows(bool delta, const decode_state *s, const decode_token *x, int64_t d)
{
    for (int64_t r = 0; delta && r < s->rows; r += DELTA_ROWS) {
        decode_delta_rows(s, r, x, d);
    }
    for (int64_t r = 0; !delta && r < s->rows; r += VL) {
        decode_add_rows(s, r, x, d);
    }
}

#endif
