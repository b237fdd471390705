/* SPDX-License-Identifier: MIT
 * Softmax attention on what a recurrence leaves over (Zuo et al. 2025, eq. 9), by two plans:
 *
 *     o_i = sum_j p_ij (v_j - W_i k_j) + W_i q_i = vbar_i + W_i x_i,   x_i = q_i - kbar_i
 *
 * The local plan has the values [v_j, k_j], so that its output is [vbar_i, kbar_i]; the recurrent plan reads
 * its state W_i with the query x_i. Backward runs the recurrence first: with dx, the gradient of x, that
 * of [vbar, kbar] is [do, -dx], and dx is a part of dq. */
#include "src/core/interpolation.h"

#include "src/base/size.h"
#include "src/core/args.h"
#include "src/core/check.h"
#include "src/core/problem.h"
#include "src/core/saved.h"

#include <stdlib.h>

struct loam_interpolation {
    loam_plan *local, *recurrent;
    int64_t dim_v;
    size_t work_bytes, saved_bytes;
};

/* Dense arrays of the problem's type, [batch, heads, tokens, channels]; NULL where the pass has none. */
typedef struct pieces {
    void *values; /* [v, k] */
    void *means;  /* forward: [vbar, kbar]; backward: their gradient */
    void *x;      /* with `saved`, there */
    void *read;   /* forward: W x */
    void *grad_x, *grad_values, *grad_q, *grad_k, *recurrent_k, *recurrent_v; /* backward */
    void *work; /* of both plans, one after the other */
} pieces;

/* ------------------------------------------------------------------ sums of rows */

static loam_const_view as_const(loam_view v) { return (loam_const_view){ v.data, v.batch, v.head, v.token }; }

static void row_sum_cpu(const row_sum *s, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < s->batch * s->heads * s->tokens; row++) {
        const int64_t t = row % s->tokens, h = row / s->tokens % s->heads, b = row / s->tokens / s->heads;
        for (int64_t c = 0; c < s->channels; c++)
            row_sum_element(s, b, h, t, c);
    }
}

/* The channels from `channel` on of every row of `to` become the sum of the terms; without `to`, nothing. */
static loam_status sum_rows(const loam_problem *p, loam_view to, int64_t channel, int64_t channels,
                            const sum_term *terms, int count, void *stream, loam_error *error)
{
    const extent e = extent_of_q(p, p->heads_q, channels);
    row_sum sum = { p->dtype, e.batch, e.heads, e.tokens, channels, to, channel, { { { 0 }, 0, 0 } }, count };
    for (int i = 0; i < count; i++)
        sum.terms[i] = terms[i];
    if (!to.data || extent_rows(e) == 0) return LOAM_OK;
#ifdef LOAM_HAVE_CUDA
    if (p->backend == LOAM_BACKEND_CUDA) return row_sum_cuda(&sum, stream, error);
#endif
    (void)stream, (void)error;
    row_sum_cpu(&sum, p->threads);
    return LOAM_OK;
}

/* ------------------------------------------------------------------ making */

static loam_status check_same(int64_t local, int64_t recurrent, const char *name, loam_error *error)
{
    REQUIRE(local == recurrent, error, LOAM_ESHAPE,
            "%s: %lld of the local problem and %lld of the recurrent one, expected one", name,
            (long long)local, (long long)recurrent);
    return LOAM_OK;
}

static bool recurrent(const loam_problem *p) { return family_of(p->mechanism) == &family_recurrent; }

static loam_status check_pair(const loam_problem *l, const loam_problem *r, loam_error *error)
{
    REQUIRE(!recurrent(l) && recurrent(r), error, LOAM_EARG,
            "local, recurrent: %s and %s, expected a mechanism of each family",
            loam_mechanism_name(l->mechanism), loam_mechanism_name(r->mechanism));
    REQUIRE(l->pass != LOAM_DECODE && l->pass == r->pass, error, LOAM_EUNSUPPORTED,
            "pass: %s and %s, expected forward or backward of both", loam_pass_name(l->pass),
            loam_pass_name(r->pass));
    REQUIRE(l->dtype == r->dtype, error, LOAM_EARG, "dtype: %s and %s, expected one",
            loam_dtype_name(l->dtype), loam_dtype_name(r->dtype));
    REQUIRE(r->feature_map == LOAM_FEATURES_IDENTITY && !r->normalise, error, LOAM_EUNSUPPORTED,
            "feature_map, normalise: %d, %d, expected 0: W is a linear map of queries and keys as they are",
            (int)r->feature_map, r->normalise);
    const struct {
        int64_t local, recurrent;
        const char *name;
    } same[] = { { l->batch, r->batch, "batch" },
                 { l->heads_q, r->heads_q, "heads_q" },
                 { l->heads_kv, r->heads_q, "heads_kv" },
                 { r->heads_q, r->heads_v ? r->heads_v : r->heads_q, "heads_v" },
                 { l->len_q, r->len_q, "len_q" },
                 { l->len_kv, r->len_q, "len_kv" },
                 { l->total_q, r->total_q, "total_q" },
                 { l->total_kv, r->total_q, "total_kv" },
                 { l->dim_qk, r->dim_qk, "dim_qk" },
                 { l->dim_v, r->dim_v, "dim_v" } };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        TRY(check_same(same[i].local, same[i].recurrent, same[i].name, error));
    REQUIRE(l->dim_qk >= 1 && l->dim_v >= 1 && l->dim_v <= LOAM_MAX_DIM - l->dim_qk, error, LOAM_ESHAPE,
            "dim_qk, dim_v: %lld and %lld, expected at least 1 and a sum of at most %d", (long long)l->dim_qk,
            (long long)l->dim_v, LOAM_MAX_DIM);
    return LOAM_OK;
}

