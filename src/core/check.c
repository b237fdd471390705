/* SPDX-License-Identifier: MIT
 * The checks of a call's arguments. They cost O(batch + ridge + log_decay + beta + w), and leave q, k and v alone. Device memory is not
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

/* What every row must be: its values from `least` to `most`, or its length 1 or 0. */
typedef struct row_rule {
    loam_dtype dtype;
    bool unit;
    double least, most;
} row_rule;

LOAM_INLINE double sum_of_squares(const void *data, loam_dtype dtype, int64_t at, int64_t n)
{
    double sums[4] = { 0 }, rest = 0;
    for (int64_t c = 0; c < n / 4 * 4; c += 4) {
        for (int part = 0; part < 4; part++) {
            const double x = element_load(data, dtype, at + c + part);
            sums[part] += x * x;
        }
    }
    for (int64_t c = n / 4 * 4; c < n; c++) {
        const double x = element_load(data, dtype, at + c);
        rest += x * x;
    }
    return sums[0] + sums[1] + (sums[2] + sums[3]) + rest;
}

static double length_of(const void *data, loam_dtype dtype, int64_t at, int64_t n)
{
    switch (dtype) { /* a loop for each type */
    case LOAM_F64: return sqrt(sum_of_squares(data, LOAM_F64, at, n));
    case LOAM_F32: return sqrt(sum_of_squares(data, LOAM_F32, at, n));
    case LOAM_BF16: return sqrt(sum_of_squares(data, LOAM_BF16, at, n));
    case LOAM_F16: return sqrt(sum_of_squares(data, LOAM_F16, at, n));
    }
    return 0;
}

/* How far rounding takes a length from 1: that of the elements to their type, and of the float32 sum that normalised them.
 * float64 is the reference's, on data that may have been rounded to any type before. */
static double unit_tolerance(loam_dtype dtype)
{
    const bool coarse = dtype == LOAM_BF16 || dtype == LOAM_F64;
    return 8 * (double)FLT_EPSILON + (coarse ? 0x1p-7 : dtype == LOAM_F16 ? 0x1p-10 : (double)FLT_EPSILON);
}

static bool is_unit(double length, loam_dtype dtype)
{
    return length == 0 || fabs(length - 1) <= unit_tolerance(dtype);
}

static bool rows_hold(const row_rule *rule, const loam_const_view *view, int64_t at, int64_t rows,
                      int64_t channels)
{
    bool all = true;
    if (!rule->unit && view->token == channels) {
        return within(view->data, rule->dtype, at, rows * channels, rule->least, rule->most);
    }
    for (int64_t t = 0; t < rows && all; t++, at += view->token) {
        all = rule->unit ? is_unit(length_of(view->data, rule->dtype, at, channels), rule->dtype)
                         : within(view->data, rule->dtype, at, channels, rule->least, rule->most);
    }
    return all;
}

static int64_t in_use(const args_extent *e, int64_t b) { return e->lens ? e->lens[b] : e->tokens; }

/* Gates of channels are as large as keys: threads share them, RANGE_TOKENS of a head at a time. */
static bool all_hold(const loam_problem *p, const row_rule *rule, const loam_const_view *view,
                     const args_extent *e)
{
    enum { RANGE_TOKENS = 1024, RANGE_SHARED = 1 << 16 };
    const int64_t heads = e->batch * e->heads, pieces = (e->tokens + RANGE_TOKENS - 1) / RANGE_TOKENS;
    const bool shared = heads * e->tokens * e->channels >= RANGE_SHARED;
    bool all = true;
#pragma omp parallel for num_threads(p->threads) reduction(&& : all) if (shared)
    for (int64_t n = 0; n < heads * pieces; n++) {
        const int64_t first = n % pieces * RANGE_TOKENS, b = n / pieces / e->heads, h = n / pieces % e->heads;
        const int64_t rest = in_use(e, b) - first, count = rest < RANGE_TOKENS ? rest : RANGE_TOKENS;
        all = all && rows_hold(rule, view, LOCAL_AT(*view, b, h, first), count, e->channels);
    }
    return all;
}

static bool looked_into(const loam_problem *p, const args_extent *e)
{
    return p->backend != LOAM_BACKEND_CUDA && e->batch * e->heads * e->tokens > 0;
}

loam_status args_check_range(const loam_problem *p, const loam_const_view *view, const char *name,
                             const args_extent *e, double least, double most, const char *expected,
                             loam_error *error)
{
    const row_rule rule = { dtype_real(p->dtype), false, least, most };
    if (!looked_into(p, e) || all_hold(p, &rule, view, e)) {
        return LOAM_OK;
    }
    for (int64_t row = 0; row < e->batch * e->heads * e->tokens; row++) {
        const int64_t t = row % e->tokens, h = row / e->tokens % e->heads, b = row / e->tokens / e->heads;
        for (int64_t c = 0; c < e->channels && t < in_use(e, b); c++) {
            const double x = element_load(view->data, rule.dtype, LOCAL_AT(*view, b, h, t) + c);
            REQUIRE(x >= least && x <= most, error, LOAM_EVALUE,
                    "%s: %g at batch %lld, head %lld, token %lld, channel %lld, expected %s", name, x,
                    (long long)b, (long long)h, (long long)t, (long long)c, expected);
        }
    }
    return LOAM_OK;
}

