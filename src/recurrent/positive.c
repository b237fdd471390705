/* SPDX-License-Identifier: MIT */
#include "src/recurrent/positive.h"

/* ------------------------------------------------------------------ the recurrence */

loam_problem positive_problem(const positive *x)
{
    loam_problem r = *x->p;
    const bool packed = sequence_packed(x->p);
    r.mechanism = LOAM_GLA;
    r.feature_map = LOAM_FEATURES_IDENTITY;
    r.dtype = x->real;
    r.heads_q = r.heads_kv = r.heads_v = x->heads;
    r.len_q = r.len_kv = x->p->len_q * x->reads;
    r.total_q = r.total_kv = packed ? x->p->total_q * x->reads : -1;
    r.dim_qk = x->p->features;
    r.features = 0, r.features_shared = 0;
    r.scale = 1;
    return r;
}

static int64_t rows_of(const positive *x)
{
    return (sequence_packed(x->p) ? 1 : x->p->batch) * x->heads * x->axis;
}

static size_t state_size(const positive *x)
{
    const size_t rows = size_mul((size_t)x->p->batch, (size_t)x->heads * (size_t)(x->p->dim_v + 1));
    return size_mul(rows, (size_t)x->p->features);
}

static void carve(positive *x, arena *pool)
{
    const size_t rows = (size_t)rows_of(x), each = dtype_bytes(x->real);
    const size_t features = size_mul(rows, (size_t)x->p->features),
                 values = x->staged ? size_mul(rows, (size_t)x->p->dim_v) : 0,
                 states = x->states ? state_size(x) : 0;
    const bool backward = x->p->pass == LOAM_BACKWARD;
    x->q = arena_take(pool, features, each);
    x->k = arena_take(pool, features, each);
    x->gate = arena_take(pool, features, each);
    x->v = arena_take(pool, values, each);
    x->o = arena_take(pool, values, each);
    x->in = arena_take(pool, states, each);
    x->out = arena_take(pool, states, each);
    if (backward) {
        x->grad_q = arena_take(pool, features, each);
        x->grad_k = arena_take(pool, features, each);
        x->grad_v = arena_take(pool, values, each);
        x->start = arena_take(pool, states, each);
    } else {
        x->info = arena_take(pool, x->staged ? rows : 0, sizeof *x->info);
    }
    x->cu = arena_take(pool, sequence_packed(x->p) ? (size_t)x->p->batch + 1 : 0, sizeof *x->cu);
}

static loam_view features_of(const positive *x, void *data)
{
    return loam_dense_out(data, x->heads, x->axis, x->p->features);
}

static loam_view values_of(const positive *x, void *data)
{
    return loam_dense_out(data, x->heads, x->axis, x->p->dim_v);
}

static loam_view state_of(const positive *x, void *data)
{
    return loam_dense_out(data, x->heads, x->p->dim_v + 1, x->p->features);
}

static loam_const_view constant(loam_view v) { return (loam_const_view){ v.data, v.batch, v.head, v.token }; }

/* The arguments that have arrays of their own take the place of the caller's where these are given. */
static loam_const_view input(bool own, loam_const_view given, loam_view staged)
{
    return own && given.data ? constant(staged) : given;
}

static loam_view output(bool own, loam_view given, loam_view staged)
{
    return own && given.data ? staged : given;
}

positive_read positive_recurrence(const positive *x)
{
    const loam_args *a = x->a;
    const bool backward = x->p->pass == LOAM_BACKWARD;
    loam_args r = { .q = constant(features_of(x, x->q)),
                    .k = constant(features_of(x, x->k)),
                    .log_decay = constant(features_of(x, x->gate)),
                    .v = input(x->staged, a->v, values_of(x, x->v)),
                    .cu_q = x->reads > 1 && sequence_packed(x->p) ? x->cu : a->cu_q,
                    .stream = a->stream };
    if (backward) {
        r.state_in = input(x->states, a->state_in, state_of(x, x->start));
        r.grad_o = input(x->staged, a->grad_o, values_of(x, x->o));
        r.grad_q = features_of(x, x->grad_q);
        r.grad_k = features_of(x, x->grad_k);
        r.grad_v = output(x->staged, a->grad_v, values_of(x, x->grad_v));
        r.grad_state_out = input(x->states, a->grad_state_out, state_of(x, x->in));
        r.grad_state_in = output(x->states, a->grad_state_in, state_of(x, x->out));
    } else {
        r.state_in = input(x->states, a->state_in, state_of(x, x->in));
        r.state_out = output(x->states, a->state_out, state_of(x, x->out));
        r.o = output(x->staged, a->o, values_of(x, x->o));
        r.info = output(x->staged, a->info, loam_dense_out(x->info, x->heads, x->axis, 1));
    }
    return (positive_read){ positive_problem(x), r };
}

