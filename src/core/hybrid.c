/* SPDX-License-Identifier: MIT
 * Exact attention to the first tokens and the last ones, positive random features for those between: plans,
 * checks and the order of things (src/core/hybrid.h has the mathematics). */
#include "src/core/hybrid_rows.h"

#include "src/base/size.h"
#include "src/core/args.h"
#include "src/core/check.h"
#include "src/core/problem.h"
#include "src/core/saved.h"

#include <float.h>
#include <stdlib.h>

struct loam_hybrid {
    loam_plan *outer; /* of the problem as it was given: it has the checks and the defaults */
    loam_plan *read;
    int64_t sinks, window;
    size_t work_bytes, saved_bytes;
};

/* ------------------------------------------------------------------ making */

/* Of the read: queries, keys and values as hybrid.h has them. */
static loam_problem read_problem(const loam_problem *given, const loam_problem *checked)
{
    loam_problem r = *given;
    r.dtype = dtype_real(given->dtype);
    r.dim_qk += HYBRID_CHANNELS;
    r.dim_v += 1;
    r.features = checked->features + 1;
    r.scale = checked->scale;
    return r;
}

static hybrid_call describe(const loam_hybrid *i)
{
    hybrid_call x = { .p = i->outer->problem, .sinks = i->sinks, .window = i->window };
    x.heads = recurrent_state_heads(&x.p);
    x.real = dtype_real(x.p.dtype);
    return x;
}

static size_t rows_of(const hybrid_call *x, int64_t heads)
{
    return size_mul(size_mul((size_t)x->p.batch, (size_t)heads), (size_t)x->p.len_q);
}

/* What a forward leaves for backward. */
static void carve_saved(hybrid_call *x, arena *pool)
{
    const size_t rows = rows_of(x, x->p.heads_q), each = dtype_bytes(x->real);
    x->near = arena_take(pool, size_mul(rows, (size_t)x->p.dim_v), each);
    x->lse = arena_take(pool, rows, each);
    x->share = arena_take(pool, rows, each);
}

static void carve_gradients(hybrid_call *x, arena *pool)
{
    const size_t rows = rows_of(x, x->p.heads_q), keys = rows_of(x, x->p.heads_kv),
                 each = dtype_bytes(x->real), width = (size_t)hybrid_width(x),
                 features = (size_t)(x->heads * hybrid_features(x));
    x->grad_q = arena_take(pool, size_mul(rows, width), each);
    x->grad_k = arena_take(pool, size_mul(keys, width), each);
    x->grad_v = arena_take(pool, size_mul(keys, (size_t)hybrid_values(x)), each);
    x->grad_z = arena_take(pool, size_mul(features, width), each);
    x->grad_alpha = arena_take(pool, features, each);
    x->inner = arena_take(pool, rows, sizeof *x->inner);
    x->slope = arena_take(pool, rows, sizeof *x->slope);
}

static void carve(hybrid_call *x, arena *pool)
{
    const size_t rows = rows_of(x, x->p.heads_q), keys = rows_of(x, x->p.heads_kv),
                 each = dtype_bytes(x->real), width = (size_t)hybrid_width(x),
                 values = (size_t)hybrid_values(x), heads = (size_t)x->heads,
                 features = (size_t)hybrid_features(x);
    x->q = arena_take(pool, size_mul(rows, width), each);
    x->k = arena_take(pool, size_mul(keys, width), each);
    x->v = arena_take(pool, size_mul(keys, values), each);
    x->o = arena_take(pool, size_mul(rows, values), each);
    x->z = arena_take(pool, size_mul(heads, features * width), each);
    x->alpha = arena_take(pool, size_mul(heads, features), each);
    x->shift = arena_take(pool, size_mul(heads, width), each);
    x->balance = arena_take(pool, size_mul(heads, width * width), each);
    x->balance_keys = arena_take(pool, size_mul(heads, width * width), each);
    x->start = arena_take(pool, (size_t)hybrid_state_rows(x) * features, each);
    if (x->p.pass == LOAM_BACKWARD)
        carve_gradients(x, pool);
    else
        carve_saved(x, pool);
}

