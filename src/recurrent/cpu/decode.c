/* SPDX-License-Identifier: MIT
 * Decode: token after token, on float32 states in place, each state row read and written once. Compiled once
 * for each instruction set. Row r of the state belongs to entry r of the generalised value (the last one is 1
 * where the read is normalised):
 *
 *     D = M_r Diag(e^g),   u = beta (w_r - [delta rule] D . k),   M_r <- D + u k,   y_r = M_r . q
 *
 * Between the tokens of a call, states of MesaNet are float64. */
#include "src/recurrent/cpu/mesa_decode.h"
#include "src/simd/table.h"

#include <omp.h>

/* ------------------------------------------------------------------ the rows of a state
 *
 * Several rows at a time, so that their sums are independent. Each row is read once and written once, and
 * prefetched while the rows before it are processed. */

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

/* ------------------------------------------------------------------ one head */

typedef struct scratch {
    const loam_problem *p;
    const loam_args *a;
    const recurrent_form *form;
    recurrent_seq seq;
    int64_t item, h, d, width, rows; /* item: index of sequence and head */
    decode_token token;
    mesa_decode mesa;
    prefetch_range ahead; /* the state of the next item, to prefetch */
} scratch;

static scratch scratch_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    scratch s = { .p = p, .a = a, .form = recurrent_form_of(p->mechanism), .d = p->dim_qk };
    const size_t width = (size_t)features_width(p);
    s.width = (int64_t)width;
    s.rows = recurrent_state_rows(p);
    decode_token *t = &s.token;
    float **const parts[] = { &t->q, &t->k, &t->decay, &t->decay_error, &t->q_in, &t->k_in, &t->spare };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i] = arena_take(pool, width, sizeof(float));
    t->w = arena_take(pool, (size_t)whole_vectors(s.rows), sizeof(float));
    if (s.form->solved) s.mesa = mesa_decode_carve(p, pool);
    return s;
}

/* e^g - 1 for -1/2 < g <= 0, to 1 ulp. */
static inline vec decay_less_one(vec g)
{
    vec sum = v_set(1.0f / 8);
    for (int n = 7; n > 0; n--)
        sum = (g * sum + 1.0f) * (1.0f / (float)n);
    return g * sum;
}

/* e^g, and its rounding error. That error is the same at every token: for a decay of 1 - 2^-12 it would add
 * up to 1e-4 of a state over the tokens that the decay lasts. */
static void load_decay(scratch *s, int64_t t)
{
    const loam_const_view *g = &s->a->log_decay;
    const float *from = g->data;
    const int64_t at = RECURRENT_AT(*g, s->seq.b, s->h, s->seq.first + t);
    const bool by_channel = s->form->gate == GATE_CHANNEL;
    float *decay = s->token.decay, *error = s->token.decay_error;
    const vec all = v_set(s->form->gate == GATE_HEAD    ? from[s->h * g->head]
                          : s->form->gate == GATE_TOKEN ? from[at]
                                                        : 0);
    if (by_channel) {
        memcpy(decay, from + at, (size_t)s->d * sizeof *decay);
        features_clear_tail(decay, s->d, s->width);
    }
    for (int64_t c = 0; c < s->width; c += VL) {
        const vec gate = by_channel ? v_load(decay + c) : all, power = v_exp(gate);
        v_store(decay + c, power);
        v_store(error + c, v_select(gate > -0.5f, decay_less_one(gate) - (power - 1.0f), v_set(0)));
    }
}

static void load_value(scratch *s, int64_t t)
{
    const loam_const_view *v = &s->a->v, *beta = &s->a->beta;
    const int64_t token = s->seq.first + t;
    float *w = s->token.w;
    features_clear_tail(w, s->rows - 1, whole_vectors(s->rows));
    w[s->rows - 1] = 1;
    load_floats(w, v->data, s->p->dtype, RECURRENT_AT(*v, s->seq.b, s->h, token), s->p->dim_v);
    s->token.beta = s->form->beta ? ((const float *)beta->data)[RECURRENT_AT(*beta, s->seq.b, s->h, token)]
                                  : 1;
}

