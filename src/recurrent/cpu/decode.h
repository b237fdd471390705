/* SPDX-License-Identifier: MIT
 * One token on a float32 state in place, each of its rows read and written once. Row r belongs to entry r of
 * the generalised value (the last one is 1 where the read is normalised):
 *
 *     D = M_r Diag(e^g),   u = beta (w_r - [delta rule] D . k),   M_r <- D + u k,   y_r = M_r . q
 *
 * Several rows at a time, so that their sums are independent, prefetched while the rows before them are
 * processed. */
#ifndef LOAM_RECURRENT_CPU_DECODE_H
#define LOAM_RECURRENT_CPU_DECODE_H

#include "src/recurrent/cpu/features.h"
#include "src/simd/table.h"

enum {
    DECODE_AHEAD = 6144 / sizeof(float), /* floats from the current row to the prefetched lines */
    DECODE_LINE = CACHE_LINE / sizeof(float),
    DECODE_ROWS = VL / 4 /* rows at a time; with more, memory would be read less sequentially */
};

/* A state: rows `stride` floats apart. Most states are contiguous, so the prefetch goes on beyond
 * the last row. */
typedef struct decode_state {
    float *at;
    int64_t stride, rows, ahead; /* ahead: DECODE_AHEAD, or 0 where rows are not contiguous */
} decode_state;

/* The inputs of one token, as whole vectors padded with zeros. */
typedef struct decode_token {
    float *q, *k;
    float *decay, *decay_error; /* e^g, and its rounding error */
    float *q_in, *k_in;         /* q and k times the decay */
    float *w;                   /* [rows rounded up to whole vectors]: the generalised value; replaced by y */
    float *spare;               /* a row in place of those beyond the last */
    float beta, k_dot_q;        /* k_dot_q: k . q */
} decode_token;

/* Pointers to DECODE_ROWS rows from r on; `spare` beyond the last. */
VEC_INLINE void decode_rows_at(const decode_state *state, int64_t r, float *spare, float **row)
{
    for (int e = 0; e < DECODE_ROWS; e++)
        row[e] = r + e < state->rows ? state->at + (r + e) * state->stride : spare;
}

/* Channels are processed as whole vectors, then a tail of n channels. */
VEC_INLINE vec decode_load(const float *row, int n)
{
    return n == VL ? v_load(row) : v_load_part(LOAM_F32, (const char *)row, n);
}

VEC_INLINE void decode_store(float *row, vec v, int n)
{
    if (n == VL)
        v_store(row, v);
    else
        memcpy(row, &v, (size_t)n * sizeof(float));
}

/* Prefetches as many consecutive lines as a step over DECODE_ROWS rows reads, `ahead` floats beyond. */
VEC_INLINE void decode_prefetch(const float *row, int64_t ahead, int64_t c)
{
    const uintptr_t at = (uintptr_t)row + sizeof(float) * (uintptr_t)(ahead + c * DECODE_ROWS);
    if (ahead > 0) {
#pragma GCC unroll 4
        for (int line = 0; line < DECODE_ROWS * VL; line += DECODE_LINE)
            __builtin_prefetch((const void *)(at + sizeof(float) * (uintptr_t)line));
    }
}

/* DECODE_ROWS rows: M <- M Diag(e^g) + u k^T, sum += M . q. */
VEC_INLINE void decode_add_step(float *const *row, const decode_token *token, const float *u, int64_t ahead,
                                int64_t c, int n, vec *sum)
{
    const vec q = v_load(token->q + c), k = v_load(token->k + c);
    const vec decay = v_load(token->decay + c), error = v_load(token->decay_error + c);
    decode_prefetch(row[0], ahead, c);
#pragma GCC unroll 16
    for (int e = 0; e < DECODE_ROWS; e++) {
        const vec old = decode_load(row[e] + c, n), m = old * decay + (old * error + v_set(u[e]) * k);
        decode_store(row[e] + c, m, n);
        sum[e] += m * q;
    }
}