static loam_status check_problem(const loam_problem *p, int64_t sinks, int64_t window, loam_error *error)
{
    REQUIRE(p->feature_map == LOAM_FEATURES_POSITIVE, error, LOAM_EARG,
            "feature_map: %d, expected %d, positive features, for the tokens between", (int)p->feature_map,
            (int)LOAM_FEATURES_POSITIVE);
    REQUIRE(p->total_q < 0 && p->total_kv < 0, error, LOAM_EUNSUPPORTED,
            "total_q, total_kv: %lld, %lld, expected -1: a hybrid takes no packed sequences",
            (long long)p->total_q, (long long)p->total_kv);
    TRY(check_size("dim_qk", p->dim_qk, 1, LOAM_MAX_DIM - HYBRID_CHANNELS, error));
    TRY(check_size("dim_v", p->dim_v, 1, LOAM_MAX_DIM - 1, error));
    TRY(check_size("features", p->features, 0, LOAM_MAX_DIM - 1, error));
    TRY(check_size("sinks", sinks, 0, INT32_MAX, error));
    return check_size("window", window, 1, INT32_MAX, error);
}

static loam_status make(loam_hybrid *i, const loam_problem *p, loam_error *error)
{
    TRY(loam_plan_create(&i->outer, p, error));
    const loam_problem read = read_problem(p, &i->outer->problem);
    TRY(loam_plan_create(&i->read, &read, error));
    hybrid_call x = describe(i);
    arena work = { 0 }, saved = { 0 };
    carve(&x, &work);
    arena_take(&work, i->read->work_bytes, 1);
    arena_take(&saved, saved_stamp_bytes(&x.p), 1);
    carve_saved(&x, &saved);
    i->work_bytes = work.used, i->saved_bytes = x.p.pass == LOAM_DECODE ? 0 : saved.used;
    REQUIRE(work.used <= PTRDIFF_MAX && saved.used <= PTRDIFF_MAX, error, LOAM_EMEMORY,
            "work: the workspace of this problem is too large to address");
    return loam_succeed(error);
}

loam_status loam_hybrid_create(loam_hybrid **out, const loam_problem *problem, int64_t sinks, int64_t window,
                               loam_error *error)
{
    REQUIRE(out, error, LOAM_EARG, "hybrid: NULL, expected where to put it");
    *out = NULL;
    TRY(problem_check_stamp(problem, "problem", error));
    TRY(check_problem(problem, sinks, window, error));
    loam_hybrid *i = calloc(1, sizeof *i);
    REQUIRE(i, error, LOAM_EMEMORY, "hybrid: out of memory");
    i->sinks = sinks, i->window = window;
    const loam_status status = make(i, problem, error);
    if (status != LOAM_OK) {
        loam_hybrid_destroy(i);
        return status;
    }
    *out = i;
    return LOAM_OK;
}

void loam_hybrid_destroy(loam_hybrid *i)
{
    if (i) {
        loam_plan_destroy(i->outer);
        loam_plan_destroy(i->read);
        free(i);
    }
}

const loam_plan *loam_hybrid_read(const loam_hybrid *i) { return i->read; }
size_t loam_hybrid_work_bytes(const loam_hybrid *i) { return i->work_bytes; }
size_t loam_hybrid_saved_bytes(const loam_hybrid *i) { return i->saved_bytes; }

/* ------------------------------------------------------------------ checks of a run */

static loam_status check_seen(const hybrid_call *x, loam_error *error)
{
    for (int64_t b = 0; !on_device(&x->p) && b < x->p.batch; b++) {
        REQUIRE(x->h.seen[b] >= 0 && x->h.seen[b] <= INT64_MAX / 4, error, LOAM_EVALUE,
                "seen[%lld]: %lld, expected the number of tokens before", (long long)b,
                (long long)x->h.seen[b]);
    }
    return LOAM_OK;
}

