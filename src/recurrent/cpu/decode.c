/* SPDX-License-Identifier: MIT
 * Decode: token after token, by the rows of decode.h. Compiled once for each instruction set. Between the
 * tokens of a call, states of MesaNet are float64. */
#include "src/recurrent/cpu/decode.h"
#include "src/recurrent/cpu/mesa_decode.h"

#include <omp.h>

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
    const loam_const_view *beta = &s->a->beta;
    const int64_t at = RECURRENT_AT(*beta, s->seq.b, s->h, s->seq.first + t);
    decode_load_value(&s->token, s->p, s->a, &s->seq, s->h, t, s->rows);
    s->token.beta = s->form->beta ? ((const float *)beta->data)[at] : 1;
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
        decode_store_value(&s->token, s->p, s->a, &s->seq, s->h, t);
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
