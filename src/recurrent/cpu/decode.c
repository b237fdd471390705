/* SPDX-License-Identifier: MIT
 * Decode: token after token, on float32 states in place, each state row read and written once. Compiled once
 * for each instruction set. Row r of the state belongs to entry r of the generalised value (the last one is 1
 * where the read is normalised):
 *
 *     D = M_r Diag(e^g),   u = beta (w_r - [delta rule] D . k),   M_r <- D + u k,   y_r = M_r . q
 *
 * Between the tokens of a call, states of MesaNet are float64. */
#include "src/recurrent/cpu/decode_rows.h"
#include "src/recurrent/cpu/features_exact.h"
#include "src/recurrent/cpu/mesa_decode.h"

#include <omp.h>

typedef struct step {
    const loam_problem *p;
    const loam_args *a;
    const recurrent_form *form;
    recurrent_seq s;
    int64_t item, h, d, width, rows; /* item: index of sequence and head */
    decode_token token;
    mesa_step mesa;
    mesa_ahead ahead; /* the state of the next item, to prefetch */
} step;

static step step_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    step x = { .p = p, .a = a, .form = recurrent_form_of(p->mechanism), .d = p->dim_qk };
    const size_t width = (size_t)features_width(p);
    x.width = (int64_t)width;
    x.rows = recurrent_state_rows(p);
    decode_token *t = &x.token;
    float **const parts[] = { &t->q, &t->k, &t->decay, &t->rest, &t->q_in, &t->k_in, &t->none };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i] = arena_take(pool, width, sizeof(float));
    }
    t->w = arena_take(pool, (size_t)whole_vectors(x.rows), sizeof(float));
    if (x.form->solved) {
        x.mesa = mesa_step_carve(p, pool);
    }
    return x;
}

/* e^g - 1 for -1/2 < g <= 0, to 1 ulp. */
static inline vec decay_less_one(vec g)
{
    vec sum = v_set(1.0f / 8);
    for (int n = 7; n > 0; n--) {
        sum = (g * sum + 1.0f) * (1.0f / (float)n);
    }
    return g * sum;
}

/* e^g, and its rounding error. That error is the same at every token: for a decay of 1 - 2^-12 it would add
 * up to 1e-4 of a state over the tokens that the decay lasts. */
static void load_decay(step *x, int64_t t)
{
    const loam_const_view *g = &x->a->log_decay;
    const float *from = g->data;
    const int64_t at = RECURRENT_AT(*g, x->s.b, x->h, x->s.first + t);
    const bool by_channel = x->form->gate == GATE_CHANNEL;
    float *decay = x->token.decay, *rest = x->token.rest;
    const vec all = v_set(x->form->gate == GATE_HEAD    ? from[x->h * g->head]
                          : x->form->gate == GATE_TOKEN ? from[at]
                                                        : 0);
    if (by_channel) {
        memcpy(decay, from + at, (size_t)x->d * sizeof *decay);
        features_clear_tail(decay, x->d, x->width);
    }
    for (int64_t c = 0; c < x->width; c += VL) {
        const vec gate = by_channel ? v_load(decay + c) : all, power = v_exp(gate);
        v_store(decay + c, power);
        v_store(rest + c, v_select(gate > -0.5f, decay_less_one(gate) - (power - 1.0f), v_set(0)));
    }
}

static void load_value(step *x, int64_t t)
{
    const loam_const_view *v = &x->a->v, *beta = &x->a->beta;
    const int64_t token = x->s.first + t;
    float *w = x->token.w;
    features_clear_tail(w, x->rows - 1, whole_vectors(x->rows));
    w[x->rows - 1] = 1;
    load_floats(w, v->data, x->p->dtype, RECURRENT_AT(*v, x->s.b, x->h, token), x->p->dim_v);
    x->token.beta = x->form->beta ? ((const float *)beta->data)[RECURRENT_AT(*beta, x->s.b, x->h, token)] : 1;
}

