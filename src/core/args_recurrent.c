/* SPDX-License-Identifier: MIT
 * The checks of a call's arguments for the recurrent family. Values are looked at too, where they are in host memory: a log
 * decay above 0 or a delta rule with beta beyond 2 would grow without bound. They cost less than a pass over the values. */
#include "src/core/plan.h"

#include <math.h>

typedef struct extent {
    int64_t batch, heads, tokens;
} extent;

static extent tokens_of(const loam_problem *p, int64_t heads)
{
    return sequence_packed(p) ? (extent){ 1, heads, p->total_q } : (extent){ p->batch, heads, p->len_q };
}

static int64_t count(extent e) { return e.batch * e.heads * e.tokens; }

static loam_status check_range(const loam_problem *p, const loam_const_view *view, const char *name, extent e,
                               int64_t channels, double least, double most, const char *expected,
                               loam_error *error)
{
    const args_extent all = { e.batch, e.heads, e.tokens, channels, NULL };
    return args_check_range(p, view, name, &all, least, most, expected, error);
}

static extent decay_extent(const loam_problem *p)
{
    return recurrent_form_of(p->mechanism)->gate == GATE_HEAD ? (extent){ 1, p->heads_v, 1 }
                                                              : tokens_of(p, p->heads_v);
}

static int64_t decay_channels(const loam_problem *p)
{
    return recurrent_form_of(p->mechanism)->gate == GATE_CHANNEL ? p->dim_qk : 1;
}

static loam_status check_parameters(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const extent values = tokens_of(p, p->heads_v);
    if (count(values) == 0) {
        return LOAM_OK;
    }
    if (form->gate != GATE_NONE) {
        TRY(args_need(a->log_decay.data, "log_decay", "this mechanism reads it", error));
        TRY(check_range(p, &a->log_decay, "log_decay", decay_extent(p), decay_channels(p), -HUGE_VAL, 0,
                        "a logarithm from -inf to 0", error));
    }
    if (form->beta) {
        TRY(args_need(a->beta.data, "beta", "this mechanism reads it", error));
        TRY(check_range(p, &a->beta, "beta", values, 1, 0, form->delta ? 2 : 1.7e308,
                        form->delta ? "0 to 2" : "a finite number >= 0", error));
    }
    return LOAM_OK;
}

static loam_status check_ridge(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (p->ridge_axes != LOAM_RIDGE_NUMBER) {
        TRY(args_need(a->ridge.data, "ridge", "ridge_axes says that it is an array", error));
    }
    const bool heads = p->ridge_axes != LOAM_RIDGE_NUMBER;
    const int64_t channels = p->ridge_axes == LOAM_RIDGE_HEAD_CHANNEL ? p->dim_qk : 1;
    for (int64_t h = 0; p->backend != LOAM_BACKEND_CUDA && h < (heads ? p->heads_v : 1); h++) {
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
    if (sequence_packed(p)) {
        TRY(args_check_ascending(p, a->cu_q, "cu_q", p->len_q, p->total_q, error));
    }
    if (count(tokens_of(p, 1)) > 0) {
        TRY(args_need(a->q.data, "q", "every pass reads it", error));
        TRY(args_need(a->k.data, "k", "every pass reads it", error));
        TRY(args_need(a->v.data, "v", "every pass reads it", error));
    }
    TRY(check_parameters(p, a, error));
    return recurrent_form_of(p->mechanism)->solved ? check_ridge(p, a, error) : LOAM_OK;
}

static loam_status check_state(const loam_problem *p, const loam_view *view, const char *name,
                               loam_error *error)
{
    return args_check_output(view, name, p->batch, p->heads_v, recurrent_state_rows(p), p->dim_qk, error);
}

static loam_status check_forward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const extent e = tokens_of(p, p->heads_v);
    const loam_const_view *in = &a->state_in;
    const loam_view *out = &a->state_out;
    if (count(e) > 0) {
        TRY(args_need(a->o.data, "o", "forward and decode write it", error));
    }
    if (p->pass == LOAM_DECODE && p->batch > 0) {
        TRY(args_need(out->data, "state_out", "decode goes on from it", error));
    }
    REQUIRE(in->data != out->data || !out->data ||
                (in->batch == out->batch && in->head == out->head && in->token == out->token),
            error, LOAM_ESHAPE,
            "state_out: strides %lld, %lld, %lld in the memory of state_in, expected its %lld, %lld, %lld",
            (long long)out->batch, (long long)out->head, (long long)out->token, (long long)in->batch,
            (long long)in->head, (long long)in->token);
    TRY(args_check_output(&a->o, "o", e.batch, e.heads, e.tokens, p->dim_v, error));
    TRY(args_check_output(&a->info, "info", e.batch, e.heads, e.tokens, 1, error));
    return check_state(p, out, "state_out", error);
}

static loam_status check_parameter_gradients(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const extent e = tokens_of(p, p->heads_v), decay = decay_extent(p);
    TRY(args_check_output(&a->grad_log_decay, "grad_log_decay", decay.batch, decay.heads, decay.tokens,
                          decay_channels(p), error));
    TRY(args_check_output(&a->grad_beta, "grad_beta", e.batch, e.heads, e.tokens, 1, error));
    return p->ridge_axes == LOAM_RIDGE_NUMBER
               ? LOAM_OK
               : args_check_output(&a->grad_ridge, "grad_ridge", 1, p->heads_v, 1,
                                   p->ridge_axes == LOAM_RIDGE_HEAD ? 1 : p->dim_qk, error);
}

static loam_status check_backward(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const extent e = tokens_of(p, p->heads_v);
    if (count(e) > 0) {
        TRY(args_need(a->grad_o.data, "grad_o", "backward reads it", error));
    }
    TRY(args_check_output(&a->grad_q, "grad_q", e.batch, p->heads_q, e.tokens, p->dim_qk, error));
    TRY(args_check_output(&a->grad_k, "grad_k", e.batch, p->heads_q, e.tokens, p->dim_qk, error));
    TRY(args_check_output(&a->grad_v, "grad_v", e.batch, e.heads, e.tokens, p->dim_v, error));
    TRY(check_state(p, &a->grad_state_in, "grad_state_in", error));
    return check_parameter_gradients(p, a, error);
}

loam_status args_check_recurrent(const loam_problem *p, const loam_args *a, loam_error *error)
{
    TRY(check_inputs(p, a, error));
    return p->pass == LOAM_BACKWARD ? check_backward(p, a, error) : check_forward(p, a, error);
}
