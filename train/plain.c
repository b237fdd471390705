/* SPDX-License-Identifier: MIT
 * Queries, keys, values, gates, attention, head norm, output gate: the passes of every row that is not a
 * block of its own. */
#include "train/mixing.h"

static const double channel_divisor = 16, ridge_floor = 0.25;
static const matrix none = { 0 };

/* to = from W; sides are made together. */
static void project(const mixing *mix, const mixer_layer *layer, activation to, activation from, role w)
{
    if (is_side(layer, w)) return;
    mix->on->op->product(mix->on, layer->value[to], layer->value[from], weight_of(layer, w), 0);
}

/* dW = from^T g, and dfrom = g W^T, or that much more: PRODUCT_ADD. */
static void project_back(const mixing *mix, const mixer_layer *layer, activation to, activation from, role w,
                         unsigned how)
{
    const machine *on = mix->on;
    if (is_side(layer, w)) return;
    mixing_weight_gradient(on, layer->array[w], layer->value[from], mix->gradient[to]);
    on->op->product(on, mix->gradient[from], mix->gradient[to], weight_of(layer, w),
                    PRODUCT_B_TRANSPOSED | how);
}

static void project_sides(const mixing *mix, const mixer_layer *layer)
{
    if (!layer->sides.all.data) return;
    mix->on->op->product(mix->on, layer->sides.all, layer->value[ACTIVE_X], layer->sides.w, 0);
}

/* Of those arrays that have a gradient. */
static void sides_gradients(const mixing *mix, const mixer_layer *layer)
{
    const machine *on = mix->on;
    const matrix dw = mix->sides.w;
    matrix g[SIDES], from[SIDES];
    int count = 0;
    int64_t first = 0;
    for (int i = 0; i < SIDES; i++) {
        const parameter *p = layer->array[side_role(i)];
        if (!p) continue;
        if (p->g.data) g[count] = p->g, from[count++] = matrix_columns(dw, first, p->x.width);
        first += p->x.width;
    }
    if (count == 0) return;
    on->op->product(on, dw, layer->value[ACTIVE_X], mix->sides.all, PRODUCT_A_TRANSPOSED);
    on->op->copies(on, g, from, count);
}

/* The gradient of x begins with that of the sides. */
static void project_sides_back(const mixing *mix, const mixer_layer *layer)
{
    const machine *on = mix->on;
    const matrix dall = mix->sides.all;
    if (!layer->sides.all.data) return;
    sides_gradients(mix, layer);
    on->op->product(on, mix->gradient[ACTIVE_X], dall, layer->sides.w, PRODUCT_B_TRANSPOSED);
}

static void forward_ridge(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value;
    if (mix->row->ridge == MIXER_RIDGE_CHANNEL)
        op->softplus(mix->on, value[ACTIVE_RIDGE], array_of(layer, ROLE_RIDGE_CHANNEL), ridge_floor);
    if (mix->row->ridge == MIXER_RIDGE_HEAD)
        op->inverse_softplus(mix->on, value[ACTIVE_RIDGE], array_of(layer, ROLE_RIDGE_HEAD));
    if (mix->row->ridge != MIXER_RIDGE_TOKEN) return;
    project(mix, layer, ACTIVE_RIDGE_RAW, ACTIVE_X, ROLE_RIDGE);
    op->sigmoid_gate(mix->on, value[ACTIVE_RIDGE], value[ACTIVE_RIDGE_RAW], none, mix->options.ridge_least,
                     mix->options.ridge_most);
}

