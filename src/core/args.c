/* SPDX-License-Identifier: MIT
 * The checks of a call's arguments. They cost O(batch + ridge + log_decay + beta), never O(tokens * dim). Device memory is not
 * looked into: there only pointers and strides are checked. */
#include "src/core/plan.h"

#include <float.h>
#include <math.h>

static bool on_device(const loam_problem *p) { return p->backend == LOAM_BACKEND_CUDA; }

loam_status args_need(const void *data, const char *name, const char *why, loam_error *error)
{
    REQUIRE(data, error, LOAM_EARG, "%s: NULL, but %s", name, why);
    return LOAM_OK;
}

/* A stride that lets two rows of an output overlap would be a race. */
loam_status args_check_output(const loam_view *view, const char *name, int64_t batch, int64_t heads,
                              int64_t tokens, int64_t channels, loam_error *error)
{
    if (!view->data || batch * heads * tokens == 0) {
        return LOAM_OK;
    }
    const int64_t counts[] = { tokens, heads, batch }, strides[] = { view->token, view->head, view->batch };
    static const char *const axes[] = { "token", "head", "batch" };
    for (int axis = 0; axis < 3; axis++) {
        const int64_t size = strides[axis] < 0 ? -strides[axis] : strides[axis];
        REQUIRE(counts[axis] <= 1 || size >= channels, error, LOAM_ESHAPE,
                "%s: %s stride %lld, expected at least %lld so that rows do not overlap", name, axes[axis],
                (long long)strides[axis], (long long)channels);
    }
    return LOAM_OK;
}

/* The first n values are from least to most; none is looked at by itself. */
static bool within(const void *data, loam_dtype real, int64_t at, int64_t n, double least, double most)
{
    int outside = 0;
    if (real == LOAM_F64) {
        const double *x = (const double *)data + at;
        for (int64_t c = 0; c < n; c++) {
            outside |= !((x[c] >= least) & (x[c] <= most));
        }
    } else {
        const bool finite = most > FLT_MAX && most < HUGE_VAL; /* not to become infinite */
        const float *x = (const float *)data + at, from = (float)least, to = finite ? FLT_MAX : (float)most;
        for (int64_t c = 0; c < n; c++) {
            outside |= !((x[c] >= from) & (x[c] <= to));
        }
    }
    return !outside;
}

/* Gates of channels are as large as keys: threads share them, RANGE_TOKENS of a head at a time. */
static bool all_within(const loam_problem *p, const loam_const_view *view, int64_t heads, int64_t tokens,
                       int64_t rows, int64_t channels, double least, double most)
{
    enum { RANGE_TOKENS = 1024, RANGE_SHARED = 1 << 16 };
    const loam_dtype real = dtype_real(p->dtype);
    const int64_t pieces = (tokens + RANGE_TOKENS - 1) / RANGE_TOKENS;
    const bool dense = view->token == channels;
    bool all = true;
#pragma omp parallel for num_threads(p->threads) reduction(&& : all) if (rows * channels >= RANGE_SHARED)
    for (int64_t n = 0; n < rows / tokens * pieces; n++) {
        const int64_t first = n % pieces * RANGE_TOKENS, head = n / pieces;
        const int64_t rest = tokens - first, count = rest < RANGE_TOKENS ? rest : RANGE_TOKENS;
        const int64_t at = LOCAL_AT(*view, head / heads, head % heads, first);
        for (int64_t t = 0; t < (dense ? 1 : count); t++) {
            all = all && within(view->data, real, at + t * view->token, dense ? count * channels : channels,
                                least, most);
        }
    }
    return all;
}

loam_status args_check_range(const loam_problem *p, const loam_const_view *view, const char *name,
                             int64_t batch, int64_t heads, int64_t tokens, int64_t channels, double least,
                             double most, const char *expected, loam_error *error)
{
    const int64_t rows = batch * heads * tokens;
    if (on_device(p) || rows == 0 || all_within(p, view, heads, tokens, rows, channels, least, most)) {
        return LOAM_OK;
    }
    for (int64_t row = 0; row < rows; row++) {
        const int64_t t = row % tokens, h = row / tokens % heads, b = row / tokens / heads;
        for (int64_t c = 0; c < channels; c++) {
            const double x = element_load(view->data, dtype_real(p->dtype), LOCAL_AT(*view, b, h, t) + c);
            REQUIRE(x >= least && x <= most, error, LOAM_EVALUE,
                    "%s: %g at batch %lld, head %lld, token %lld, channel %lld, expected %s", name, x,
                    (long long)b, (long long)h, (long long)t, (long long)c, expected);
        }
    }
    return LOAM_OK;
}

