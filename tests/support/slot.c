/* SPDX-License-Identifier: MIT */
#include "tests/support/slot.h"

#include "tests/support/element.h"

static int recurrent_slot_used(const spec *s, slot which)
{
    const int backward = s->pass == LOAM_BACKWARD, forward = !backward;
    const spec_recurrence form = spec_recurrence_of(s);
    switch (which) {
    case SLOT_Q:
    case SLOT_K:
    case SLOT_V: return 1;
    case SLOT_LOG_DECAY: return form.gate != SPEC_NO_GATE;
    case SLOT_BETA: return form.beta;
    case SLOT_RIDGE:
        return s->mechanism == LOAM_MESA && (s->ridge_axes != LOAM_RIDGE_NUMBER || s->ridge_array);
    case SLOT_STATE_IN: return s->state != 0;
    case SLOT_GRAD_STATE_OUT: return backward && s->state;
    case SLOT_O:
    case SLOT_INFO:
    case SLOT_STATE_OUT: return forward;
    case SLOT_GRAD_O:
    case SLOT_GRAD_Q:
    case SLOT_GRAD_K:
    case SLOT_GRAD_V:
    case SLOT_GRAD_STATE_IN: return backward;
    case SLOT_GRAD_SCALE: return backward && !spec_positive(s);
    case SLOT_Z: return spec_positive(s);
    case SLOT_LOG_ALPHA: return spec_positive(s) && s->with_alpha;
    case SLOT_SHIFT: return spec_positive(s) && s->with_shift;
    case SLOT_BALANCE:
    case SLOT_BALANCE_KEYS: return spec_positive(s) && s->with_balance;
    case SLOT_GRAD_Z:
    case SLOT_GRAD_LOG_ALPHA: return backward && spec_positive(s);
    case SLOT_GRAD_LOG_DECAY: return backward && form.gate != SPEC_NO_GATE;
    case SLOT_GRAD_BETA: return backward && form.beta;
    case SLOT_GRAD_RIDGE: return backward && s->mechanism == LOAM_MESA;
    default: return 0;
    }
}

int slot_used(const spec *s, slot which)
{
    if (spec_recurrent(s)) return recurrent_slot_used(s, which);
    const int backward = s->pass == LOAM_BACKWARD, forward = !backward;
    switch (which) {
    case SLOT_Q:
    case SLOT_K:
    case SLOT_V: return 1;
    case SLOT_PROBE: return s->mechanism == LOAM_PARALLAX;
    case SLOT_RIDGE:
        return s->mechanism == LOAM_LLA && (s->ridge_axes != LOAM_RIDGE_NUMBER || s->ridge_array);
    case SLOT_SLOPE: return s->slope != 0;
    case SLOT_KEY_BIAS: return s->key_bias != 0;
    case SLOT_SINK: return s->sink != 0;
    case SLOT_LOG_DECAY: return s->decay != 0;
    case SLOT_BETA:
    case SLOT_W: return s->path != 0;
    case SLOT_GRAD_O: return backward;
    case SLOT_O:
    case SLOT_LSE:
    case SLOT_RHO:
    case SLOT_INFO: return forward;
    case SLOT_WEIGHTS: return s->pass == LOAM_FORWARD;
    case SLOT_GRAD_Q:
    case SLOT_GRAD_K:
    case SLOT_GRAD_V:
    case SLOT_GRAD_SCALE: return backward;
    case SLOT_GRAD_PROBE: return backward && s->mechanism == LOAM_PARALLAX;
    case SLOT_GRAD_RIDGE: return backward && s->mechanism == LOAM_LLA;
    case SLOT_GRAD_SLOPE: return backward && s->slope;
    case SLOT_GRAD_KEY_BIAS: return backward && s->key_bias;
    case SLOT_GRAD_SINK: return backward && s->sink;
    case SLOT_GRAD_LOG_DECAY: return backward && s->decay;
    case SLOT_GRAD_BETA:
    case SLOT_GRAD_W: return backward && s->path;
    default: break;
    }
    return 0;
}

static shape ridge_shape(const spec *s, shape tokens)
{
    switch ((loam_ridge_axes)s->ridge_axes) {
    case LOAM_RIDGE_NUMBER: return (shape){ 1, 1, 1, 1 };
    case LOAM_RIDGE_HEAD: return (shape){ 1, s->heads_q, 1, 1 };
    case LOAM_RIDGE_TOKEN: return tokens;
    case LOAM_RIDGE_CHANNEL:
    case LOAM_RIDGE_HEAD_CHANNEL: break;
    }
    tokens.channels = s->dim_qk;
    return tokens;
}

