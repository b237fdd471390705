/* SPDX-License-Identifier: MIT
 * The local family: its checks of a problem and of arguments, and what runs before its kernels. */
#include "src/core/check.h"
#include "src/core/family.h"
#include "src/core/saved.h"
#include "src/local/decay.h"

#include <math.h>

/* ------------------------------------------------------------------ problems */

#define MAP_WORDS(member, words) p->member != 0 ? words:

/* Scores that depend on the tokens between query and key. */
static loam_status check_between(const loam_problem *p, loam_error *error)
{
    const char *name = p->path ? "path" : "decay";
    if (!p->decay && !p->path) return LOAM_OK;
    REQUIRE(p->causal, error, LOAM_EUNSUPPORTED,
            "%s: 1, expected 0 where causal is 0: keys lie before queries", name);
    REQUIRE(p->score == LOAM_DOT, error, LOAM_EUNSUPPORTED, "%s: 1, expected 0 for the score rbf", name);
    REQUIRE(!p->sink, error, LOAM_EUNSUPPORTED, "sink: 1, expected 0 with %s", name);
    REQUIRE(!p->path || (!local_mapped(p) && p->window == 0 && !p->slope && !p->key_bias), error,
            LOAM_EUNSUPPORTED, "path: 1, expected 0 with %s",
            LOCAL_MAPS(MAP_WORDS) p->window != 0 ? "a window"
            : p->slope                           ? "slopes"
                                                 : "a key bias");
    return LOAM_OK;
}

static loam_status check_problem(const loam_problem *p, loam_error *error)
{
    const char *name = loam_mechanism_name(p->mechanism);
    REQUIRE(p->heads_v == 0, error, LOAM_EUNSUPPORTED, "heads_v: %lld, expected 0: %s has heads_kv",
            (long long)p->heads_v, name);
    REQUIRE(p->features == 0 && !p->features_shared, error, LOAM_EUNSUPPORTED,
            "features, features_shared: %lld, %d, expected 0: %s has none", (long long)p->features,
            p->features_shared, name);
    REQUIRE(p->feature_map == LOAM_FEATURES_IDENTITY, error, LOAM_EUNSUPPORTED,
            "feature_map: %d, expected 0: %s has none", (int)p->feature_map, name);
    REQUIRE(!p->normalise, error, LOAM_EUNSUPPORTED, "normalise: 1, expected 0: %s always is", name);
    return check_between(p, error);
}

static void fill(loam_problem *p) { p->scale = p->scale == 0 ? 1 / sqrt((double)p->dim_qk) : p->scale; }

static void describe(loam_mechanism mechanism, loam_mechanism_info *info)
{
    info->family = LOAM_FAMILY_LOCAL;
    info->probe = mechanism == LOAM_PARALLAX;
    info->sink = mechanism == LOAM_SOFTMAX;
    info->beta_most = 2;
    if (mechanism == LOAM_LLA) {
        info->ridge_axes = 1u << LOAM_RIDGE_NUMBER | 1u << LOAM_RIDGE_HEAD | 1u << LOAM_RIDGE_TOKEN |
                           1u << LOAM_RIDGE_CHANNEL;
        info->ridge_units = 1u << LOAM_RIDGE_NORMALISED | 1u << LOAM_RIDGE_MAX | 1u << LOAM_RIDGE_TRACE;
    }
}

/* ------------------------------------------------------------------ arguments */

static loam_status check_lengths(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (sequence_packed(p)) {
        TRY(check_ascending(p, a->cu_q, "cu_q", p->len_q, p->total_q, error));
        return check_ascending(p, a->cu_kv, "cu_kv", p->len_kv, p->total_kv, error);
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
    if (p->ridge_axes != LOAM_RIDGE_NUMBER)
        TRY(check_given(a->ridge.data, "ridge", "ridge_axes says that it is an array", error));
    if (on_device(p)) return LOAM_OK;
    const bool tokens = p->ridge_axes >= LOAM_RIDGE_TOKEN;
    const int64_t channels = p->ridge_axes == LOAM_RIDGE_CHANNEL ? p->dim_qk : 1;
    const int64_t heads = p->ridge_axes == LOAM_RIDGE_NUMBER ? 1 : p->heads_q;
    for (int64_t b = 0; b < (tokens ? p->batch : 1); b++) {
        const local_seq s = tokens ? local_seq_at(p, a, b) : (local_seq){ 0, 0, 1, 0, 0 };
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < (tokens ? s.nq : 1); i++)
                TRY(check_ridge_row(p, a, &s, h, i, channels, error));
    }
    return LOAM_OK;
}

static loam_status check_numbers(const loam_problem *p, const void *values, const char *name,
                                 loam_error *error)
{
    TRY(check_given(values, name, "the problem says that it is given", error));
    for (int64_t h = 0; h < p->heads_q && !on_device(p); h++) {
        const double x = element_load(values, dtype_real(p->dtype), h);
        REQUIRE(isfinite(x), error, LOAM_EVALUE, "%s[%lld]: %g, expected a finite number", name, (long long)h,
                x);
    }
    return LOAM_OK;
}

/* Arrays of scores that depend on the tokens between query and key. */
static loam_status check_gates(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (p->decay) {
        extent gates = extent_of_k(p, p->heads_q, 1);
        gates.lens = a->lens_kv;
        TRY(check_given(a->log_decay.data, "log_decay", "the problem says that scores decay", error));
        TRY(check_range(p, &a->log_decay, "log_decay", gates, -HUGE_VAL, 0, "a logarithm from -inf to 0",
                        error));
    }
    if (p->path) {
        extent strengths = extent_of_k(p, p->heads_kv, 1), rows = extent_of_k(p, p->heads_kv, p->dim_qk);
        strengths.lens = rows.lens = a->lens_kv;
        TRY(check_given(a->w.data, "w", "the problem says that keys are reflected", error));
        TRY(check_given(a->beta.data, "beta", "the problem says that keys are reflected", error));
        TRY(check_range(p, &a->beta, "beta", strengths, 0, 2, "0 to 2", error));
        TRY(check_unit(p, &a->w, "w", rows, error));
    }
    return LOAM_OK;
}