static void backward_ridge(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *g = mix->gradient;
    if (mix->row->ridge == MIXER_RIDGE_CHANNEL)
        op->softplus_back(mix->on, array_gradient(layer, ROLE_RIDGE_CHANNEL), g[ACTIVE_RIDGE],
                          array_of(layer, ROLE_RIDGE_CHANNEL));
    if (mix->row->ridge == MIXER_RIDGE_HEAD)
        op->inverse_softplus_back(mix->on, array_gradient(layer, ROLE_RIDGE_HEAD), g[ACTIVE_RIDGE],
                                  array_of(layer, ROLE_RIDGE_HEAD));
    if (mix->row->ridge != MIXER_RIDGE_TOKEN) return;
    op->sigmoid_gate_back(mix->on, g[ACTIVE_RIDGE_RAW], none, g[ACTIVE_RIDGE], layer->value[ACTIVE_RIDGE_RAW],
                          none, mix->options.ridge_least, mix->options.ridge_most);
    project_back(mix, layer, ACTIVE_RIDGE_RAW, ACTIVE_X, ROLE_RIDGE, PRODUCT_ADD);
}

static void forward_beta(const mixing *mix, const mixer_layer *layer)
{
    if (!(mix->row->beta_most > 0)) return;
    project(mix, layer, ACTIVE_BETA_RAW, ACTIVE_X, ROLE_BETA);
    mix->on->op->sigmoid_gate(mix->on, layer->value[ACTIVE_BETA], layer->value[ACTIVE_BETA_RAW],
                              array_of(layer, ROLE_BETA_BIAS), 0, mix->row->beta_most);
}

static void backward_beta(const mixing *mix, const mixer_layer *layer)
{
    if (!(mix->row->beta_most > 0)) return;
    mix->on->op->sigmoid_gate_back(mix->on, mix->gradient[ACTIVE_BETA_RAW],
                                   array_gradient(layer, ROLE_BETA_BIAS), mix->gradient[ACTIVE_BETA],
                                   layer->value[ACTIVE_BETA_RAW], array_of(layer, ROLE_BETA_BIAS), 0,
                                   mix->row->beta_most);
    project_back(mix, layer, ACTIVE_BETA_RAW, ACTIVE_X, ROLE_BETA, PRODUCT_ADD);
}

static matrix by_heads(const mixing *mix, matrix a) { return matrix_parts(a, a.width / mix->shape.heads); }

/* Queries, keys, values or probes by their heads. */
static matrix stream_heads(const mixing *mix, matrix a, int stream)
{
    return matrix_parts(a, a.width / mixer_stream_heads(&mix->shape, stream));
}

/* Probes times a number for each head. */
static void forward_probe_gate(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value;
    if (!layer->array[ROLE_PROBE_GATE]) return;
    project(mix, layer, ACTIVE_PROBE_GATE_RAW, ACTIVE_X, ROLE_PROBE_GATE);
    op->sigmoid_gate(mix->on, value[ACTIVE_PROBE_GATE], value[ACTIVE_PROBE_GATE_RAW], none, 0, 1);
    op->scale_rows(mix->on, by_heads(mix, value[ACTIVE_PROBE]), by_heads(mix, value[ACTIVE_PROBE_NORMED]),
                   by_heads(mix, value[ACTIVE_PROBE_GATE]));
}

/* x gets the gradient of the gate later. */
static void backward_probe_gate(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value, *g = mix->gradient;
    if (!layer->array[ROLE_PROBE_GATE]) return;
    op->scale_rows_back(mix->on, by_heads(mix, g[ACTIVE_PROBE_NORMED]), by_heads(mix, g[ACTIVE_PROBE_GATE]),
                        by_heads(mix, g[ACTIVE_PROBE]), by_heads(mix, value[ACTIVE_PROBE_NORMED]),
                        by_heads(mix, value[ACTIVE_PROBE_GATE]));
    op->sigmoid_gate_back(mix->on, g[ACTIVE_PROBE_GATE_RAW], none, g[ACTIVE_PROBE_GATE],
                          value[ACTIVE_PROBE_GATE_RAW], none, 0, 1);
}

/* The arrays of streams: their projections, taps and gains. */
static const role weights[STREAMS] = { ROLE_Q, ROLE_K, ROLE_V, ROLE_PROBE };
static const role taps[STREAMS] = { ROLE_Q_TAPS, ROLE_K_TAPS, ROLE_V_TAPS, ROLES };
static const role gains[STREAMS] = { ROLE_Q_GAIN, ROLE_K_GAIN, ROLES, ROLE_PROBE_GAIN };