static shape recurrent_slot_shape(const values *v, slot which)
{
    const spec *s = &v->spec;
    const int64_t heads = spec_heads_v(s);
    shape tokens = { s->packed ? 1 : s->batch, heads, s->packed ? v->cu_q[s->batch] : s->len_q, 1 };
    switch (which) {
    case SLOT_Q:
    case SLOT_GRAD_Q: tokens.heads = s->heads_q, tokens.channels = s->dim_qk; return tokens;
    case SLOT_K:
    case SLOT_GRAD_K: tokens.heads = s->heads_kv, tokens.channels = s->dim_qk; return tokens;
    case SLOT_V:
    case SLOT_GRAD_V:
        tokens.heads = spec_positive(s) ? s->heads_kv : heads;
        tokens.channels = s->dim_v;
        return tokens;
    case SLOT_O:
    case SLOT_GRAD_O: tokens.channels = s->dim_v; return tokens;
    case SLOT_Z:
    case SLOT_GRAD_Z: return (shape){ 1, spec_state_heads(s), spec_state_width(s), s->dim_qk };
    case SLOT_LOG_ALPHA:
    case SLOT_GRAD_LOG_ALPHA: return (shape){ 1, spec_state_heads(s), 1, spec_state_width(s) };
    case SLOT_SHIFT: return (shape){ 1, spec_state_heads(s), 1, s->dim_qk };
    case SLOT_BALANCE:
    case SLOT_BALANCE_KEYS: return (shape){ 1, spec_state_heads(s), s->dim_qk, s->dim_qk };
    case SLOT_INFO:
    case SLOT_BETA:
    case SLOT_GRAD_BETA: return tokens;
    case SLOT_LOG_DECAY:
    case SLOT_GRAD_LOG_DECAY:
        tokens.channels = spec_recurrence_of(s).gate == SPEC_GATE_CHANNEL ? s->dim_qk : 1;
        return spec_recurrence_of(s).gate == SPEC_GATE_HEAD ? (shape){ 1, heads, 1, 1 } : tokens;
    case SLOT_RIDGE:
    case SLOT_GRAD_RIDGE:
        return s->ridge_axes == LOAM_RIDGE_NUMBER
                   ? (shape){ 1, 1, 1, 1 }
                   : (shape){ 1, heads, 1, s->ridge_axes == LOAM_RIDGE_HEAD ? 1 : s->dim_qk };
    case SLOT_STATE_IN:
    case SLOT_STATE_OUT:
    case SLOT_GRAD_STATE_IN:
    case SLOT_GRAD_STATE_OUT:
        return (shape){ s->batch, spec_state_heads(s), spec_state_rows(s), spec_state_width(s) };
    default: return (shape){ 1, 1, 1, 1 };
    }
}

shape slot_shape(const values *v, slot which)
{
    const spec *s = &v->spec;
    if (spec_recurrent(s)) return recurrent_slot_shape(v, which);
    const int64_t batch = s->packed ? 1 : s->batch;
    shape q = { batch, s->heads_q, s->packed ? v->cu_q[s->batch] : s->len_q, 1 };
    shape k = { batch, s->heads_kv, s->packed ? v->cu_kv[s->batch] : s->len_kv, 1 };
    switch (which) {
    case SLOT_Q:
    case SLOT_PROBE:
    case SLOT_RHO:
    case SLOT_GRAD_Q:
    case SLOT_GRAD_PROBE: q.channels = s->dim_qk; return q;
    case SLOT_O:
    case SLOT_GRAD_O: q.channels = s->dim_v; return q;
    case SLOT_WEIGHTS: q.channels = s->len_kv; return q;
    case SLOT_LSE:
    case SLOT_INFO: return q;
    case SLOT_K:
    case SLOT_W:
    case SLOT_GRAD_W:
    case SLOT_GRAD_K: k.channels = s->dim_qk; return k;
    case SLOT_BETA:
    case SLOT_GRAD_BETA: return k;
    case SLOT_V:
    case SLOT_GRAD_V: k.channels = s->dim_v; return k;
    case SLOT_KEY_BIAS:
    case SLOT_GRAD_KEY_BIAS:
    case SLOT_LOG_DECAY:
    case SLOT_GRAD_LOG_DECAY: k.heads = s->heads_q; return k;
    case SLOT_RIDGE:
    case SLOT_GRAD_RIDGE: return ridge_shape(s, q);
    case SLOT_SLOPE:
    case SLOT_SINK:
    case SLOT_GRAD_SLOPE:
    case SLOT_GRAD_SINK: return (shape){ 1, 1, 1, s->heads_q };
    default: break;
    }
    return (shape){ 1, 1, 1, 1 };
}

loam_dtype slot_dtype(const spec *s, slot which)
{
    switch (which) {
    case SLOT_Q:
    case SLOT_K:
    case SLOT_V:
    case SLOT_PROBE:
    case SLOT_O:
    case SLOT_GRAD_O:
    case SLOT_GRAD_Q:
    case SLOT_GRAD_K:
    case SLOT_GRAD_V:
    case SLOT_GRAD_PROBE:
    case SLOT_W:
    case SLOT_GRAD_W: return (loam_dtype)s->dtype;
    default: return element_real((loam_dtype)s->dtype);
    }
}

double *slot_at(const values *v, slot which, int64_t batch, int64_t head, int64_t token)
{
    const shape a = slot_shape(v, which);
    return v->x[which] + ((batch * a.heads + head) * a.tokens + token) * a.channels;
}
