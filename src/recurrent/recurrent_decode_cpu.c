/* SPDX-License-Identifier: MIT
 * Decode: token after token on float32 states where they lie, row by row, each read and written once. Compiled once per
 * instruction set. A row of the state belongs to an entry of the value (to 1 in the last, where the read is normalised):
 *
 *     D = M_r Diag(e^g),   u = beta (w_r - [delta rule] D . k),   M_r <- D + u k,   y_r = M_r . q
 *
 * MesaNet's states are float64 while a call lasts. */
#include "src/recurrent/recurrent_features_exact.h"
#include "src/recurrent/recurrent_mesa_decode.h"

#include <omp.h>

typedef struct step {
    const loam_problem *p;
    const loam_args *a;
    const recurrent_form *form;
    recurrent_seq s;
    int64_t h, d, rows;
    float *q, *k, *decay; /* [d in whole vectors] */
    float *q_in, *k_in;   /* likewise: times the decay */
    float *v;             /* [rows]; y in the end */
    float beta, along;    /* along: k . q */
    mesa_step mesa;
} step;

static step step_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    step x = { .p = p, .a = a, .form = recurrent_form_of(p->mechanism), .d = p->dim_qk };
    const size_t width = (size_t)features_width(p);
    x.rows = recurrent_state_rows(p);
    x.q = arena_take(pool, width, sizeof(float));
    x.k = arena_take(pool, width, sizeof(float));
    x.decay = arena_take(pool, width, sizeof(float));
    x.q_in = arena_take(pool, width, sizeof(float));
    x.k_in = arena_take(pool, width, sizeof(float));
    x.v = arena_take(pool, (size_t)x.rows, sizeof(float));
    if (x.form->solved) {
        x.mesa = mesa_step_carve(p, pool);
    }
    return x;
}

static void load_decay(step *x, int64_t t)
{
    const loam_const_view *g = &x->a->log_decay;
    const float *from = g->data;
    const int64_t at = RECURRENT_AT(*g, x->s.b, x->h, x->s.first + t);
    float one = 1;
    switch (x->form->gate) {
    case GATE_NONE: break;
    case GATE_HEAD: one = expf(from[x->h * g->head]); break;
    case GATE_TOKEN: one = expf(from[at]); break;
    case GATE_CHANNEL:
        for (int64_t c = 0; c < x->d; c++) {
            x->decay[c] = expf(from[at + c]);
        }
        return;
    }
    for (int64_t c = 0; c < x->d; c++) {
        x->decay[c] = one;
    }
}

static void load_token(step *x, int64_t t)
{
    const loam_const_view *v = &x->a->v, *beta = &x->a->beta;
    const int64_t token = x->s.first + t;
    features_load(x->p, &x->a->q, &x->s, x->h, t, (float)x->p->scale, x->q);
    features_load(x->p, &x->a->k, &x->s, x->h, t, 1, x->k);
    load_decay(x, t);
    x->v[x->rows - 1] = 1;
    load_floats(x->v, v->data, x->p->dtype, RECURRENT_AT(*v, x->s.b, x->h, token), x->p->dim_v);
    x->beta = x->form->beta ? ((const float *)beta->data)[RECURRENT_AT(*beta, x->s.b, x->h, token)] : 1;
}

static void decay_rows(step *x)
{
    for (int64_t c = 0; c < x->d; c++) {
        x->q_in[c] = x->q[c] * x->decay[c];
        x->k_in[c] = x->k[c] * x->decay[c];
    }
    x->along = features_dot(x->q, x->k, features_width(x->p));
}

/* One row of the state and its entry w of the value. Returns y. */
static float add_row(const step *x, float *restrict row, float w)
{
    const float u = x->beta * w;
    float y = 0;
#pragma omp simd reduction(+ : y)
    for (int64_t c = 0; c < x->d; c++) {
        const float m = row[c] * x->decay[c] + u * x->k[c];
        row[c] = m;
        y += m * x->q[c];
    }
    return y;
}

/* The same by the delta rule. With D = M Diag(e^g) both D . k and y = D . q + u (k . q) come from one look at the row. */
static float delta_row(const step *x, float *restrict row, float w)
{
    float known = 0, y = 0;
#pragma omp simd reduction(+ : known, y)
    for (int64_t c = 0; c < x->d; c++) {
        known += row[c] * x->k_in[c];
        y += row[c] * x->q_in[c];
    }
    const float u = x->beta * (w - known);
#pragma omp simd
    for (int64_t c = 0; c < x->d; c++) {
        row[c] = row[c] * x->decay[c] + u * x->k[c];
    }
    return y + u * x->along;
}