static const role biases[STREAMS] = { ROLE_Q_BIAS, ROLE_K_BIAS, ROLE_V_BIAS, ROLES };

static bool has_stage(const mixing *mix, stage at, int stream)
{
    return mixer_has_stage(mix->row, &mix->options, at, stream);
}

/* Queries, keys, values or probes, from x to their norm. */
static void forward_stream(const mixing *mix, const mixer_layer *layer, int i)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value;
    if (!layer->array[weights[i]] && !mixing_low(layer, i)) return;
    if (layer->array[weights[i]]) project(mix, layer, mixer_stage(STAGE_IN, i), ACTIVE_X, weights[i]);
    mixing_add_low(mix, layer, i, value[ACTIVE_Q_IN + i], value[ACTIVE_X], !layer->array[weights[i]]);
    mixing_add_bias(mix, layer, biases[i], value[ACTIVE_Q_IN + i]);
    if (has_stage(mix, STAGE_CONV, i))
        op->short_conv(mix->on, value[ACTIVE_Q_CONV + i], value[ACTIVE_Q_IN + i], array_of(layer, taps[i]),
                       mix->shape.length, mix->shape.seen);
    if (has_stage(mix, STAGE_SILU, i)) op->silu(mix->on, value[ACTIVE_Q_SILU + i], value[ACTIVE_Q_CONV + i]);
    if (has_stage(mix, STAGE_NORM, i))
        op->rms_norm(mix->on, stream_heads(mix, value[ACTIVE_Q_NORMED + i], i), value[ACTIVE_Q_NORM + i],
                     stream_heads(mix, value[ACTIVE_Q_SILU + i], i), array_of(layer, gains[i]), NORM_EPS);
}

/* The gradient of x begins with that of the first stream. */
static void backward_stream(const mixing *mix, const mixer_layer *layer, int i)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value, *g = mix->gradient;
    if (!layer->array[weights[i]] && !mixing_low(layer, i)) return;
    if (has_stage(mix, STAGE_NORM, i))
        op->rms_norm_back(mix->on, stream_heads(mix, g[ACTIVE_Q_SILU + i], i), none,
                          array_gradient(layer, gains[i]), stream_heads(mix, g[ACTIVE_Q_NORMED + i], i),
                          stream_heads(mix, value[ACTIVE_Q_SILU + i], i), value[ACTIVE_Q_NORM + i],
                          array_of(layer, gains[i]), none);
    if (has_stage(mix, STAGE_SILU, i))
        op->silu_back(mix->on, g[ACTIVE_Q_CONV + i], g[ACTIVE_Q_SILU + i], value[ACTIVE_Q_CONV + i]);
    if (has_stage(mix, STAGE_CONV, i))
        op->short_conv_back(mix->on, g[ACTIVE_Q_IN + i], array_gradient(layer, taps[i]), g[ACTIVE_Q_CONV + i],
                            value[ACTIVE_Q_IN + i], array_of(layer, taps[i]), mix->shape.length,
                            mix->shape.seen);
    mixing_bias_back(mix, layer, biases[i], g[ACTIVE_Q_IN + i]);
    if (layer->array[weights[i]])
        project_back(mix, layer, mixer_stage(STAGE_IN, i), ACTIVE_X, weights[i], i > 0 ? PRODUCT_ADD : 0);
}

/* Queries times 1 + t. */
static void forward_temperature(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value;
    if (!layer->array[ROLE_TEMPERATURE]) return;
    op->copy(mix->on, value[ACTIVE_Q], value[ACTIVE_Q_NORMED]);
    op->add_skip(mix->on, value[ACTIVE_Q], value[ACTIVE_Q_NORMED], array_of(layer, ROLE_TEMPERATURE));
}