loam_status args_check_ascending(const loam_problem *p, const int64_t *cu, const char *name, int64_t longest,
                                 int64_t total, loam_error *error)
{
    const int64_t batch = p->batch;
    TRY(args_need(cu, name, "the problem is packed", error));
    if (on_device(p)) {
        return LOAM_OK;
    }
    REQUIRE(cu[0] == 0, error, LOAM_ESHAPE, "%s[0]: %lld, expected 0", name, (long long)cu[0]);
    for (int64_t b = 0; b < batch; b++) {
        /* Compared before subtracting: hostile values must not overflow. */
        REQUIRE(cu[b + 1] >= cu[b] && cu[b + 1] <= total && cu[b + 1] - cu[b] <= longest, error, LOAM_ESHAPE,
                "%s[%lld]: %lld after %lld, expected a length of 0 to %lld and no more than %lld in all",
                name, (long long)(b + 1), (long long)cu[b + 1], (long long)cu[b], (long long)longest,
                (long long)total);
    }
    REQUIRE(cu[batch] == total, error, LOAM_ESHAPE, "%s[%lld]: %lld, expected the total %lld", name,
            (long long)batch, (long long)cu[batch], (long long)total);
    return LOAM_OK;
}

static loam_status check_lengths(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (local_packed(p)) {
        REQUIRE(!a->lens_kv, error, LOAM_EARG, "lens_kv: given, but the problem is packed; use cu_kv");
        TRY(args_check_ascending(p, a->cu_q, "cu_q", p->len_q, p->total_q, error));
        return args_check_ascending(p, a->cu_kv, "cu_kv", p->len_kv, p->total_kv, error);
    }
    REQUIRE(!a->cu_q && !a->cu_kv, error, LOAM_EARG,
            "%s: given, but the problem is not packed (total_q is -1)", a->cu_q ? "cu_q" : "cu_kv");
    for (int64_t b = 0; a->lens_kv && !on_device(p) && b < p->batch; b++) {
        REQUIRE(a->lens_kv[b] >= 0 && a->lens_kv[b] <= p->len_kv, error, LOAM_ESHAPE,
                "lens_kv[%lld]: %lld, expected 0 to %lld", (long long)b, (long long)a->lens_kv[b],
                (long long)p->len_kv);
    }
    return LOAM_OK;
}

static loam_status check_ridge_row(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                                   int64_t i, int64_t channels, loam_error *error)
{
    for (int64_t c = 0; c < channels; c++) {
        const double ridge = local_ridge(p, a, s, h, i, c);
        REQUIRE(isfinite(ridge) && ridge >= 0, error, LOAM_EVALUE,
                "ridge: %g at head %lld, token %lld, channel %lld, expected a finite number >= 0", ridge,
                (long long)h, (long long)(s->q0 + i), (long long)c);
    }
    return LOAM_OK;
}

static loam_status check_ridge(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (p->ridge_axes != LOAM_RIDGE_NUMBER) {
        TRY(args_need(a->ridge.data, "ridge", "ridge_axes says that it is an array", error));
    }
    if (on_device(p)) {
        return LOAM_OK;
    }
    const bool tokens = p->ridge_axes >= LOAM_RIDGE_TOKEN;
    const int64_t channels = p->ridge_axes == LOAM_RIDGE_CHANNEL ? p->dim_qk : 1;
    const int64_t heads = p->ridge_axes == LOAM_RIDGE_NUMBER ? 1 : p->heads_q;
    for (int64_t b = 0; b < (tokens ? p->batch : 1); b++) {
        const local_seq s = tokens ? local_seq_at(p, a, b) : (local_seq){ 0, 0, 1, 0, 0 };
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t i = 0; i < (tokens ? s.nq : 1); i++) {
                TRY(check_ridge_row(p, a, &s, h, i, channels, error));
            }
        }
    }
    return LOAM_OK;
}