static void put_token(step *x, int64_t t)
{
    const loam_view *o = &x->a->o, *info = &x->a->info;
    const float weight = x->p->normalise ? x->v[x->p->dim_v] : 1;
    for (int64_t r = 0; x->p->normalise && r < x->p->dim_v; r++) {
        x->v[r] = weight == 0 ? 0 : x->v[r] / weight;
    }
    store_floats(o->data, x->p->dtype, RECURRENT_AT(*o, x->s.b, x->h, x->s.first + t), x->v, x->p->dim_v);
    if (info->data) {
        ((loam_row_info *)info->data)[RECURRENT_AT(*info, x->s.b, x->h, x->s.first + t)] = (loam_row_info){
            weight == 0 ? LOAM_ROW_SINGULAR : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0
        };
    }
}

/* state_out <- state_in */
static void begin_head(const step *x)
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
    begin_head(x);
    for (int64_t t = 0; t < x->s.len; t++) {
        load_token(x, t);
        decay_rows(x);
        for (int64_t r = 0; r < x->rows; r++) {
            float *row = (float *)out->data + RECURRENT_AT(*out, x->s.index, x->h, r);
            x->v[r] = x->form->delta ? delta_row(x, row, x->v[r]) : add_row(x, row, x->v[r]);
        }
        put_token(x, t);
    }
}

/* ------------------------------------------------------------------ MesaNet */

static void mesa_load_state(const step *x)
{
    const loam_const_view *in = &x->a->state_in;
    for (int64_t r = 0; r < x->rows; r++) {
        const float *from = (const float *)in->data + (in->data ? RECURRENT_AT(*in, x->s.index, x->h, r) : 0);
        for (int64_t c = 0; c < x->d; c++) {
            x->mesa.state[r * x->d + c] = in->data ? (double)from[c] : 0;
        }
    }
}

static void mesa_store_state(const step *x)
{
    const loam_view *out = &x->a->state_out;
    for (int64_t r = 0; r < x->rows; r++) {
        float *to = (float *)out->data + RECURRENT_AT(*out, x->s.index, x->h, r);
        for (int64_t c = 0; c < x->d; c++) {
            to[c] = (float)x->mesa.state[r * x->d + c];
        }
    }
}

static void mesa_token(step *x, int64_t t)
{
    const loam_view *o = &x->a->o, *info = &x->a->info;
    const int64_t token = x->s.first + t;
    mesa_step *y = &x->mesa;
    load_token(x, t);
    features_load_exact(x->p, &x->a->k, &x->s, x->h, t, 1, x->k, y->k);
    features_load_exact(x->p, &x->a->q, &x->s, x->h, t, x->p->scale, x->q, y->q);
    mesa_step_write(y, x->d, x->p->dim_v, (double)x->decay[0], (double)x->beta, x->v);
    const loam_row_info row = mesa_step_solve(y, x->d, features_width(x->p), x->p->dim_v);
    for (int64_t r = 0; r < x->p->dim_v; r++) {
        x->v[r] = (float)cholesky_dot(y->state + r * x->d, y->x, x->d);
    }
    store_floats(o->data, x->p->dtype, RECURRENT_AT(*o, x->s.b, x->h, token), x->v, x->p->dim_v);
    if (info->data) {
        ((loam_row_info *)info->data)[RECURRENT_AT(*info, x->s.b, x->h, token)] = row;
    }
}

static void one_mesa_head(step *x)
{
    mesa_step_ridge(x->p, x->a, x->h, &x->mesa);
    mesa_load_state(x);
    for (int64_t t = 0; t < x->s.len; t++) {
        mesa_token(x, t);
    }
    mesa_store_state(x);
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

loam_status ISA(recurrent_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const size_t each = step_bytes(p);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + each * (size_t)omp_get_thread_num(), 0 };
        step x = step_carve(p, a, &pool);
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t b = 0; b < p->batch; b++) {
            for (int64_t h = 0; h < p->heads_v; h++) {
                x.s = recurrent_seq_at(p, a, b);
                x.h = h;
                x.form->solved ? one_mesa_head(&x) : one_head(&x);
            }
        }
    }
    return loam_succeed(error);
}
