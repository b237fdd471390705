/* SPDX-License-Identifier: MIT
 * The recurrent family: its checks of a problem and of arguments. Values of log_decay and beta in host memory
 * are checked too: a log decay above 0, or a delta rule with beta above 2, lets the state grow. */
#include "src/core/check.h"
#include "src/core/family.h"
#include "src/local/local.h"
#include "src/recurrent/recurrent.h"

#include <math.h>

/* ------------------------------------------------------------------ problems */

static loam_status check_features(const loam_problem *p, loam_error *error)
{
    if (!recurrent_positive(p)) {
        REQUIRE(p->features == 0 && !p->features_shared, error, LOAM_EUNSUPPORTED,
                "features, features_shared: %lld, %d, expected 0: the feature map is %s",
                (long long)p->features, p->features_shared, loam_feature_map_name(p->feature_map));
        return LOAM_OK;
    }
    REQUIRE(p->mechanism == LOAM_LINEAR && p->normalise, error, LOAM_EUNSUPPORTED,
            "feature_map: positive of %s with normalise %d, expected linear with 1",
            loam_mechanism_name(p->mechanism), p->normalise);
    REQUIRE(p->scale >= 0, error, LOAM_EVALUE, "scale: %g, expected > 0, or 0 for the default", p->scale);
    REQUIRE(p->heads_v == 0 || p->heads_v == p->heads_q, error, LOAM_ESHAPE,
            "heads_v: %lld, expected 0: with positive features values have heads_kv heads",
            (long long)p->heads_v);
    return check_size("features", p->features, 0, LOAM_MAX_DIM, error);
}

static loam_status check_shape(const loam_problem *p, loam_error *error)
{
    REQUIRE(p->heads_kv == p->heads_q || recurrent_positive(p), error, LOAM_ESHAPE,
            "heads_kv: %lld, expected heads_q, %lld, for %s", (long long)p->heads_kv, (long long)p->heads_q,
            loam_mechanism_name(p->mechanism));
    REQUIRE(p->len_kv == p->len_q && p->total_kv == p->total_q, error, LOAM_ESHAPE,
            "len_kv, total_kv: %lld, %lld, expected those of q, %lld, %lld, for %s", (long long)p->len_kv,
            (long long)p->total_kv, (long long)p->len_q, (long long)p->total_q,
            loam_mechanism_name(p->mechanism));
    TRY(check_size("heads_v", p->heads_v, 0, INT32_MAX, error));
    REQUIRE(p->heads_v % p->heads_q == 0, error, LOAM_ESHAPE,
            "heads_v: %lld, expected 0 or a multiple of heads_q %lld", (long long)p->heads_v,
            (long long)p->heads_q);
    TRY(check_features(p, error));
    const size_t tokens = sequence_packed(p) ? (size_t)p->total_q
                                             : size_mul((size_t)p->batch, (size_t)p->len_q);
    const size_t rows = size_add(tokens, size_mul((size_t)p->batch, (size_t)recurrent_state_rows(p)));
    const size_t elements = size_mul(size_mul(rows, (size_t)p->heads_v), LOAM_MAX_DIM * sizeof(double));
    REQUIRE(elements < INT64_MAX, error, LOAM_EMEMORY, "batch x heads_v x len_q: too large to address");
    return LOAM_OK;
}

#define REFUSE_MAP(member, ...) \
    REQUIRE(p->member == 0, error, LOAM_EUNSUPPORTED, #member ": %g, expected 0: %s has none", p->member, \
            name);

static loam_status check_problem(const loam_problem *p, loam_error *error)
{
    const char *name = loam_mechanism_name(p->mechanism);
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    REQUIRE(p->score == LOAM_DOT, error, LOAM_EUNSUPPORTED, "score: rbf, expected dot: %s has no other",
            name);
    LOCAL_MAPS(REFUSE_MAP)
    REQUIRE(p->causal, error, LOAM_EUNSUPPORTED, "causal: 0, expected 1: %s is a recurrence", name);
    REQUIRE(p->window == 0, error, LOAM_EUNSUPPORTED, "window: %lld, expected 0: %s has none",
            (long long)p->window, name);
    REQUIRE(!p->slope && !p->key_bias && !p->sink, error, LOAM_EUNSUPPORTED, "%s: 1, expected 0: %s has none",
            p->slope      ? "slope"
            : p->key_bias ? "key_bias"
                          : "sink",
            name);
    REQUIRE(!p->decay && !p->path, error, LOAM_EUNSUPPORTED, "%s: 1, expected 0: a score, which %s has not",
            p->decay ? "decay" : "path", name);
    REQUIRE(!p->normalise || !(form->delta || form->solved), error, LOAM_EUNSUPPORTED,
            "normalise: 1, expected 0: %s fits the values themselves; without delta rule or solve it can be",
            name);
    REQUIRE(!p->normalise || p->scale == 0 || p->scale == 1 || recurrent_positive(p), error,
            LOAM_EUNSUPPORTED, "scale: %g, expected 0 or 1: it cancels where the read is normalised",
            p->scale);
    if (form->solved) {
        REQUIRE(isfinite(p->ridge) && p->ridge > 0, error, LOAM_EVALUE,
                "ridge: %g, expected a finite number > 0", p->ridge);
    }
    return check_shape(p, error);
}