static loam_status check_numbers(const loam_problem *p, const void *values, const char *name,
                                 loam_error *error)
{
    TRY(args_need(values, name, "the problem says that it is given", error));
    for (int64_t h = 0; h < p->heads_q && !on_device(p); h++) {
        const double x = element_load(values, dtype_real(p->dtype), h);
        REQUIRE(isfinite(x), error, LOAM_EVALUE, "%s[%lld]: %g, expected a finite number", name, (long long)h,
                x);
    }
    return LOAM_OK;
}

static loam_status check_between(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t batch = local_packed(p) ? 1 : p->batch, keys = local_packed(p) ? p->total_kv : p->len_kv;
    if (p->decay) {
        TRY(args_need(a->log_decay.data, "log_decay", "the problem says that scores decay", error));
        TRY(args_check_range(p, &a->log_decay, "log_decay", batch, p->heads_q, keys, 1, -HUGE_VAL, 0,
                             "a logarithm from -inf to 0", error));
    }
    if (p->path) {
        TRY(args_need(a->w.data, "w", "the problem says that keys are reflected", error));
        TRY(args_need(a->beta.data, "beta", "the problem says that keys are reflected", error));
        TRY(args_check_range(p, &a->beta, "beta", batch, p->heads_kv, keys, 1, 0, 2, "0 to 2", error));
    }
    return LOAM_OK;
}

static loam_status check_inputs(const loam_problem *p, const loam_args *a, args_use use, loam_error *error)
{
    const bool queries = p->batch > 0 && local_tokens(p) > 0;
    const bool keys = p->batch > 0 && (local_packed(p) ? p->total_kv : p->len_kv) > 0;
    if (queries) {
        TRY(args_need(a->q.data, "q", "every pass reads it", error));
        if (p->mechanism == LOAM_PARALLAX) {
            TRY(args_need(a->probe.data, "probe", "Parallax reads it", error));
        }
    }
    if (keys && use != ARGS_FINISH) {
        TRY(args_need(a->k.data, "k", "every pass reads it", error));
        TRY(args_need(a->v.data, "v", "every pass reads it", error));
        if (p->key_bias) {
            TRY(args_need(a->key_bias.data, "key_bias", "the problem says that it is given", error));
        }
        TRY(check_between(p, a, error));
    }
    if (p->slope && use != ARGS_FINISH) {
        TRY(check_numbers(p, a->slope, "slope", error));
    }
    if (p->sink && use != ARGS_PARTIAL) {
        TRY(check_numbers(p, a->sink, "sink", error));
    }
    return p->mechanism == LOAM_LLA && use != ARGS_PARTIAL ? check_ridge(p, a, error) : LOAM_OK;
}

static loam_status check_forward(const loam_problem *p, const loam_args *a, args_use use, loam_error *error)
{
    const int64_t batch = local_packed(p) ? 1 : p->batch, heads = p->heads_q;
    const int64_t tokens = local_packed(p) ? p->total_q : p->len_q;
    if (batch * tokens > 0) {
        TRY(args_need(a->o.data, "o", "forward and decode write it", error));
    }
    REQUIRE(!a->weights.data || (p->pass == LOAM_FORWARD && use == ARGS_RUN), error, LOAM_EUNSUPPORTED,
            "weights: only the forward pass gives them");
    REQUIRE(!a->saved || p->pass == LOAM_FORWARD, error, LOAM_EUNSUPPORTED,
            "saved: only the forward pass writes it");
    TRY(args_check_output(&a->o, "o", batch, heads, tokens, p->dim_v, error));
    TRY(args_check_output(&a->lse, "lse", batch, heads, tokens, 1, error));
    TRY(args_check_output(&a->rho, "rho", batch, heads, tokens, p->dim_qk, error));
    TRY(args_check_output(&a->weights, "weights", batch, heads, tokens, p->len_kv, error));
    return args_check_output(&a->info, "info", batch, heads, tokens, 1, error);
}

