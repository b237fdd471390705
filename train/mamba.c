/* SPDX-License-Identifier: MIT
 * The block of Mamba-2 (Dao and Gu 2024): z, v, k, q, t are columns of one product, of which v, k and q may
 * go through a short convolution,
 *
 *     Delta = softplus(t + c), log decay = -e^A Delta, o = SSD(silu q, silu k, silu v, Delta) + D silu v,
 *     y = RMSNorm(o silu(z)) over all columns. */
#include "train/mixing.h"

static const matrix none = { 0 };

typedef struct columns {
    matrix z, v, k, q, t;
} columns;

/* conv: v, k and q after the short convolution. */
static columns columns_of(const mixing *mix, matrix in, matrix conv)
{
    const int64_t inner = MAMBA_EXPAND * mix->shape.width, state = mixing_key_channels(mix);
    return (columns){
        .z = matrix_columns(in, 0, inner),
        .v = matrix_columns(conv, 0, inner),
        .k = matrix_columns(conv, inner, state),
        .q = matrix_columns(conv, inner + state, state),
        .t = matrix_columns(in, 2 * (inner + state), MAMBA_EXPAND * mix->shape.heads),
    };
}

static void silu(const mixing *mix, matrix y, matrix x)
{
    if (mix->options.no_silu)
        mix->on->op->copy(mix->on, y, x);
    else
        mix->on->op->silu(mix->on, y, x);
}

static void silu_back(const mixing *mix, matrix dx, matrix g, matrix x)
{
    if (mix->options.no_silu)
        mix->on->op->copy(mix->on, dx, g);
    else
        mix->on->op->silu_back(mix->on, dx, g, x);
}

loam_status mamba_forward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    const machine *on = mix->on;
    const ops *op = on->op;
    const matrix *value = layer->value;
    const columns in = columns_of(mix, value[ACTIVE_IN], value[ACTIVE_IN_CONV]);
    op->product(on, value[ACTIVE_IN], value[ACTIVE_X], weight_of(layer, ROLE_IN), 0);
    if (layer->array[ROLE_IN_TAPS])
        op->short_conv(on, value[ACTIVE_IN_CONV], mixing_filtered(mix, value[ACTIVE_IN]),
                       array_of(layer, ROLE_IN_TAPS), mix->shape.length, mix->shape.seen);
    silu(mix, value[ACTIVE_V], in.v);
    silu(mix, value[ACTIVE_K], in.k);
    silu(mix, value[ACTIVE_Q], in.q);
    op->decay_gate(on, value[ACTIVE_DECAY], value[ACTIVE_BETA], in.t, array_of(layer, ROLE_DECAY_RATE),
                   array_of(layer, ROLE_BETA_BIAS));
    mixing_hide(mix, value);
    const loam_status status = mixing_attend(mix, layer, LOAM_FORWARD, error);
    if (status) return status;
    op->add_skip(on, value[ACTIVE_O], value[ACTIVE_V], array_of(layer, ROLE_SKIP));
    op->output_gate(on, value[ACTIVE_NORMED], value[ACTIVE_O], in.z);
    op->rms_norm(on, value[ACTIVE_Y], value[ACTIVE_O_NORM], value[ACTIVE_NORMED],
                 array_of(layer, ROLE_HEAD_GAIN), NORM_EPS);
    return LOAM_OK;
}

loam_status mamba_backward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    const machine *on = mix->on;
    const ops *op = on->op;
    const matrix *value = layer->value, *g = mix->gradient;
    const columns in = columns_of(mix, value[ACTIVE_IN], value[ACTIVE_IN_CONV]);
    const columns din = columns_of(mix, g[ACTIVE_IN], g[ACTIVE_IN_CONV]);
    op->rms_norm_back(on, g[ACTIVE_NORMED], none, array_gradient(layer, ROLE_HEAD_GAIN), g[ACTIVE_Y],
                      value[ACTIVE_NORMED], value[ACTIVE_O_NORM], array_of(layer, ROLE_HEAD_GAIN), none);
    op->output_gate_back(on, g[ACTIVE_O], din.z, g[ACTIVE_NORMED], value[ACTIVE_O], in.z);
    const loam_status status = mixing_attend(mix, layer, LOAM_BACKWARD, error);
    if (status) return status;
    op->add_skip_back(on, g[ACTIVE_V], array_gradient(layer, ROLE_SKIP), g[ACTIVE_O], value[ACTIVE_V],
                      array_of(layer, ROLE_SKIP));
    mixing_hide(mix, g);
    silu_back(mix, din.v, g[ACTIVE_V], in.v);
    silu_back(mix, din.k, g[ACTIVE_K], in.k);
    silu_back(mix, din.q, g[ACTIVE_Q], in.q);
    if (layer->array[ROLE_IN_TAPS])
        op->short_conv_back(on, mixing_filtered(mix, g[ACTIVE_IN]), array_gradient(layer, ROLE_IN_TAPS),
                            g[ACTIVE_IN_CONV], mixing_filtered(mix, value[ACTIVE_IN]),
                            array_of(layer, ROLE_IN_TAPS), mix->shape.length, mix->shape.seen);
    op->decay_gate_back(on, din.t, array_gradient(layer, ROLE_DECAY_RATE),
                        array_gradient(layer, ROLE_BETA_BIAS), g[ACTIVE_DECAY], g[ACTIVE_BETA],
                        value[ACTIVE_DECAY], in.t, array_of(layer, ROLE_DECAY_RATE),
                        array_of(layer, ROLE_BETA_BIAS));
    op->product(on, array_gradient(layer, ROLE_IN), value[ACTIVE_X], g[ACTIVE_IN], PRODUCT_A_TRANSPOSED);
    op->product(on, g[ACTIVE_X], g[ACTIVE_IN], weight_of(layer, ROLE_IN), PRODUCT_B_TRANSPOSED);
    return LOAM_OK;
}