static void load_token(step *x, int64_t t)
{
    decode_token *to = &x->token;
    vec along = v_set(0);
    features_load(x->p, &x->a->q, &x->s, x->h, t, (float)x->p->scale, to->q);
    features_load(x->p, &x->a->k, &x->s, x->h, t, 1, to->k);
    load_decay(x, t);
    load_value(x, t);
    for (int64_t c = 0; c < x->width; c += VL) {
        const vec q = v_load(to->q + c), k = v_load(to->k + c), decay = v_load(to->decay + c);
        const vec rest = v_load(to->rest + c);
        v_store(to->q_in + c, q * decay + q * rest);
        v_store(to->k_in + c, k * decay + k * rest);
        along += q * k;
    }
    to->along = v_sum(along);
}

static void put_token(step *x, int64_t t)
{
    const loam_view *o = &x->a->o, *info = &x->a->info;
    float *y = x->token.w;
    const float weight = x->p->normalise ? y[x->p->dim_v] : 1;
    for (int64_t r = 0; x->p->normalise && r < x->p->dim_v; r++) {
        y[r] = weight == 0 ? 0 : y[r] / weight;
    }
    store_floats(o->data, x->p->dtype, RECURRENT_AT(*o, x->s.b, x->h, x->s.first + t), y, x->p->dim_v);
    if (info->data) {
        ((loam_row_info *)info->data)[RECURRENT_AT(*info, x->s.b, x->h, x->s.first + t)] = (loam_row_info){
            weight == 0 ? LOAM_ROW_SINGULAR : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0
        };
    }
}

/* state_out <- state_in. */
static void begin_state(const step *x)
{
    const loam_const_view *in = &x->a->state_in;
    const loam_view *out = &x->a->state_out;
    for (int64_t r = 0; r < x->rows && in->data != out->data; r++) {
        float *to = (float *)out->data + RECURRENT_AT(*out, x->s.index, x->h, r);
        if (in->data) {
            memcpy(to, (const float *)in->data + RECURRENT_AT(*in, x->s.index, x->h, r),
                   (size_t)x->d * sizeof *to);
        } else {
            memset(to, 0, (size_t)x->d * sizeof *to);
        }
    }
}

static void one_head(step *x)
{
    const loam_view *out = &x->a->state_out;
    const decode_state state = { (float *)out->data + RECURRENT_AT(*out, x->s.index, x->h, 0), out->token,
                                 x->rows, out->token == x->d ? DECODE_AHEAD : 0 };
    begin_state(x);
    for (int64_t t = 0; t < x->s.len; t++) {
        load_token(x, t);
        decode_rows(x->form->delta, &state, &x->token, x->d);
        put_token(x, t);
    }
}

/* ------------------------------------------------------------------ MesaNet */

static void mesa_token(step *x, int64_t t, mesa_rows from, mesa_rows to)
{
    const loam_view *o = &x->a->o, *info = &x->a->info;
    const int64_t token = x->s.first + t;
    mesa_step *y = &x->mesa;
    float *w = x->token.w;
    mesa_ahead ahead = t + 1 == x->s.len ? x->ahead : (mesa_ahead){ 0, 0 };
    load_decay(x, t);
    load_value(x, t);
    y->decay = (double)x->token.decay[0];
    y->beta = (double)x->token.beta;
    features_load_exact(x->p, &x->a->k, &x->s, x->h, t, 1, x->token.k, y->k);
    features_load_exact(x->p, &x->a->q, &x->s, x->h, t, x->p->scale, x->token.q, y->q);
    for (int64_t r = 0; r < x->rows; r++) {
        y->u[r] = y->beta * (r < x->p->dim_v ? (double)w[r] : y->k[r - x->p->dim_v]);
    }
    const loam_row_info row = mesa_step_solve(y, from, &ahead);
    mesa_ahead_rest(&ahead);
    mesa_step_move(y, from, to);
    for (int64_t r = 0; r < x->p->dim_v; r++) {
        w[r] = (float)y->y[r];
    }
    store_floats(o->data, x->p->dtype, RECURRENT_AT(*o, x->s.b, x->h, token), w, x->p->dim_v);
    if (info->data) {
        ((loam_row_info *)info->data)[RECURRENT_AT(*info, x->s.b, x->h, token)] = row;
    }
}