static void backward_temperature(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *g = mix->gradient;
    if (!layer->array[ROLE_TEMPERATURE]) return;
    op->copy(mix->on, g[ACTIVE_Q_NORMED], g[ACTIVE_Q]);
    op->add_skip_back(mix->on, g[ACTIVE_Q_NORMED], array_gradient(layer, ROLE_TEMPERATURE), g[ACTIVE_Q],
                      layer->value[ACTIVE_Q_NORMED], array_of(layer, ROLE_TEMPERATURE));
}

/* What log sigmoid is divided by, and what is added to its argument beside the bias. */
static double divisor_of(const mixer *row)
{
    return row->decay == MIXER_DECAY_SIGMOID_CHANNEL ? channel_divisor : 1;
}
static double shift_of(const mixer *row) { return row->decay == MIXER_DECAY_SIGMOID ? row->decay_shift : 0; }

static void forward_decay(const mixing *mix, const mixer_layer *layer)
{
    const machine *on = mix->on;
    const matrix y = layer->value[ACTIVE_DECAY], a = layer->value[ACTIVE_DECAY_RAW];
    const matrix bias = array_of(layer, ROLE_DECAY_BIAS), rate = array_of(layer, ROLE_DECAY_RATE);
    if (!a.data) return;
    if (layer->array[ROLE_DECAY_2]) {
        project(mix, layer, ACTIVE_DECAY_LOW, ACTIVE_X, ROLE_DECAY_1);
        project(mix, layer, ACTIVE_DECAY_RAW, ACTIVE_DECAY_LOW, ROLE_DECAY_2);
    } else {
        project(mix, layer, ACTIVE_DECAY_RAW, ACTIVE_X, ROLE_DECAY_1);
    }
    if (rate.data)
        on->op->decay_gate(on, y, none, a, rate, bias);
    else
        on->op->forget_gate(on, y, a, bias, shift_of(mix->row), divisor_of(mix->row));
}

static void backward_decay(const mixing *mix, const mixer_layer *layer)
{
    const machine *on = mix->on;
    const matrix g = mix->gradient[ACTIVE_DECAY], da = mix->gradient[ACTIVE_DECAY_RAW];
    const matrix a = layer->value[ACTIVE_DECAY_RAW];
    const matrix bias = array_of(layer, ROLE_DECAY_BIAS), dbias = array_gradient(layer, ROLE_DECAY_BIAS);
    if (!a.data) return;
    if (layer->array[ROLE_DECAY_RATE])
        on->op->decay_gate_back(on, da, array_gradient(layer, ROLE_DECAY_RATE), dbias, g, none,
                                layer->value[ACTIVE_DECAY], a, array_of(layer, ROLE_DECAY_RATE), bias);
    else
        on->op->forget_gate_back(on, da, dbias, g, a, bias, shift_of(mix->row), divisor_of(mix->row));
    if (layer->array[ROLE_DECAY_2]) {
        project_back(mix, layer, ACTIVE_DECAY_RAW, ACTIVE_DECAY_LOW, ROLE_DECAY_2, 0);
        project_back(mix, layer, ACTIVE_DECAY_LOW, ACTIVE_X, ROLE_DECAY_1, PRODUCT_ADD);
    } else {
        project_back(mix, layer, ACTIVE_DECAY_RAW, ACTIVE_X, ROLE_DECAY_1, PRODUCT_ADD);
    }
}

static void forward_reflections(const mixing *mix, const mixer_layer *layer)
{
    const matrix raw = layer->value[ACTIVE_REFLECT_RAW];
    if (!mix->row->reflect) return;
    project(mix, layer, ACTIVE_REFLECT_LOW, ACTIVE_X, ROLE_REFLECT_1);
    project(mix, layer, ACTIVE_REFLECT_RAW, ACTIVE_REFLECT_LOW, ROLE_REFLECT_2);
    mix->on->op->unit(mix->on, by_heads(mix, layer->value[ACTIVE_REFLECT]), by_heads(mix, raw));
}