static loam_status check_inputs(const loam_problem *p, const loam_args *a, args_use use, loam_error *error)
{
    const bool queries = p->batch > 0 && local_tokens(p) > 0;
    const bool keys = p->batch > 0 && extent_of_k(p, 1, 1).tokens > 0;
    if (queries) {
        TRY(check_given(a->q.data, "q", "every pass reads it", error));
        if (p->mechanism == LOAM_PARALLAX)
            TRY(check_given(a->probe.data, "probe", "Parallax reads it", error));
    }
    if (keys && use != ARGS_FINISH) {
        TRY(check_given(a->k.data, "k", "every pass reads it", error));
        TRY(check_given(a->v.data, "v", "every pass reads it", error));
        if (p->key_bias)
            TRY(check_given(a->key_bias.data, "key_bias", "the problem says that it is given", error));
        TRY(check_gates(p, a, error));
    }
    if (p->slope && use != ARGS_FINISH) TRY(check_numbers(p, a->slope, "slope", error));
    if (p->sink && use != ARGS_PARTIAL) TRY(check_numbers(p, a->sink, "sink", error));
    return p->mechanism == LOAM_LLA && use != ARGS_PARTIAL ? check_ridge(p, a, error) : LOAM_OK;
}

static loam_status check_forward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t heads = p->heads_q;
    if (extent_rows(extent_of_q(p, 1, 1)) > 0)
        TRY(check_given(a->o.data, "o", "forward and decode write it", error));
    TRY(check_output(&a->o, "o", extent_of_q(p, heads, p->dim_v), error));
    TRY(check_output(&a->lse, "lse", extent_of_q(p, heads, 1), error));
    TRY(check_output(&a->rho, "rho", extent_of_q(p, heads, p->dim_qk), error));
    TRY(check_output(&a->weights, "weights", extent_of_q(p, heads, p->len_kv), error));
    return check_output(&a->info, "info", extent_of_q(p, heads, 1), error);
}

static loam_status check_ridge_gradient(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t channels = p->ridge_axes == LOAM_RIDGE_CHANNEL ? p->dim_qk : 1;
    const extent heads = { 1, p->heads_q, 1, 1, NULL }, rows = extent_of_q(p, p->heads_q, channels);
    return p->ridge_axes == LOAM_RIDGE_NUMBER
               ? LOAM_OK
               : check_output(&a->grad_ridge, "grad_ridge", p->ridge_axes == LOAM_RIDGE_HEAD ? heads : rows,
                              error);
}

static loam_status check_backward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t heads = p->heads_q, heads_kv = p->heads_kv, d = p->dim_qk, dv = p->dim_v;
    if (extent_rows(extent_of_q(p, 1, 1)) > 0) {
        TRY(check_given(a->grad_o.data, "grad_o", "backward reads it", error));
        TRY(check_given(a->saved, "saved", "backward reads what forward left there", error));
    }
    TRY(check_output(&a->grad_q, "grad_q", extent_of_q(p, heads, d), error));
    TRY(check_output(&a->grad_k, "grad_k", extent_of_k(p, heads_kv, d), error));
    TRY(check_output(&a->grad_v, "grad_v", extent_of_k(p, heads_kv, dv), error));
    TRY(check_output(&a->grad_key_bias, "grad_key_bias", extent_of_k(p, heads, 1), error));
    TRY(check_output(&a->grad_log_decay, "grad_log_decay", extent_of_k(p, heads, 1), error));
    TRY(check_output(&a->grad_beta, "grad_beta", extent_of_k(p, heads_kv, 1), error));
    TRY(check_output(&a->grad_w, "grad_w", extent_of_k(p, heads_kv, d), error));
    TRY(check_output(&a->grad_probe, "grad_probe", extent_of_q(p, heads, d), error));
    TRY(check_ridge_gradient(p, a, error));
    return saved_check(p, 0, a->saved, error);
}

static loam_status check_args(const loam_problem *p, const loam_args *a, args_use use, loam_error *error)
{
    TRY(check_lengths(p, a, error));
    TRY(check_inputs(p, a, use, error));
    if (use == ARGS_PARTIAL) return LOAM_OK;
    return (p->pass == LOAM_BACKWARD ? check_backward : check_forward)(p, a, error);
}

/* ------------------------------------------------------------------ sizes */

/* Of a kernel and of what is prepared for it, or of loam_state_finish where the plan is for decode. */
static size_t work_bytes(const loam_problem *p, size_t kernel)
{
    const size_t run = size_add(local_decay_work(p), kernel);
    const size_t scratch = size_of(local_state_scratch(p), sizeof(double));
    const size_t finish = p->pass == LOAM_DECODE ? size_mul(scratch, (size_t)p->threads) : 0;
    return run > finish ? run : finish;
}

static size_t saved_bytes(const loam_problem *p)
{
    size_t bytes;
    local_saved_carve(p, NULL, &bytes);
    return size_add(bytes, saved_stamp_bytes(p));
}

const family family_local = { .id = LOAM_FAMILY_LOCAL,
                              .check_problem = check_problem,
                              .fill = fill,
                              .describe = describe,
                              .check_args = check_args,
                              .work_bytes = work_bytes,
                              .saved_bytes = saved_bytes,
                              .prepare = local_decay_begin,
                              .state_doubles = local_state_doubles };