/* VL rows from r on without the delta rule; their entries of w are replaced by those of y. */
static inline void decode_add_rows(const decode_state *state, int64_t r, const decode_token *token, int64_t d)
{
    const int rest = (int)(d % VL);
    float u[VL];
    vec sum[VL];
    v_store(u, v_load(token->w + r) * token->beta);
#pragma GCC unroll 4
    for (int part = 0; part < VL; part += DECODE_ROWS) {
        float *row[DECODE_ROWS];
        decode_rows_at(state, r + part, token->spare, row);
#pragma GCC unroll 16
        for (int e = 0; e < DECODE_ROWS; e++)
            sum[part + e] = v_set(0);
        for (int64_t c = 0; c < d - rest; c += VL)
            decode_add_step(row, token, u + part, state->ahead, c, VL, sum + part);
        if (rest > 0) decode_add_step(row, token, u + part, state->ahead, d - rest, rest, sum + part);
    }
    v_store(token->w + r, v_sums(sum));
}

/* DECODE_ROWS rows: sum += M Diag(e^g) k, then M Diag(e^g) q. */
VEC_INLINE void decode_read_step(float *const *row, const decode_token *token, int64_t ahead, int64_t c,
                                 int n, vec *sum)
{
    const vec q = v_load(token->q_in + c), k = v_load(token->k_in + c);
    decode_prefetch(row[0], ahead, c);
#pragma GCC unroll 8
    for (int e = 0; e < DECODE_ROWS; e++) {
        const vec m = decode_load(row[e] + c, n);
        sum[e] += m * k;
        sum[DECODE_ROWS + e] += m * q;
    }
}

VEC_INLINE void decode_write_step(float *const *row, const decode_token *token, const float *u, int64_t c,
                                  int n)
{
    const vec k = v_load(token->k + c), decay = v_load(token->decay + c),
              error = v_load(token->decay_error + c);
#pragma GCC unroll 8
    for (int e = 0; e < DECODE_ROWS; e++) {
        const vec old = decode_load(row[e] + c, n);
        decode_store(row[e] + c, old * decay + (old * error + v_set(u[e]) * k), n);
    }
}

/* The delta rule for DECODE_ROWS rows from r on. With D = M Diag(e^g), D . k and y = D . q + u (k . q) come
 * from one pass over the rows, which are still in the L1 cache when the second pass writes them. */
static inline void decode_delta_rows(const decode_state *state, int64_t r, const decode_token *token,
                                     int64_t d)
{
    const int rest = (int)(d % VL);
    float *row[DECODE_ROWS], u[DECODE_ROWS], dots[VL];
    vec sum[VL];
    decode_rows_at(state, r, token->spare, row);
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++)
        sum[e] = v_set(0);
    for (int64_t c = 0; c < d - rest; c += VL)
        decode_read_step(row, token, state->ahead, c, VL, sum);
    if (rest > 0) decode_read_step(row, token, state->ahead, d - rest, rest, sum);
    v_store(dots, v_sums(sum));
    for (int e = 0; e < DECODE_ROWS; e++) {
        u[e] = token->beta * (token->w[r + e] - dots[e]);
        token->w[r + e] = dots[DECODE_ROWS + e] + u[e] * token->k_dot_q;
    }
    for (int64_t c = 0; c < d - rest; c += VL)
        decode_write_step(row, token, u, c, VL);
    if (rest > 0) decode_write_step(row, token, u, d - rest, rest);
}

/* All rows of a state. */
static inline void decode_rows(bool delta, const decode_state *state, const decode_token *token, int64_t d)
{
    for (int64_t r = 0; delta && r < state->rows; r += DECODE_ROWS)
        decode_delta_rows(state, r, token, d);
    for (int64_t r = 0; !delta && r < state->rows; r += VL)
        decode_add_rows(state, r, token, d);
}

/* The generalised value of a token, whole vectors. */
static inline void decode_load_value(const decode_token *to, const loam_problem *p, const loam_args *a,
                                     const recurrent_seq *s, int64_t h, int64_t t, int64_t rows)
{
    features_clear_tail(to->w, rows - 1, whole_vectors(rows));
    to->w[rows - 1] = 1;
    load_floats(to->w, a->v.data, p->dtype, RECURRENT_AT(a->v, s->b, h, s->first + t), p->dim_v);
}

static inline void decode_store_value(const decode_token *from, const loam_problem *p, const loam_args *a,
                                      const recurrent_seq *s, int64_t h, int64_t t)
{
    float *y = from->w;
    const float denominator = p->normalise ? y[p->dim_v] : 1;
    for (int64_t r = 0; p->normalise && r < p->dim_v; r++)
        y[r] = denominator == 0 ? 0 : y[r] / denominator;
    store_floats(a->o.data, p->dtype, RECURRENT_AT(a->o, s->b, h, s->first + t), y, p->dim_v);
    store_row_info(a, s, h, t, direct_row_info(denominator));
}

#endif