positive positive_make(const loam_problem *p, const loam_args *a, loam_dtype real, arena *pool)
{
    const int64_t group = p->heads_q / p->heads_kv;
    positive x = { .p = p, .a = a, .real = real, .heads = recurrent_state_heads(p) };
    x.reads = p->features_shared ? group : 1;
    x.sharing = p->features_shared ? 1 : group;
    x.axis = (sequence_packed(p) ? p->total_q : p->len_q) * x.reads;
    x.staged = p->dtype != real || group > 1;
    x.states = dtype_real(p->dtype) != real;
    carve(&x, pool);
    return x;
}

/* ------------------------------------------------------------------ copies */

static void take_values(const positive *x, const loam_const_view *from, bool keys, void *to)
{
#pragma omp parallel for num_threads(x->p->threads) schedule(static)
    for (int64_t i = 0; i < rows_of(x); i++)
        for (int64_t c = 0; c < x->p->dim_v; c++)
            positive_take(x, from, keys, to, i, c);
}

static void give_values(const positive *x, int64_t heads,
                        void (*give)(const positive *x, int64_t b, int64_t h, int64_t t, int64_t c))
{
    const int64_t tokens = x->axis / x->reads, batch = sequence_packed(x->p) ? 1 : x->p->batch;
#pragma omp parallel for num_threads(x->p->threads) schedule(static)
    for (int64_t i = 0; i < batch * heads * tokens; i++)
        for (int64_t c = 0; c < x->p->dim_v; c++)
            give(x, i / tokens / heads, i / tokens % heads, i % tokens, c);
}

/* Rows of S and s, between a state of the caller and one of the recurrence. */
static void copy_states(const positive *x, loam_const_view from, loam_dtype from_type, loam_view to,
                        loam_dtype to_type)
{
    const int64_t rows = x->p->dim_v + 1, states = x->p->batch * x->heads;
    for (int64_t i = 0; from.data && to.data && i < states * rows; i++) {
        const int64_t r = i % rows, n = i / rows % x->heads, b = i / rows / x->heads;
        for (int64_t m = 0; m < x->p->features; m++) {
            element_store(to.data, to_type, RECURRENT_AT(to, b, n, r) + m,
                          element_load(from.data, from_type, RECURRENT_AT(from, b, n, r) + m));
        }
    }
}

static void take_states(const positive *x, loam_const_view from, void *to)
{
    copy_states(x, from, dtype_real(x->p->dtype), state_of(x, to), x->real);
}

void positive_stage(const positive *x)
{
    const loam_args *a = x->a;
    const bool backward = x->p->pass == LOAM_BACKWARD;
    for (int64_t b = 0; sequence_packed(x->p) && b <= x->p->batch; b++)
        x->cu[b] = a->cu_q[b] * x->reads;
    if (x->staged) {
        take_values(x, &a->v, true, x->v);
        if (backward) take_values(x, &a->grad_o, false, x->o);
    }
    if (x->states) {
        take_states(x, a->state_in, backward ? x->start : x->in);
        if (backward) take_states(x, a->grad_state_out, x->in);
    }
}

/* The logarithms that a state is relative to have no gradient. */
static void clear_last_row(const positive *x)
{
    const loam_view *to = &x->a->grad_state_in;
    for (int64_t i = 0; to->data && i < x->p->batch * x->heads; i++) {
        const int64_t at = RECURRENT_AT(*to, i / x->heads, i % x->heads, x->p->dim_v + 1);
        for (int64_t m = 0; m < x->p->features; m++)
            element_store(to->data, dtype_real(x->p->dtype), at + m, 0);
    }
}

void positive_unstage(const positive *x)
{
    const loam_args *a = x->a;
    const bool backward = x->p->pass == LOAM_BACKWARD;
    if (x->staged && backward && a->grad_v.data) give_values(x, x->p->heads_kv, positive_give_values);
    if (x->staged && !backward) give_values(x, x->p->heads_q, positive_give);
    if (x->states) {
        copy_states(x, constant(state_of(x, x->out)), x->real, backward ? a->grad_state_in : a->state_out,
                    dtype_real(x->p->dtype));
    }
    if (backward) clear_last_row(x);
}