static void fill(loam_problem *p)
{
    const bool unscaled = (p->normalise && !recurrent_positive(p)) || recurrent_form_of(p->mechanism)->solved;
    p->heads_v = p->heads_v ? p->heads_v : p->heads_q;
    if (recurrent_positive(p)) p->features = p->features ? p->features : p->dim_qk;
    p->scale = p->scale != 0 ? p->scale : unscaled ? 1 : 1 / sqrt((double)p->dim_qk);
}

static loam_decay_axes decay_axes(const recurrent_form *form)
{
    switch (form->gate) {
    case GATE_HEAD: return LOAM_DECAY_HEAD;
    case GATE_TOKEN: return LOAM_DECAY_TOKEN;
    case GATE_CHANNEL: return LOAM_DECAY_CHANNEL;
    case GATE_NONE: break;
    }
    return LOAM_DECAY_NONE;
}

static void describe(loam_mechanism mechanism, loam_mechanism_info *info)
{
    const recurrent_form *form = recurrent_form_of(mechanism);
    info->family = LOAM_FAMILY_RECURRENT;
    info->log_decay = decay_axes(form);
    info->beta = form->beta;
    info->beta_most = form->delta ? 2 : HUGE_VAL;
    info->delta = form->delta;
    info->normalise = !form->delta && !form->solved;
    if (form->solved) {
        info->ridge_axes = 1u << LOAM_RIDGE_NUMBER | 1u << LOAM_RIDGE_HEAD | 1u << LOAM_RIDGE_HEAD_CHANNEL;
        info->ridge_units = 1u << LOAM_RIDGE_NORMALISED;
        info->ridge_positive = 1;
    }
}

/* ------------------------------------------------------------------ arguments */

/* Of log_decay and its gradient. */
static extent decay_extent(const loam_problem *p)
{
    const recurrent_gate gate = recurrent_form_of(p->mechanism)->gate;
    return gate == GATE_HEAD ? (extent){ 1, p->heads_v, 1, 1, NULL }
                             : extent_of_q(p, p->heads_v, gate == GATE_CHANNEL ? p->dim_qk : 1);
}

static loam_status check_parameters(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const extent values = extent_of_q(p, p->heads_v, 1);
    if (extent_rows(values) == 0) return LOAM_OK;
    if (form->gate != GATE_NONE) {
        TRY(check_given(a->log_decay.data, "log_decay", "this mechanism reads it", error));
        TRY(check_range(p, &a->log_decay, "log_decay", decay_extent(p), -HUGE_VAL, 0,
                        "a logarithm from -inf to 0", error));
    }
    if (form->beta) {
        TRY(check_given(a->beta.data, "beta", "this mechanism reads it", error));
        TRY(check_range(p, &a->beta, "beta", values, 0, form->delta ? 2 : 1.7e308,
                        form->delta ? "0 to 2" : "a finite number >= 0", error));
    }
    return LOAM_OK;
}

static loam_status check_ridge(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (p->ridge_axes != LOAM_RIDGE_NUMBER)
        TRY(check_given(a->ridge.data, "ridge", "ridge_axes says that it is an array", error));
    const bool heads = p->ridge_axes != LOAM_RIDGE_NUMBER;
    const int64_t channels = p->ridge_axes == LOAM_RIDGE_HEAD_CHANNEL ? p->dim_qk : 1;
    for (int64_t h = 0; !on_device(p) && h < (heads ? p->heads_v : 1); h++) {
        for (int64_t c = 0; c < channels; c++) {
            const double ridge = recurrent_ridge(p, a, h, c);
            REQUIRE(isfinite(ridge) && ridge > 0, error, LOAM_EVALUE,
                    "ridge: %g at head %lld, channel %lld, expected a finite number > 0", ridge, (long long)h,
                    (long long)c);
        }
    }
    return LOAM_OK;
}