static void load_token(scratch *s, int64_t t)
{
    decode_token *to = &s->token;
    vec k_dot_q = v_set(0);
    features_load(s->p, &s->a->q, &s->seq, s->h, t, (float)s->p->scale, to->q);
    features_load(s->p, &s->a->k, &s->seq, s->h, t, 1, to->k);
    load_decay(s, t);
    load_value(s, t);
    for (int64_t c = 0; c < s->width; c += VL) {
        const vec q = v_load(to->q + c), k = v_load(to->k + c), decay = v_load(to->decay + c);
        const vec error = v_load(to->decay_error + c);
        v_store(to->q_in + c, q * decay + q * error);
        v_store(to->k_in + c, k * decay + k * error);
        k_dot_q += q * k;
    }
    to->k_dot_q = v_sum(k_dot_q);
}

static void store_token(scratch *s, int64_t t)
{
    const loam_view *o = &s->a->o;
    float *y = s->token.w;
    const float denominator = s->p->normalise ? y[s->p->dim_v] : 1;
    for (int64_t r = 0; s->p->normalise && r < s->p->dim_v; r++)
        y[r] = denominator == 0 ? 0 : y[r] / denominator;
    store_floats(o->data, s->p->dtype, RECURRENT_AT(*o, s->seq.b, s->h, s->seq.first + t), y, s->p->dim_v);
    store_row_info(s->a, &s->seq, s->h, t, direct_row_info(denominator));
}

/* state_out <- state_in. */
static void copy_state(const scratch *s)
{
    const loam_const_view *in = &s->a->state_in;
    const loam_view *out = &s->a->state_out;
    for (int64_t r = 0; r < s->rows && in->data != out->data; r++) {
        float *to = (float *)out->data + RECURRENT_AT(*out, s->seq.index, s->h, r);
        if (in->data) {
            memcpy(to, (const float *)in->data + RECURRENT_AT(*in, s->seq.index, s->h, r),
                   (size_t)s->d * sizeof *to);
        } else {
            memset(to, 0, (size_t)s->d * sizeof *to);
        }
    }
}

static void decode_head(scratch *s)
{
    const loam_view *out = &s->a->state_out;
    const decode_state state = { (float *)out->data + RECURRENT_AT(*out, s->seq.index, s->h, 0), out->token,
                                 s->rows, out->token == s->d ? DECODE_AHEAD : 0 };
    copy_state(s);
    for (int64_t t = 0; t < s->seq.len; t++) {
        load_token(s, t);
        decode_rows(s->form->delta, &state, &s->token, s->d);
        store_token(s, t);
    }
}

/* ------------------------------------------------------------------ MesaNet */

static void mesa_decode_token(scratch *s, int64_t t, mesa_rows from, mesa_rows to)
{
    const loam_view *o = &s->a->o;
    mesa_decode *m = &s->mesa;
    float *w = s->token.w;
    prefetch_range ahead = t + 1 == s->seq.len ? s->ahead : (prefetch_range){ 0, 0 };
    load_decay(s, t);
    load_value(s, t);
    m->decay = (double)s->token.decay[0];
    m->beta = (double)s->token.beta;
    features_load64(s->p, &s->a->k, &s->seq, s->h, t, 1, s->token.k, m->k);
    features_load64(s->p, &s->a->q, &s->seq, s->h, t, s->p->scale, s->token.q, m->q);
    for (int64_t r = 0; r < s->rows; r++)
        m->u[r] = m->beta * (r < s->p->dim_v ? (double)w[r] : m->k[r - s->p->dim_v]);
    const loam_row_info row = mesa_decode_solve(m, from, &ahead);
    prefetch_rest(&ahead);
    mesa_decode_update(m, from, to);
    for (int64_t r = 0; r < s->p->dim_v; r++)
        w[r] = (float)m->y[r];
    store_floats(o->data, s->p->dtype, RECURRENT_AT(*o, s->seq.b, s->h, s->seq.first + t), w, s->p->dim_v);
    store_row_info(s->a, &s->seq, s->h, t, row);
}