/* The state, and what goes with it. */
static loam_status check_carried(const hybrid_call *x, loam_error *error)
{
    const loam_args *a = &x->a;
    const loam_hybrid_args *h = &x->h;
    const bool decode = x->p.pass == LOAM_DECODE;
    const extent state = { x->p.batch, x->heads, hybrid_state_rows(x), hybrid_features(x), NULL },
                 keys = { x->p.batch, x->p.heads_kv, hybrid_slots(x), x->p.dim_qk, NULL },
                 values = { x->p.batch, x->p.heads_kv, hybrid_slots(x), x->p.dim_v, NULL };
    REQUIRE(!a->grad_state_in.data && !a->grad_state_out.data, error, LOAM_EARG,
            "grad_state_in, grad_state_out: given, but the state of a hybrid has no gradient");
    REQUIRE(a->state_in.data == (decode ? a->state_out.data : NULL), error, LOAM_EARG,
            "state_in: %p, expected %s", a->state_in.data,
            decode ? "the memory of state_out, in which decode goes on" : "none, but in decode");
    REQUIRE(!h->keys.data == !a->state_out.data && !h->values.data == !a->state_out.data, error, LOAM_EARG,
            "keys, values: %p, %p, expected where there is a state_out, and nowhere else", h->keys.data,
            h->values.data);
    REQUIRE(decode || !h->seen, error, LOAM_EARG, "seen: given, but %s begins with the first token",
            loam_pass_name(x->p.pass));
    if (decode && x->p.batch > 0) {
        TRY(check_given(h->seen, "seen", "decode goes on from there", error));
        TRY(check_seen(x, error));
    }
    TRY(check_output(&a->state_out, "state_out", state, error));
    TRY(check_output(&h->keys, "keys", keys, error));
    return check_output(&h->values, "values", values, error);
}

static loam_status check_gain(const hybrid_call *x, loam_error *error)
{
    const loam_const_view gain = { x->h.gain, 0, 1, 0 };
    REQUIRE(!x->h.grad_gain || x->p.pass == LOAM_BACKWARD, error, LOAM_EARG,
            "grad_gain: given, but %s neither reads nor writes it", loam_pass_name(x->p.pass));
    if (!gain.data) return LOAM_OK;
    return check_range(&x->p, &gain, "gain", (extent){ 1, x->p.heads_q, 1, 1, NULL }, -HUGE_VAL,
                       x->real == LOAM_F64 ? DBL_MAX : (double)FLT_MAX, "a number, or -inf", error);
}

static loam_status check(const loam_hybrid *i, const hybrid_call *x, loam_error *error)
{
    const bool backward = x->p.pass == LOAM_BACKWARD;
    TRY(args_check(i->outer, &x->a, ARGS_RUN, error));
    TRY(check_carried(x, error));
    TRY(check_gain(x, error));
    REQUIRE(x->a.work, error, LOAM_EARG, "work: NULL, expected %zu bytes", i->work_bytes);
    REQUIRE(!backward || x->a.saved, error, LOAM_EARG, "saved: NULL, expected what a forward wrote");
    return LOAM_OK;
}

/* ------------------------------------------------------------------ on the host */

static void elements_cpu(const hybrid_call *x, hybrid_task task, hybrid_grid g)
{
    const int64_t rows = g.batch * g.heads * g.rows;
#pragma omp parallel for num_threads(x->p.threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < g.columns; c++)
            hybrid_element(x, task, row / g.rows / g.heads, row / g.rows % g.heads, row % g.rows, c);
}

static void rows_cpu(const hybrid_call *x,
                     void (*task)(const hybrid_call *x, int64_t b, int64_t h, int64_t t))
{
    const int64_t heads = x->p.heads_q, len = x->p.len_q;
#pragma omp parallel for num_threads(x->p.threads) schedule(static)
    for (int64_t row = 0; row < x->p.batch * heads * len; row++)
        task(x, row / len / heads, row / len % heads, row % len);
}

static void row_forward(const hybrid_call *x, int64_t b, int64_t h, int64_t t)
{
    hybrid_row_forward(x, b, h, t);
}
static void row_prepare(const hybrid_call *x, int64_t b, int64_t h, int64_t t)
{
    hybrid_row_prepare(x, b, h, t);
}
static void row_backward(const hybrid_call *x, int64_t b, int64_t h, int64_t t)
{
    hybrid_row_backward(x, b, h, t);
}