/* The range to prefetch: the input state of the next item, if its rows are contiguous. */
static mesa_ahead ahead_of(const step *x)
{
    const loam_const_view *in = &x->a->state_in;
    const int64_t heads = x->p->heads_v, next = x->item + 1;
    if (!in->data || in->token != x->d || next == x->p->batch * heads) {
        return (mesa_ahead){ 0, 0 };
    }
    const float *at = (const float *)in->data + RECURRENT_AT(*in, next / heads, next % heads, 0);
    return (mesa_ahead){ (uintptr_t)at, (uintptr_t)(at + x->rows * x->d) };
}

/* From state_in to state_out; between the tokens of a call the state is float64, in x->mesa.state. */
static void one_mesa_head(step *x)
{
    const loam_const_view *in = &x->a->state_in;
    const loam_view *out = &x->a->state_out;
    const mesa_rows kept = { x->mesa.state, x->width, true };
    const mesa_rows last = { (float *)out->data + RECURRENT_AT(*out, x->s.index, x->h, 0), out->token,
                             false };
    mesa_rows from = { x->mesa.zeros, 0, false };
    if (in->data) {
        const float *at = (const float *)in->data + RECURRENT_AT(*in, x->s.index, x->h, 0);
        from = (mesa_rows){ (void *)(uintptr_t)at, in->token, false };
    }
    x->ahead = ahead_of(x);
    mesa_step_head(x->p, x->a, x->h, &x->mesa);
    for (int64_t t = 0; t < x->s.len; t++) {
        const mesa_rows to = t + 1 < x->s.len ? kept : last;
        mesa_token(x, t, from, to);
        from = to;
    }
}

/* ------------------------------------------------------------------ heads */

static void prefetch_row(const step *x, const loam_const_view *view, int64_t at, int64_t channels)
{
    const int64_t bytes = x->p->dtype == LOAM_F32 ? 4 : 2;
    for (int64_t e = 0; e < channels * bytes; e += MESA_STEP_LINE) {
        __builtin_prefetch((const char *)view->data + at * bytes + e);
    }
}

/* Prefetches the first token of an item. */
static void prefetch_token(const step *x, int64_t item)
{
    const loam_problem *p = x->p;
    const loam_args *a = x->a;
    const int64_t h = item % p->heads_v, key = recurrent_key_head(p, h);
    const recurrent_seq s = recurrent_seq_at(p, a, item / p->heads_v);
    prefetch_row(x, &a->q, RECURRENT_AT(a->q, s.b, key, s.first), p->dim_qk);
    prefetch_row(x, &a->k, RECURRENT_AT(a->k, s.b, key, s.first), p->dim_qk);
    prefetch_row(x, &a->v, RECURRENT_AT(a->v, s.b, h, s.first), p->dim_v);
}

static void one_item(step *x, int64_t item)
{
    const int64_t heads = x->p->heads_v;
    if (item + 1 < x->p->batch * heads) {
        prefetch_token(x, item + 1);
    }
    x->item = item;
    x->s = recurrent_seq_at(x->p, x->a, item / heads);
    x->h = item % heads;
    if (x->form->solved && x->s.len > 0) {
        one_mesa_head(x);
    } else {
        one_head(x);
    }
}

static size_t step_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    step_carve(p, NULL, &pool);
    return pool.used;
}

size_t RECURRENT_JOIN(ISA(recurrent_decode), work)(const loam_problem *p)
{
    return size_mul(step_bytes(p), (size_t)p->threads);
}

/* Threads share runs of items, whose states are mostly contiguous. */
loam_status ISA(recurrent_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const size_t each = step_bytes(p);
    const int64_t items = p->batch * p->heads_v, run = items / (4 * (int64_t)p->threads) + 1;
#pragma omp parallel num_threads(p->threads)
    {
        char *mine = (char *)a->work + each * (size_t)omp_get_thread_num();
        arena pool = { mine, 0 };
        memset(mine, 0, each);
        step x = step_carve(p, a, &pool);
#pragma omp for schedule(dynamic, run)
        for (int64_t item = 0; item < items; item++) {
            one_item(&x, item);
        }
    }
    return loam_succeed(error);
}