static loam_status check_inputs(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (sequence_packed(p)) TRY(check_ascending(p, a->cu_q, "cu_q", p->len_q, p->total_q, error));
    if (extent_rows(extent_of_q(p, 1, 1)) > 0) {
        TRY(check_given(a->q.data, "q", "every pass reads it", error));
        TRY(check_given(a->k.data, "k", "every pass reads it", error));
        TRY(check_given(a->v.data, "v", "every pass reads it", error));
        if (recurrent_positive(p)) TRY(check_given(a->z.data, "z", "positive features read it", error));
    }
    REQUIRE(!a->balance.data == !a->balance_keys.data, error, LOAM_EARG,
            "balance, balance_keys: one of them is given, expected both or neither");
    TRY(check_parameters(p, a, error));
    return recurrent_form_of(p->mechanism)->solved ? check_ridge(p, a, error) : LOAM_OK;
}

static loam_status check_state(const loam_problem *p, const loam_view *view, const char *name,
                               loam_error *error)
{
    const extent e = { p->batch, recurrent_state_heads(p), recurrent_state_rows(p), recurrent_state_width(p),
                       NULL };
    return check_output(view, name, e, error);
}

static loam_status check_forward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t heads = p->heads_v;
    const loam_const_view *in = &a->state_in;
    const loam_view *out = &a->state_out;
    if (extent_rows(extent_of_q(p, heads, 1)) > 0)
        TRY(check_given(a->o.data, "o", "forward and decode write it", error));
    if (p->pass == LOAM_DECODE && p->batch > 0)
        TRY(check_given(out->data, "state_out", "decode goes on from it", error));
    REQUIRE(in->data != out->data || !out->data ||
                (in->batch == out->batch && in->head == out->head && in->token == out->token),
            error, LOAM_ESHAPE,
            "state_out: strides %lld, %lld, %lld in the memory of state_in, expected its %lld, %lld, %lld",
            (long long)out->batch, (long long)out->head, (long long)out->token, (long long)in->batch,
            (long long)in->head, (long long)in->token);
    TRY(check_output(&a->o, "o", extent_of_q(p, heads, p->dim_v), error));
    TRY(check_output(&a->info, "info", extent_of_q(p, heads, 1), error));
    return check_state(p, out, "state_out", error);
}

static loam_status check_parameter_gradients(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const extent ridge = { 1, p->heads_v, 1, p->ridge_axes == LOAM_RIDGE_HEAD ? 1 : p->dim_qk, NULL };
    const int64_t z_heads = recurrent_state_heads(p);
    TRY(check_output(&a->grad_z, "grad_z", (extent){ 1, z_heads, p->features, p->dim_qk, NULL }, error));
    TRY(check_output(&a->grad_log_alpha, "grad_log_alpha", (extent){ 1, z_heads, 1, p->features, NULL },
                     error));
    TRY(check_output(&a->grad_log_decay, "grad_log_decay", decay_extent(p), error));
    TRY(check_output(&a->grad_beta, "grad_beta", extent_of_q(p, p->heads_v, 1), error));
    return p->ridge_axes == LOAM_RIDGE_NUMBER ? LOAM_OK
                                              : check_output(&a->grad_ridge, "grad_ridge", ridge, error);
}

static loam_status check_backward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (extent_rows(extent_of_q(p, p->heads_v, 1)) > 0)
        TRY(check_given(a->grad_o.data, "grad_o", "backward reads it", error));
    TRY(check_output(&a->grad_q, "grad_q", extent_of_q(p, p->heads_q, p->dim_qk), error));
    TRY(check_output(&a->grad_k, "grad_k", extent_of_q(p, p->heads_kv, p->dim_qk), error));
    TRY(check_output(&a->grad_v, "grad_v", extent_of_q(p, recurrent_value_heads(p), p->dim_v), error));
    TRY(check_state(p, &a->grad_state_in, "grad_state_in", error));
    return check_parameter_gradients(p, a, error);
}

/* Recurrences have no partial states: `use` is always ARGS_RUN. */
static loam_status check_args(const loam_problem *p, const loam_args *a, args_use use, loam_error *error)
{
    (void)use;
    TRY(check_inputs(p, a, error));
    return p->pass == LOAM_BACKWARD ? check_backward(p, a, error) : check_forward(p, a, error);
}

static size_t work_bytes(const loam_problem *p, size_t kernel)
{
    (void)p;
    return kernel;
}

const family family_recurrent = { .id = LOAM_FAMILY_RECURRENT,
                                  .packed_decode = true,
                                  .check_problem = check_problem,
                                  .fill = fill,
                                  .describe = describe,
                                  .check_args = check_args,
                                  .work_bytes = work_bytes,
                                  .state_rows = recurrent_state_rows };
