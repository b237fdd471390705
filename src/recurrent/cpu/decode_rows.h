/* SPDX-License-Identifier: MIT
 * Decode on the rows of a float32 state in place. Several rows at a time, so that their sums are independent.
 * Each row is read once and written once, and prefetched while the rows before it are processed. */
#ifndef LOAM_RECURRENT_CPU_DECODE_ROWS_H
#define LOAM_RECURRENT_CPU_DECODE_ROWS_H

#include "src/simd/table.h"

enum {
    DECODE_AHEAD = 6144 / sizeof(float), /* floats from the current row to the prefetched lines */
    DECODE_LINE = 64 / sizeof(float),
    DECODE_ROWS = VL / 4 /* rows at a time; with more, memory would be read less sequentially */
};

/* A state: rows `step` floats apart. Most states are contiguous, so the prefetch goes on beyond
 * the last row. */
typedef struct decode_state {
    float *at;
    int64_t step, rows, ahead; /* ahead: DECODE_AHEAD, or 0 where rows are not contiguous */
} decode_state;

/* The inputs of one token, as whole vectors padded with zeros. */
typedef struct decode_token {
    float *q, *k;
    float *decay, *rest; /* e^g, and its rounding error */
    float *q_in, *k_in;  /* q and k times the decay */
    float *w;            /* [rows rounded up to whole vectors]: the generalised value; replaced by y */
    float *none;         /* a row in place of those beyond the last */
    float beta, along;   /* along: k . q */
} decode_token;

/* Pointers to DECODE_ROWS rows from r on; `none` beyond the last. */
VEC_INLINE void decode_rows_at(const decode_state *s, int64_t r, float *none, float **row)
{
    for (int e = 0; e < DECODE_ROWS; e++) {
        row[e] = r + e < s->rows ? s->at + (r + e) * s->step : none;
    }
}

/* Channels are processed as whole vectors, then a tail of n channels. */
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

/* Prefetches as many consecutive lines as a step over DECODE_ROWS rows reads, `ahead` floats beyond. */
VEC_INLINE void decode_prefetch(const float *row, int64_t ahead, int64_t c)
{
    const uintptr_t at = (uintptr_t)row + sizeof(float) * (uintptr_t)(ahead + c * DECODE_ROWS);
    if (ahead > 0) {
#pragma GCC unroll 4
        for (int line = 0; line < DECODE_ROWS * VL; line += DECODE_LINE) {
            __builtin_prefetch((const void *)(at + sizeof(float) * (uintptr_t)line));
        }
    }
}

/* DECODE_ROWS rows: M <- M Diag(e^g) + u k^T, sum += M . q. */
VEC_INLINE void decode_add_step(float *const *row, const decode_token *x, const float *u, int64_t ahead,
                                int64_t c, int n, vec *sum)
{
    const vec q = v_load(x->q + c), k = v_load(x->k + c);
    const vec decay = v_load(x->decay + c), rest = v_load(x->rest + c);
    decode_prefetch(row[0], ahead, c);
#pragma GCC unroll 16
    for (int e = 0; e < DECODE_ROWS; e++) {
        const vec before = decode_load(row[e] + c, n), m = before * decay + (before * rest + v_set(u[e]) * k);
        decode_store(row[e] + c, m, n);
        sum[e] += m * q;
    }
}

/* VL rows from r on without the delta rule; their entries of w are replaced by those of y. */
static inline void decode_add_rows(const decode_state *s, int64_t r, const decode_token *x, int64_t d)
{
    const int rest = (int)(d % VL);
    float u[VL];
    vec sum[VL];
    v_store(u, v_load(x->w + r) * x->beta);
#pragma GCC unroll 4
    for (int part = 0; part < VL; part += DECODE_ROWS) {
        float *row[DECODE_ROWS];
        decode_rows_at(s, r + part, x->none, row);
#pragma GCC unroll 16
        for (int e = 0; e < DECODE_ROWS; e++) {
            sum[part + e] = v_set(0);
        }
        for (int64_t c = 0; c < d - rest; c += VL) {
            decode_add_step(row, x, u + part, s->ahead, c, VL, sum + part);
        }
        if (rest > 0) {
            decode_add_step(row, x, u + part, s->ahead, d - rest, rest, sum + part);
        }
    }
    v_store(x->w + r, v_sums(sum));
}

/* DECODE_ROWS rows: sum += M Diag(e^g) k, then M Diag(e^g) q. */
VEC_INLINE void decode_look_step(float *const *row, const decode_token *x, int64_t ahead, int64_t c, int n,
                                 vec *sum)
{
    const vec q = v_load(x->q_in + c), k = v_load(x->k_in + c);
    decode_prefetch(row[0], ahead, c);
#pragma GCC unroll 8
    for (int e = 0; e < DECODE_ROWS; e++) {
        const vec m = decode_load(row[e] + c, n);
        sum[e] += m * k;
        sum[DECODE_ROWS + e] += m * q;
    }
}

VEC_INLINE void decode_write_step(float *const *row, const decode_token *x, const float *u, int64_t c, int n)
{
    const vec k = v_load(x->k + c), decay = v_load(x->decay + c), rest = v_load(x->rest + c);
#pragma GCC unroll 8
    for (int e = 0; e < DECODE_ROWS; e++) {
        const vec before = decode_load(row[e] + c, n);
        decode_store(row[e] + c, before * decay + (before * rest + v_set(u[e]) * k), n);
    }
}

/* The delta rule for DECODE_ROWS rows from r on. With D = M Diag(e^g), D . k and y = D . q + u (k . q) come
 * from one pass over the rows, which are still in the L1 cache when the second pass writes them. */
static inline void decode_delta_rows(const decode_state *s, int64_t r, const decode_token *x, int64_t d)
{
    const int rest = (int)(d % VL);
    float *row[DECODE_ROWS], u[DECODE_ROWS], seen[VL];
    vec sum[VL];
    decode_rows_at(s, r, x->none, row);
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
    for (int e = 0; e < DECODE_ROWS; e++) {
        u[e] = x->beta * (x->w[r + e] - seen[e]);
        x->w[r + e] = seen[DECODE_ROWS + e] + u[e] * x->along;
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
    for (int64_t r = 0; delta && r < s->rows; r += DECODE_ROWS) {
        decode_delta_rows(s, r, x, d);
    }
    for (int64_t r = 0; !delta && r < s->rows; r += VL) {
        decode_add_rows(s, r, x, d);
    }
}

#endif