/* Sinks, which all rows have near, are taken first. */
static void keys_cpu(const hybrid_call *x)
{
    const int64_t heads = x->p.batch * x->p.heads_kv;
#pragma omp parallel for num_threads(x->p.threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < heads * x->p.len_q; i++) {
        const int64_t b = i % heads / x->p.heads_kv, g = i % heads % x->p.heads_kv, j = i / heads;
        hybrid_vector grad_k, grad_v;
        hybrid_key_backward(x, b, g, j, 0, 1, &grad_k, &grad_v);
        hybrid_key_store(x, b, g, j, &grad_k, &grad_v);
    }
}

static void gain_cpu(const hybrid_call *x)
{
    for (int64_t h = 0; x->h.grad_gain && h < x->p.heads_q; h++) {
        double sum = 0;
        for (int64_t b = 0; b < x->p.batch; b++)
            for (int64_t t = 0; t < x->p.len_q; t++)
                sum -= x->slope[hybrid_row(x, b, h, t)];
        element_store(x->h.grad_gain, x->real, h, sum);
    }
}

/* ------------------------------------------------------------------ on either machine */

#ifdef LOAM_HAVE_CUDA
#define ON_DEVICE(x, call) \
    if (on_device(&(x)->p)) return call
#else
#define ON_DEVICE(x, call) (void)error
#endif

static loam_status elements(const hybrid_call *x, hybrid_task task, int64_t batch, int64_t heads,
                            int64_t rows, int64_t columns, loam_error *error)
{
    const hybrid_grid grid = { batch, heads, rows, columns };
    ON_DEVICE(x, hybrid_elements_cuda(x, task, grid, error));
    elements_cpu(x, task, grid);
    return LOAM_OK;
}

static loam_status rows_forward(const hybrid_call *x, loam_error *error)
{
    ON_DEVICE(x, hybrid_rows_cuda(x, error));
    rows_cpu(x, row_forward);
    return LOAM_OK;
}

static loam_status rows_prepare(const hybrid_call *x, loam_error *error)
{
    ON_DEVICE(x, hybrid_prepare_cuda(x, error));
    rows_cpu(x, row_prepare);
    return LOAM_OK;
}

static loam_status rows_backward(const hybrid_call *x, loam_error *error)
{
    ON_DEVICE(x, hybrid_backward_cuda(x, error));
    rows_cpu(x, row_backward);
    if (x->a.grad_k.data || x->a.grad_v.data) keys_cpu(x);
    gain_cpu(x);
    return LOAM_OK;
}

/* ------------------------------------------------------------------ running */

static loam_const_view constant(loam_view v) { return (loam_const_view){ v.data, v.batch, v.head, v.token }; }

/* A parameter of the heads of z: the batch has it in common. */
static loam_const_view parameter(const void *data, int64_t rows, int64_t width)
{
    return (loam_const_view){ data, 0, rows * width, width };
}

static loam_args read_args(const hybrid_call *x, void *work)
{
    const int64_t len = x->p.len_q, q = x->p.heads_q, kv = x->p.heads_kv, width = hybrid_width(x),
                  values = hybrid_values(x), features = hybrid_features(x);
    const loam_args *a = &x->a;
    loam_args r = { .q = loam_dense(x->q, q, len, width),
                    .k = loam_dense(x->k, kv, len, width),
                    .v = loam_dense(x->v, kv, len, values),
                    .z = parameter(x->z, features, width),
                    .log_alpha = parameter(x->alpha, 1, features),
                    .state_in = { x->start, 0, 0, features },
                    .work = work,
                    .stream = a->stream };
    if (a->shift.data) r.shift = parameter(x->shift, 1, width);
    if (a->balance.data) {
        r.balance = parameter(x->balance, width, width);
        r.balance_keys = parameter(x->balance_keys, width, width);
    }
    if (x->p.pass == LOAM_BACKWARD) {
        r.grad_o = loam_dense(x->o, q, len, values);
        r.grad_q = loam_dense_out(x->grad_q, q, len, width);
        r.grad_k = loam_dense_out(x->grad_k, kv, len, width);
        r.grad_v = loam_dense_out(x->grad_v, kv, len, values);
        if (a->grad_z.data) r.grad_z = (loam_view){ x->grad_z, 0, features * width, width };
        if (a->grad_log_alpha.data) r.grad_log_alpha = (loam_view){ x->grad_alpha, 0, features, features };
        return r;
    }
    r.o = loam_dense_out(x->o, q, len, values);
    r.info = a->info;
    r.state_out = a->state_out;
    if (x->p.pass == LOAM_DECODE) r.state_in = constant(a->state_out);
    return r;
}