static loam_status check_backward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t batch = local_packed(p) ? 1 : p->batch;
    const int64_t tokens = local_packed(p) ? p->total_q : p->len_q,
                  keys = local_packed(p) ? p->total_kv : p->len_kv;
    if (batch * tokens > 0) {
        TRY(args_need(a->grad_o.data, "grad_o", "backward reads it", error));
        TRY(args_need(a->saved, "saved", "backward reads what forward left there", error));
    }
    TRY(args_check_output(&a->grad_q, "grad_q", batch, p->heads_q, tokens, p->dim_qk, error));
    TRY(args_check_output(&a->grad_k, "grad_k", batch, p->heads_kv, keys, p->dim_qk, error));
    TRY(args_check_output(&a->grad_v, "grad_v", batch, p->heads_kv, keys, p->dim_v, error));
    TRY(args_check_output(&a->grad_key_bias, "grad_key_bias", batch, p->heads_q, keys, 1, error));
    REQUIRE(!a->grad_probe.data || p->mechanism == LOAM_PARALLAX, error, LOAM_EARG,
            "grad_probe: only Parallax has a probe to give");
    REQUIRE(!a->grad_ridge.data || p->mechanism == LOAM_LLA, error, LOAM_EARG,
            "grad_ridge: only LLA has a ridge");
    REQUIRE(!a->grad_slope || p->slope, error, LOAM_EARG, "grad_slope: the problem has no slope");
    REQUIRE(!a->grad_key_bias.data || p->key_bias, error, LOAM_EARG,
            "grad_key_bias: the problem has no key bias");
    REQUIRE(!a->grad_sink || p->sink, error, LOAM_EARG, "grad_sink: the problem has no sink");
    TRY(args_check_output(&a->grad_log_decay, "grad_log_decay", batch, p->heads_q, keys, 1, error));
    TRY(args_check_output(&a->grad_beta, "grad_beta", batch, p->heads_kv, keys, 1, error));
    TRY(args_check_output(&a->grad_w, "grad_w", batch, p->heads_kv, keys, p->dim_qk, error));
    TRY(args_check_output(&a->grad_probe, "grad_probe", batch, p->heads_q, tokens, p->dim_qk, error));
    if (p->ridge_axes == LOAM_RIDGE_HEAD) {
        return args_check_output(&a->grad_ridge, "grad_ridge", 1, p->heads_q, 1, 1, error);
    }
    return p->ridge_axes == LOAM_RIDGE_NUMBER
               ? LOAM_OK
               : args_check_output(&a->grad_ridge, "grad_ridge", batch, p->heads_q, tokens,
                                   p->ridge_axes == LOAM_RIDGE_CHANNEL ? p->dim_qk : 1, error);
}

static loam_status check_not_recurrent(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const void *const states[] = { a->state_in.data, a->state_out.data, a->grad_state_out.data,
                                   a->grad_state_in.data };
    static const char *const names[] = { "state_in", "state_out", "grad_state_out", "grad_state_in" };
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        REQUIRE(!states[i], error, LOAM_EARG, "%s: given, but only the recurrent family has one", names[i]);
    }
    REQUIRE(p->decay || !(a->log_decay.data || a->grad_log_decay.data), error, LOAM_EARG,
            "%slog_decay: given, but the problem has no decay", a->log_decay.data ? "" : "grad_");
    REQUIRE(p->path || !(a->beta.data || a->grad_beta.data), error, LOAM_EARG,
            "%sbeta: given, but the problem has no path", a->beta.data ? "" : "grad_");
    REQUIRE(p->path || !(a->w.data || a->grad_w.data), error, LOAM_EARG,
            "%sw: given, but the problem has no path", a->w.data ? "" : "grad_");
    return LOAM_OK;
}

loam_status args_check(const loam_plan *plan, const loam_args *a, args_use use, loam_error *error)
{
    const loam_problem *p = &plan->problem;
    REQUIRE(a, error, LOAM_EARG, "args: NULL");
    REQUIRE(a->work || plan->work_bytes == 0, error, LOAM_EARG, "work: NULL, expected %zu bytes",
            plan->work_bytes);
    REQUIRE((uintptr_t)a->work % LOAM_ALIGN == 0, error, LOAM_EARG, "work: %p, expected a multiple of %d",
            a->work, LOAM_ALIGN);
    REQUIRE((uintptr_t)a->saved % LOAM_ALIGN == 0, error, LOAM_EARG, "saved: %p, expected a multiple of %d",
            a->saved, LOAM_ALIGN);
    if (plan_recurrent(p)) {
        return args_check_recurrent(p, a, error);
    }
    TRY(check_not_recurrent(p, a, error));
    TRY(check_lengths(p, a, error));
    TRY(check_inputs(p, a, use, error));
    if (use == ARGS_PARTIAL) {
        return LOAM_OK;
    }
    return p->pass == LOAM_BACKWARD ? check_backward(p, a, error) : check_forward(p, a, use, error);
}