/* The range to prefetch: the input state of the next item, if its rows are contiguous. */
static prefetch_range next_state_of(const scratch *s)
{
    const loam_const_view *in = &s->a->state_in;
    const int64_t heads = s->p->heads_v, next = s->item + 1;
    if (!in->data || in->token != s->d || next == s->p->batch * heads) return (prefetch_range){ 0, 0 };
    const float *at = (const float *)in->data + RECURRENT_AT(*in, next / heads, next % heads, 0);
    return (prefetch_range){ (uintptr_t)at, (uintptr_t)(at + s->rows * s->d) };
}

/* From state_in to state_out; between the tokens of a call the state is float64, in s->mesa.state. */
static void mesa_decode_head(scratch *s)
{
    const loam_const_view *in = &s->a->state_in;
    const loam_view *out = &s->a->state_out;
    const mesa_rows kept = { s->mesa.state, s->width, true };
    const mesa_rows last = { (float *)out->data + RECURRENT_AT(*out, s->seq.index, s->h, 0), out->token,
                             false };
    mesa_rows from = { s->mesa.zeros, 0, false };
    if (in->data) {
        const float *at = (const float *)in->data + RECURRENT_AT(*in, s->seq.index, s->h, 0);
        from = (mesa_rows){ (void *)(uintptr_t)at, in->token, false };
    }
    s->ahead = next_state_of(s);
    s->mesa.bounds = ridge_load(s->p, s->a, s->h, s->mesa.ridge);
    for (int64_t t = 0; t < s->seq.len; t++) {
        const mesa_rows to = t + 1 < s->seq.len ? kept : last;
        mesa_decode_token(s, t, from, to);
        from = to;
    }
}

/* ------------------------------------------------------------------ heads */

static void prefetch_row(const scratch *s, const loam_const_view *view, int64_t at, int64_t channels)
{
    const int64_t bytes = s->p->dtype == LOAM_F32 ? 4 : 2;
    for (int64_t e = 0; e < channels * bytes; e += CACHE_LINE)
        __builtin_prefetch((const char *)view->data + at * bytes + e);
}

/* Prefetches the first token of an item. */
static void prefetch_token(const scratch *s, int64_t item)
{
    const loam_problem *p = s->p;
    const loam_args *a = s->a;
    const int64_t h = item % p->heads_v, key = recurrent_key_head(p, h);
    const recurrent_seq seq = recurrent_seq_at(p, a, item / p->heads_v);
    prefetch_row(s, &a->q, RECURRENT_AT(a->q, seq.b, key, seq.first), p->dim_qk);
    prefetch_row(s, &a->k, RECURRENT_AT(a->k, seq.b, key, seq.first), p->dim_qk);
    prefetch_row(s, &a->v, RECURRENT_AT(a->v, seq.b, h, seq.first), p->dim_v);
}

static void decode_item(scratch *s, int64_t item)
{
    const int64_t heads = s->p->heads_v;
    if (item + 1 < s->p->batch * heads) prefetch_token(s, item + 1);
    s->item = item;
    s->seq = recurrent_seq_at(s->p, s->a, item / heads);
    s->h = item % heads;
    if (s->form->solved && s->seq.len > 0)
        mesa_decode_head(s);
    else
        decode_head(s);
}

static size_t scratch_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    scratch_carve(p, NULL, &pool);
    return pool.used;
}

size_t RECURRENT_JOIN(ISA(recurrent_decode), work)(const loam_problem *p)
{
    return size_mul(scratch_bytes(p), (size_t)p->threads);
}

/* Threads share runs of items, whose states are mostly contiguous. */
loam_status ISA(recurrent_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const size_t each = scratch_bytes(p);
    const int64_t items = p->batch * p->heads_v, run = items / (4 * (int64_t)p->threads) + 1;
#pragma omp parallel num_threads(p->threads)
    {
        char *mine = (char *)a->work + each * (size_t)omp_get_thread_num();
        arena pool = { mine, 0 };
        memset(mine, 0, each);
        scratch s = scratch_carve(p, a, &pool);
#pragma omp for schedule(dynamic, run)
        for (int64_t item = 0; item < items; item++)
            decode_item(&s, item);
    }
    return loam_succeed(error);
}