loam_status args_check_unit(const loam_problem *p, const loam_const_view *view, const char *name,
                            const args_extent *e, loam_error *error)
{
    const row_rule rule = { p->dtype, true, 0, 0 };
    if (!looked_into(p, e) || all_hold(p, &rule, view, e)) {
        return LOAM_OK;
    }
    for (int64_t row = 0; row < e->batch * e->heads * e->tokens; row++) {
        const int64_t t = row % e->tokens, h = row / e->tokens % e->heads, b = row / e->tokens / e->heads;
        if (t < in_use(e, b)) {
            const double length = length_of(view->data, p->dtype, LOCAL_AT(*view, b, h, t), e->channels);
            REQUIRE(is_unit(length, p->dtype), error, LOAM_EVALUE,
                    "%s: length %.17g at batch %lld, head %lld, token %lld, expected 1 to within %.2g, or 0",
                    name, length, (long long)b, (long long)h, (long long)t, unit_tolerance(p->dtype));
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
    if (sequence_packed(p)) {
        TRY(args_check_ascending(p, a->cu_q, "cu_q", p->len_q, p->total_q, error));
        return args_check_ascending(p, a->cu_kv, "cu_kv", p->len_kv, p->total_kv, error);
    }
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
    const int64_t batch = sequence_packed(p) ? 1 : p->batch, keys = sequence_packed(p) ? p->total_kv : p->len_kv;
    if (p->decay) {
        TRY(args_need(a->log_decay.data, "log_decay", "the problem says that scores decay", error));
        const args_extent gates = { batch, p->heads_q, keys, 1, a->lens_kv };
        TRY(args_check_range(p, &a->log_decay, "log_decay", &gates, -HUGE_VAL, 0,
                             "a logarithm from -inf to 0", error));
    }
    if (p->path) {
        TRY(args_need(a->w.data, "w", "the problem says that keys are reflected", error));
        TRY(args_need(a->beta.data, "beta", "the problem says that keys are reflected", error));
        const args_extent strengths = { batch, p->heads_kv, keys, 1, a->lens_kv },
                          rows = { batch, p->heads_kv, keys, p->dim_qk, a->lens_kv };
        TRY(args_check_range(p, &a->beta, "beta", &strengths, 0, 2, "0 to 2", error));
        TRY(args_check_unit(p, &a->w, "w", &rows, error));
    }
    return LOAM_OK;
}

static loam_status check_inputs(const loam_problem *p, const loam_args *a, args_use use, loam_error *error)
{
    const bool queries = p->batch > 0 && local_tokens(p) > 0;
    const bool keys = p->batch > 0 && (sequence_packed(p) ? p->total_kv : p->len_kv) > 0;
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

static loam_status check_forward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t batch = sequence_packed(p) ? 1 : p->batch, heads = p->heads_q;
    const int64_t tokens = sequence_packed(p) ? p->total_q : p->len_q;
    if (batch * tokens > 0) {
        TRY(args_need(a->o.data, "o", "forward and decode write it", error));
    }
    TRY(args_check_output(&a->o, "o", batch, heads, tokens, p->dim_v, error));
    TRY(args_check_output(&a->lse, "lse", batch, heads, tokens, 1, error));
    TRY(args_check_output(&a->rho, "rho", batch, heads, tokens, p->dim_qk, error));
    TRY(args_check_output(&a->weights, "weights", batch, heads, tokens, p->len_kv, error));
    return args_check_output(&a->info, "info", batch, heads, tokens, 1, error);
}

static loam_status check_backward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t batch = sequence_packed(p) ? 1 : p->batch;
    const int64_t tokens = sequence_packed(p) ? p->total_q : p->len_q,
                  keys = sequence_packed(p) ? p->total_kv : p->len_kv;
    if (batch * tokens > 0) {
        TRY(args_need(a->grad_o.data, "grad_o", "backward reads it", error));
        TRY(args_need(a->saved, "saved", "backward reads what forward left there", error));
    }
    TRY(args_check_output(&a->grad_q, "grad_q", batch, p->heads_q, tokens, p->dim_qk, error));
    TRY(args_check_output(&a->grad_k, "grad_k", batch, p->heads_kv, keys, p->dim_qk, error));
    TRY(args_check_output(&a->grad_v, "grad_v", batch, p->heads_kv, keys, p->dim_v, error));
    TRY(args_check_output(&a->grad_key_bias, "grad_key_bias", batch, p->heads_q, keys, 1, error));
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
    TRY(args_check_used(p, a, error));
    if (plan_recurrent(p)) {
        return args_check_recurrent(p, a, error);
    }
    TRY(check_lengths(p, a, error));
    TRY(check_inputs(p, a, use, error));
    if (use == ARGS_PARTIAL) {
        return LOAM_OK;
    }
    TRY((p->pass == LOAM_BACKWARD ? check_backward : check_forward)(p, a, error));
    return p->pass == LOAM_BACKWARD ? saved_check(p, 0, a->saved, error) : LOAM_OK;
}
