/* SPDX-License-Identifier: MIT
 * Rows of float32 states where they lie, several at a time, so that none waits for another's sums: read once, written once,
 * and on their way from memory while those before them are at work. */
#ifndef LOAM_RECURRENT_DECODE_ROWS_H
#define LOAM_RECURRENT_DECODE_ROWS_H

#include "src/simd/table.h"

/* A state is read from, and written to, rows `step` floats apart; 0: they are one row. */
typedef struct decode_from {
    const float *at;
    int64_t step;
} decode_from;

typedef struct decode_to {
    float *at;
    int64_t step;
} decode_to;

/* What one token brings, as whole vectors with zeros at the end. */
typedef struct decode_token {
    float *q, *k, *decay;
    float *q_in, *k_in; /* times the decay */
    float *w;           /* [rows in whole vectors] of the generalised value; in the end y */
    float *zeros;       /* [width]: a row of the state that is not there */
    float *spare;       /* [width]: where such a row is written */
    float beta, along;  /* along: k . q */
} decode_token;

enum {
    DECODE_AHEAD = 16384, /* bytes of states between what is at work and what is asked for */
    DECODE_LINE = 16      /* floats */
};

/* The states of a head and of the one after it: rows that will be read, in their order. */
typedef struct decode_stream {
    decode_from now, next;
    int64_t rows, ahead; /* ahead: rows from what is at work to what is asked for; at most `rows` */
} decode_stream;

static inline decode_stream decode_stream_of(decode_from now, decode_from next, int64_t rows, int64_t d)
{
    const int64_t some = DECODE_AHEAD / (int64_t)sizeof(float) / d;
    return (decode_stream){ now, next, rows, some < 1 ? 1 : some < rows ? some : rows };
}

/* What to ask for when row r is at work. */
VEC_INLINE const float *decode_ahead(const decode_stream *s, int64_t r)
{
    const int64_t then = r + s->ahead;
    return then < s->rows ? s->now.at + then * s->now.step : s->next.at + (then - s->rows) * s->next.step;
}

VEC_INLINE void v_store_part(float *x, vec v, int n) { memcpy(x, &v, (size_t)n * sizeof(float)); }

/* What a block of rows is at. */
typedef struct decode_block {
    const float *from[VL], *ahead[VL];
    float *to[VL];
    float u[VL];
} decode_block;

VEC_INLINE void decode_block_at(const int count, decode_block *b, const decode_stream *s, decode_to to,
                                int64_t r, const decode_token *x)
{
    for (int e = 0; e < count; e++) {
        const bool is = r + e < s->rows;
        b->from[e] = is ? s->now.at + (r + e) * s->now.step : x->zeros;
        b->to[e] = is ? to.at + (r + e) * to.step : x->spare;
        b->ahead[e] = decode_ahead(s, is ? r + e : r);
    }
}

VEC_INLINE void decode_prefetch(const decode_block *b, int e, int64_t c)
{
    if (c % DECODE_LINE == 0) {
        __builtin_prefetch(b->ahead[e] + c);
    }
}

VEC_INLINE vec decode_load(const float *row, int n)
{
    return n == VL ? v_load(row) : v_load_part(LOAM_F32, (const char *)row, n);
}

VEC_INLINE void decode_store(float *row, vec v, int n)
{
    n == VL ? v_store(row, v) : v_store_part(row, v, n);
}

/* One vector, or the last n channels, of VL rows: M <- M Diag(e^g) + u k^T, sum += M . q */
VEC_INLINE void decode_add_step(const decode_block *b, const decode_token *x, int64_t c, int n, vec sum[VL])
{
    const vec q = v_load(x->q + c), k = v_load(x->k + c), decay = v_load(x->decay + c);
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++) {
        const vec m = decode_load(b->from[e] + c, n) * decay + v_set(b->u[e]) * k;
        decode_store(b->to[e] + c, m, n);
        sum[e] += m * q;
        decode_prefetch(b, e, c);
    }
}

/* VL rows from r on, and their entries of w, which become those of y. */
static inline void decode_add_rows(const decode_stream *s, decode_to to, int64_t r, const decode_token *x,
                                   int64_t d)
{
    const int rest = (int)(d % VL);
    decode_block b;
    vec sum[VL];
    decode_block_at(VL, &b, s, to, r, x);
    v_store(b.u, v_load(x->w + r) * x->beta);
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++) {
        sum[e] = v_set(0);
    }
    for (int64_t c = 0; c < d - rest; c += VL) {
        decode_add_step(&b, x, c, VL, sum);
    }
    if (rest > 0) {
        decode_add_step(&b, x, d - rest, rest, sum);
    }
    v_store(x->w + r, v_sums(sum));
}

enum { DELTA_ROWS = VL / 2 };

/* One vector, or the last n channels, of DELTA_ROWS rows: sum += M Diag(e^g) k, then M Diag(e^g) q */
VEC_INLINE void decode_look_step(const decode_block *b, const decode_token *x, int64_t c, int n, vec sum[VL])
{
    const vec q = v_load(x->q_in + c), k = v_load(x->k_in + c);
#pragma GCC unroll 8
    for (int e = 0; e < DELTA_ROWS; e++) {
        const vec m = decode_load(b->from[e] + c, n);
        sum[e] += m * k;
        sum[DELTA_ROWS + e] += m * q;
        decode_prefetch(b, e, c);
    }
}

VEC_INLINE void decode_write_step(const decode_block *b, const decode_token *x, int64_t c, int n)
{
    const vec k = v_load(x->k + c), decay = v_load(x->decay + c);
#pragma GCC unroll 8
    for (int e = 0; e < DELTA_ROWS; e++) {
        decode_store(b->to[e] + c, decode_load(b->from[e] + c, n) * decay + v_set(b->u[e]) * k, n);
    }
}

/* The same by the delta rule, DELTA_ROWS at a time. With D = M Diag(e^g) both D . k and y = D . q + u (k . q) come from one
 * look at the rows, which are still in the nearest cache when they are written. */
static inline void decode_delta_rows(const decode_stream *s, decode_to to, int64_t r, const decode_token *x,
                                     int64_t d)
{
    const int rest = (int)(d % VL);
    decode_block b;
    vec sum[VL];
    float seen[VL];
    decode_block_at(DELTA_ROWS, &b, s, to, r, x);
#pragma GCC unroll 16
    for (int e = 0; e < VL; e++) {
        sum[e] = v_set(0);
    }
    for (int64_t c = 0; c < d - rest; c += VL) {
        decode_look_step(&b, x, c, VL, sum);
    }
    if (rest > 0) {
        decode_look_step(&b, x, d - rest, rest, sum);
    }
    v_store(seen, v_sums(sum));
    for (int e = 0; e < DELTA_ROWS; e++) {
        b.u[e] = x->beta * (x->w[r + e] - seen[e]);
        x->w[r + e] = seen[DELTA_ROWS + e] + b.u[e] * x->along;
    }
    for (int64_t c = 0; c < d - rest; c += VL) {
        decode_write_step(&b, x, c, VL);
    }
    if (rest > 0) {
        decode_write_step(&b, x, d - rest, rest);
    }
}

/* All rows of a state. */
static inline void decode_rows(bool delta, const decode_stream *s, decode_to to, const decode_token *x,
                               int64_t d)
{
    for (int64_t r = 0; delta && r < s->rows; r += DELTA_ROWS) {
        decode_delta_rows(s, to, r, x, d);
    }
    for (int64_t r = 0; !delta && r < s->rows; r += VL) {
        decode_add_rows(s, to, r, x, d);
    }
}

#endif