static loam_status make_inputs(const hybrid_call *x, loam_error *error)
{
    const loam_problem *p = &x->p;
    const int64_t keys = hybrid_width(x) > hybrid_values(x) ? hybrid_width(x) : hybrid_values(x);
    TRY(elements(x, HYBRID_PARAMETERS, 1, x->heads, hybrid_parameter_rows(x), hybrid_parameter_columns(x),
                 error));
    if (p->pass == LOAM_DECODE)
        TRY(elements(x, HYBRID_STATE, p->batch, x->heads, hybrid_state_rows(x), 1, error));
    return elements(x, HYBRID_KEYS, p->batch, p->heads_kv, p->len_q, keys, error);
}

static loam_status run_forward(const loam_plan *read, const hybrid_call *x, const loam_args *args,
                               loam_error *error)
{
    const loam_problem *p = &x->p;
    const int64_t most = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    TRY(make_inputs(x, error));
    TRY(rows_forward(x, error));
    TRY(loam_run(read, args, error));
    TRY(elements(x, HYBRID_JOIN, p->batch, p->heads_q, p->len_q, p->dim_v, error));
    return x->h.keys.data ? elements(x, HYBRID_KEEP, p->batch, p->heads_kv, hybrid_slots(x), most, error)
                          : LOAM_OK;
}

static loam_status run_backward(const loam_plan *read, const hybrid_call *x, const loam_args *args,
                                loam_error *error)
{
    const loam_args *a = &x->a;
    TRY(make_inputs(x, error));
    TRY(rows_prepare(x, error));
    TRY(loam_run(read, args, error));
    TRY(rows_backward(x, error));
    return a->grad_z.data || a->grad_log_alpha.data
               ? elements(x, HYBRID_GIVE, 1, x->heads, x->p.features, x->p.dim_qk, error)
               : LOAM_OK;
}

/* Of sinks and window too. */
static uint64_t identity(const loam_hybrid *i)
{
    return UINT64_C(0x9e3779b97f4a7c15) * ((uint64_t)i->sinks << 32 | (uint64_t)i->window) + 1;
}

loam_status loam_hybrid_run(const loam_hybrid *i, const loam_args *args, const loam_hybrid_args *hybrid_args,
                            loam_error *error)
{
    REQUIRE(i && args && hybrid_args, error, LOAM_EARG, "%s: NULL",
            !i     ? "hybrid"
            : args ? "hybrid_args"
                   : "args");
    hybrid_call x = describe(i);
    const loam_problem *p = &x.p;
    x.a = *args, x.h = *hybrid_args;
    TRY(check(i, &x, error));
    if (p->pass == LOAM_BACKWARD) TRY(saved_check(p, identity(i), args->saved, error));
    arena pool = { args->work, 0 }, saved = { args->saved, 0 };
    carve(&x, &pool);
    if (args->saved) {
        arena_take(&saved, saved_stamp_bytes(p), 1);
        carve_saved(&x, &saved);
    }
    const loam_args read = read_args(&x, arena_take(&pool, i->read->work_bytes, 1));
    TRY((p->pass == LOAM_BACKWARD ? run_backward : run_forward)(i->read, &x, &read, error));
    if (p->pass == LOAM_FORWARD) saved_write(p, identity(i), args->saved);
    return loam_succeed(error);
}