static pieces carve(const loam_interpolation *i, void *work, size_t *bytes)
{
    const loam_problem *p = &i->local->problem;
    const bool backward = p->pass == LOAM_BACKWARD;
    const size_t tokens = sequence_packed(p) ? (size_t)p->total_q
                                             : size_mul((size_t)p->batch, (size_t)p->len_q);
    const size_t rows = size_mul(tokens, (size_t)p->heads_q), element = dtype_bytes(p->dtype);
    const size_t d = size_mul(rows, (size_t)p->dim_qk), dv = size_mul(rows, (size_t)i->dim_v),
                 both = size_add(d, dv);
    arena a = { work, 0 };
    pieces s = { .values = arena_take(&a, both, element), .means = arena_take(&a, both, element) };
    if (backward) {
        s.grad_x = arena_take(&a, d, element);
        s.grad_values = arena_take(&a, both, element);
        s.grad_q = arena_take(&a, d, element);
        s.grad_k = arena_take(&a, d, element);
        s.recurrent_k = arena_take(&a, d, element);
        s.recurrent_v = arena_take(&a, dv, element);
    } else {
        s.x = arena_take(&a, d, element);
        s.read = arena_take(&a, dv, element);
    }
    const size_t local = i->local->work_bytes, recurrent = i->recurrent->work_bytes;
    s.work = arena_take(&a, local > recurrent ? local : recurrent, 1);
    *bytes = a.used;
    return s;
}

/* `saved`: a stamp, what the local plan saves, then x. */
static void *saved_x(const loam_interpolation *i, void *saved, size_t *bytes)
{
    const loam_problem *p = &i->local->problem;
    const size_t tokens = sequence_packed(p) ? (size_t)p->total_q
                                             : size_mul((size_t)p->batch, (size_t)p->len_q);
    arena a = { saved, 0 };
    arena_take(&a, saved_stamp_bytes(p), 1);
    arena_take(&a, i->local->saved_bytes, 1);
    void *x = arena_take(&a, size_mul(size_mul(tokens, (size_t)p->heads_q), (size_t)p->dim_qk),
                         dtype_bytes(p->dtype));
    *bytes = a.used;
    return x;
}

static loam_status make_plans(loam_interpolation *i, const loam_problem *local, const loam_problem *recurrent,
                              loam_error *error)
{
    loam_problem l = *local, r = *recurrent;
    l.dim_v += l.dim_qk;
    r.scale = r.scale == 0 ? 1 : r.scale; /* W is a map, not a score */
    TRY(loam_plan_create(&i->local, &l, error));
    TRY(loam_plan_create(&i->recurrent, &r, error));
    const loam_backend backends[] = { i->local->problem.backend, i->recurrent->problem.backend };
    REQUIRE((backends[0] == LOAM_BACKEND_CUDA) == (backends[1] == LOAM_BACKEND_CUDA), error, LOAM_EARG,
            "backend: %s of the local problem and %s of the recurrent one, expected arrays in one memory",
            loam_backend_name(backends[0]), loam_backend_name(backends[1]));
    return LOAM_OK;
}

loam_status loam_interpolation_create(loam_interpolation **out, const loam_problem *local,
                                      const loam_problem *recurrent, loam_error *error)
{
    REQUIRE(out, error, LOAM_EARG, "interpolation: NULL, expected where to put it");
    *out = NULL;
    TRY(problem_check_stamp(local, "local", error));
    TRY(problem_check_stamp(recurrent, "recurrent", error));
    TRY(check_pair(local, recurrent, error));
    loam_interpolation *i = calloc(1, sizeof *i);
    REQUIRE(i, error, LOAM_EMEMORY, "interpolation: out of memory");
    i->dim_v = local->dim_v;
    loam_status status = make_plans(i, local, recurrent, error);
    if (status == LOAM_OK) {
        carve(i, NULL, &i->work_bytes);
        saved_x(i, NULL, &i->saved_bytes);
        if (i->work_bytes > PTRDIFF_MAX || i->saved_bytes > PTRDIFF_MAX) {
            status = loam_fail(error, LOAM_EMEMORY,
                               "work: the workspace of this problem is too large to address");
        }
    }
    if (status != LOAM_OK) {
        loam_interpolation_destroy(i);
        return status;
    }
    *out = i;
    return loam_succeed(error);
}