static void backward_reflections(const mixing *mix, const mixer_layer *layer)
{
    const matrix *g = mix->gradient;
    if (!mix->row->reflect) return;
    mix->on->op->unit_back(mix->on, by_heads(mix, g[ACTIVE_REFLECT_RAW]), by_heads(mix, g[ACTIVE_REFLECT]),
                           by_heads(mix, layer->value[ACTIVE_REFLECT_RAW]));
    project_back(mix, layer, ACTIVE_REFLECT_RAW, ACTIVE_REFLECT_LOW, ROLE_REFLECT_2, 0);
    project_back(mix, layer, ACTIVE_REFLECT_LOW, ACTIVE_X, ROLE_REFLECT_1, PRODUCT_ADD);
}

static void forward_output(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value;
    if (mix->row->head_norm)
        op->rms_norm(mix->on, by_heads(mix, value[ACTIVE_NORMED]), value[ACTIVE_O_NORM],
                     by_heads(mix, value[ACTIVE_O]), array_of(layer, ROLE_HEAD_GAIN), NORM_EPS);
    if (!mix->row->gate) return;
    project(mix, layer, ACTIVE_GATE_RAW, ACTIVE_X, ROLE_GATE);
    op->output_gate(mix->on, value[ACTIVE_Y], value[ACTIVE_NORMED], value[ACTIVE_GATE_RAW]);
}

/* To the gradient of ACTIVE_O; x gets that of its gate later. */
static void backward_output(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value, *g = mix->gradient;
    if (mix->row->gate)
        op->output_gate_back(mix->on, g[ACTIVE_NORMED], g[ACTIVE_GATE_RAW], g[ACTIVE_Y], value[ACTIVE_NORMED],
                             value[ACTIVE_GATE_RAW]);
    if (mix->row->head_norm)
        op->rms_norm_back(mix->on, by_heads(mix, g[ACTIVE_O]), none, array_gradient(layer, ROLE_HEAD_GAIN),
                          by_heads(mix, g[ACTIVE_NORMED]), by_heads(mix, value[ACTIVE_O]),
                          value[ACTIVE_O_NORM], array_of(layer, ROLE_HEAD_GAIN), none);
}

loam_status plain_forward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    project_sides(mix, layer);
    for (int i = 0; i < STREAMS; i++)
        forward_stream(mix, layer, i);
    forward_probe_gate(mix, layer);
    forward_temperature(mix, layer);
    forward_ridge(mix, layer);
    forward_reflections(mix, layer);
    forward_beta(mix, layer);
    forward_decay(mix, layer);
    mixing_hide(mix, layer->value);
    loam_status status = LOAM_OK;
    if (mix->options.positions == POSITIONS_ROPE) status = mixing_turn(mix, layer->value, false, error);
    if (!status) status = mixing_attend(mix, layer, LOAM_FORWARD, error);
    if (!status) forward_output(mix, layer);
    return status;
}

loam_status plain_backward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    backward_output(mix, layer);
    loam_status status = mixing_attend(mix, layer, LOAM_BACKWARD, error);
    if (!status && mix->options.positions == POSITIONS_ROPE)
        status = mixing_turn(mix, mix->gradient, true, error);
    if (status) return status;
    mixing_hide(mix, mix->gradient);
    backward_probe_gate(mix, layer);
    backward_temperature(mix, layer);
    for (int i = 0; i < STREAMS; i++)
        backward_stream(mix, layer, i);
    project_sides_back(mix, layer);
    for (int i = 0; i < STREAMS; i++)
        mixing_low_back(mix, layer, i, mix->gradient[ACTIVE_Q_IN + i], layer->value[ACTIVE_X],
                        mix->gradient[ACTIVE_X]);
    if (layer->array[ROLE_PROBE_GATE])
        project_back(mix, layer, ACTIVE_PROBE_GATE_RAW, ACTIVE_X, ROLE_PROBE_GATE, PRODUCT_ADD);
    backward_ridge(mix, layer);
    backward_reflections(mix, layer);
    backward_beta(mix, layer);
    backward_decay(mix, layer);
    if (mix->row->gate) project_back(mix, layer, ACTIVE_GATE_RAW, ACTIVE_X, ROLE_GATE, PRODUCT_ADD);
    return LOAM_OK;
}