void loam_interpolation_destroy(loam_interpolation *i)
{
    if (i) {
        loam_plan_destroy(i->local);
        loam_plan_destroy(i->recurrent);
        free(i);
    }
}

const loam_plan *loam_interpolation_local(const loam_interpolation *i) { return i->local; }
const loam_plan *loam_interpolation_recurrent(const loam_interpolation *i) { return i->recurrent; }
size_t loam_interpolation_work_bytes(const loam_interpolation *i) { return i->work_bytes; }
size_t loam_interpolation_saved_bytes(const loam_interpolation *i) { return i->saved_bytes; }

/* ------------------------------------------------------------------ running */

static loam_view dense(const loam_interpolation *i, void *data, int64_t channels)
{
    const loam_problem *p = &i->local->problem;
    return loam_dense_out(data, p->heads_q, sequence_packed(p) ? p->total_q : p->len_q, channels);
}

static loam_const_view dense_in(const loam_interpolation *i, void *data, int64_t channels)
{
    return as_const(dense(i, data, channels));
}

/* Arguments of the recurrence that the interpolation sets itself must not be given. */
static loam_status check_own(const loam_args *r, loam_error *error)
{
    const void *const given[] = { r->q.data,      r->k.data,      r->v.data,      r->o.data,
                                  r->grad_o.data, r->grad_q.data, r->grad_k.data, r->grad_v.data,
                                  r->work,        r->cu_q,        r->stream,      r->saved };
    static const char *const names[] = { "q",      "k",      "v",    "o",    "grad_o", "grad_q",
                                         "grad_k", "grad_v", "work", "cu_q", "stream", "saved" };
    for (size_t n = 0; n < sizeof given / sizeof given[0]; n++) {
        REQUIRE(!given[n], error, LOAM_EARG, "recurrent %s: given, expected only with the local arguments",
                names[n]);
    }
    return LOAM_OK;
}

static loam_status check_arrays(const loam_interpolation *i, const loam_args *a, loam_error *error)
{
    const loam_problem *p = &i->local->problem;
    const extent rows = extent_of_q(p, p->heads_q, p->dim_qk), values = extent_of_q(p, p->heads_q, i->dim_v);
    const bool backward = p->pass == LOAM_BACKWARD;
    if (extent_rows(rows) > 0) {
        TRY(check_given(a->q.data, "q", "every pass reads it", error));
        TRY(check_given(a->k.data, "k", "every pass reads it", error));
        TRY(check_given(a->v.data, "v", "every pass reads it", error));
        TRY(backward ? check_given(a->grad_o.data, "grad_o", "backward reads it", error)
                     : check_given(a->o.data, "o", "forward writes it", error));
        REQUIRE(!backward || a->saved, error, LOAM_EARG, "saved: NULL, expected what a forward wrote");
    }
    REQUIRE(a->work && (uintptr_t)a->work % LOAM_ALIGN == 0, error, LOAM_EARG,
            "work: %p, expected memory aligned to %d", a->work, LOAM_ALIGN);
    REQUIRE((uintptr_t)a->saved % LOAM_ALIGN == 0, error, LOAM_EARG,
            "saved: %p, expected memory aligned to %d", a->saved, LOAM_ALIGN);
    TRY(check_output(&a->o, "o", values, error));
    TRY(check_output(&a->grad_q, "grad_q", rows, error));
    TRY(check_output(&a->grad_k, "grad_k", rows, error));
    TRY(check_output(&a->grad_v, "grad_v", values, error));
    return backward ? saved_check(p, saved_identity(&i->recurrent->problem), a->saved, error) : LOAM_OK;
}

/* The arguments of the two plans, checked before either runs. */
static loam_status set_args(const loam_interpolation *i, const loam_args *a, const loam_args *given,
                            const pieces *s, loam_args *local, loam_args *recurrent, loam_error *error)
{
    const int64_t d = i->local->problem.dim_qk, dv = i->dim_v;
    *local = *a, *recurrent = *given;
    local->work = recurrent->work = s->work;
    if (a->saved) local->saved = (char *)a->saved + saved_stamp_bytes(&i->local->problem);
    local->v = dense_in(i, s->values, d + dv);
    recurrent->q = dense_in(i, s->x, d);
    recurrent->k = a->k, recurrent->v = a->v;
    recurrent->cu_q = a->cu_q, recurrent->stream = a->stream;
    if (i->local->problem.pass == LOAM_BACKWARD) {
        local->grad_o = dense_in(i, s->means, d + dv);
        local->grad_q = dense(i, s->grad_q, d);
        local->grad_k = dense(i, s->grad_k, d);
        local->grad_v = dense(i, s->grad_values, d + dv);
        recurrent->grad_o = a->grad_o;
        recurrent->grad_q = dense(i, s->grad_x, d);
        recurrent->grad_k = dense(i, s->recurrent_k, d);
        recurrent->grad_v = dense(i, s->recurrent_v, dv);
    } else {
        local->o = dense(i, s->means, d + dv);
        recurrent->o = dense(i, s->read, dv);
    }
    TRY(args_check(i->local, local, ARGS_RUN, error));
    return args_check(i->recurrent, recurrent, ARGS_RUN, error);
}

static loam_status run_forward(const loam_interpolation *i, const loam_args *a, const pieces *s,
                               const loam_args *local, const loam_args *recurrent, loam_error *error)
{
    const loam_problem *p = &i->local->problem;
    const int64_t d = p->dim_qk, dv = i->dim_v;
    const loam_const_view means = dense_in(i, s->means, d + dv);
    TRY(loam_run(i->local, local, error));
    TRY(sum_rows(p, dense(i, s->x, d), 0, d, (sum_term[]){ { a->q, 0, 1 }, { means, dv, -1 } }, 2, a->stream,
                 error));
    TRY(loam_run(i->recurrent, recurrent, error));
    TRY(sum_rows(p, a->o, 0, dv, (sum_term[]){ { means, 0, 1 }, { dense_in(i, s->read, dv), 0, 1 } }, 2,
                 a->stream, error));
    return LOAM_OK;
}

static loam_status run_backward(const loam_interpolation *i, const loam_args *a, const pieces *s,
                                const loam_args *local, const loam_args *recurrent, loam_error *error)
{
    const loam_problem *p = &i->local->problem;
    const int64_t d = p->dim_qk, dv = i->dim_v;
    const loam_const_view grad_x = dense_in(i, s->grad_x, d), values = dense_in(i, s->grad_values, d + dv);
    const loam_view means = dense(i, s->means, d + dv);
    TRY(loam_run(i->recurrent, recurrent, error));
    TRY(sum_rows(p, means, 0, dv, (sum_term[]){ { a->grad_o, 0, 1 } }, 1, a->stream, error));
    TRY(sum_rows(p, means, dv, d, (sum_term[]){ { grad_x, 0, -1 } }, 1, a->stream, error));
    TRY(loam_run(i->local, local, error));
    TRY(sum_rows(p, a->grad_q, 0, d, (sum_term[]){ { dense_in(i, s->grad_q, d), 0, 1 }, { grad_x, 0, 1 } }, 2,
                 a->stream, error));
    TRY(sum_rows(p, a->grad_k, 0, d,
                 (sum_term[]){ { dense_in(i, s->grad_k, d), 0, 1 },
                               { values, dv, 1 },
                               { dense_in(i, s->recurrent_k, d), 0, 1 } },
                 3, a->stream, error));
    TRY(sum_rows(p, a->grad_v, 0, dv,
                 (sum_term[]){ { values, 0, 1 }, { dense_in(i, s->recurrent_v, dv), 0, 1 } }, 2, a->stream,
                 error));
    return LOAM_OK;
}

loam_status loam_interpolation_run(const loam_interpolation *i, const loam_args *args,
                                   const loam_args *recurrent_args, loam_error *error)
{
    REQUIRE(i && args && recurrent_args, error, LOAM_EARG, "%s: NULL",
            !i     ? "interpolation"
            : args ? "recurrent_args"
                   : "args");
    TRY(check_own(recurrent_args, error));
    TRY(check_arrays(i, args, error));
    const loam_problem *p = &i->local->problem;
    const int64_t d = p->dim_qk, dv = i->dim_v;
    loam_args local, recurrent;
    size_t bytes;
    pieces s = carve(i, args->work, &bytes);
    if (args->saved) s.x = saved_x(i, args->saved, &bytes);
    TRY(set_args(i, args, recurrent_args, &s, &local, &recurrent, error));
    TRY(sum_rows(p, dense(i, s.values, d + dv), 0, dv, (sum_term[]){ { args->v, 0, 1 } }, 1, args->stream,
                 error));
    TRY(sum_rows(p, dense(i, s.values, d + dv), dv, d, (sum_term[]){ { args->k, 0, 1 } }, 1, args->stream,
                 error));
    TRY((p->pass == LOAM_BACKWARD ? run_backward : run_forward)(i, args, &s, &local, &recurrent, error));
    if (p->pass == LOAM_FORWARD) saved_write(p, saved_identity(&i->recurrent->problem), args->saved);
    return loam_succeed(error);
}
