/* SPDX-License-Identifier: MIT
 * A mixer's two passes. */
#include "train/mixer.h"

#include <math.h>

static const double channel_divisor = 16, ridge_floor = 0.25;
static const matrix none = { 0 };

static int64_t channels_of(const mixing *mix) { return mix->shape.width / mix->shape.heads; }

/* ---- the library's part */

/* A ridge of channels is a parameter, of which each model has its own: then a call for each model. */
static int64_t calls_of(const mixing *mix)
{
    return mix->row->ridge == MIXER_RIDGE_CHANNEL ? mix->shape.models : 1;
}

static loam_problem problem_of(const mixing *mix, loam_pass pass)
{
    const mixer *row = mix->row;
    const mixer_shape *shape = &mix->shape;
    loam_problem problem = loam_problem_default(row->mechanism, pass);
    problem.dtype = mix->on->dtype;
    problem.batch = shape->models * shape->batch / calls_of(mix);
    problem.heads_q = problem.heads_kv = shape->heads;
    problem.len_q = problem.len_kv = shape->length;
    problem.dim_qk = problem.dim_v = channels_of(mix);
    problem.scale = row->scale;
    problem.threads = mix->on->threads;
    if (row->unit) problem.feature_map = LOAM_FEATURES_UNIT;
    if (row->mechanism == LOAM_SOFTMAX) {
        problem.decay = row->decay != MIXER_NO_DECAY;
        problem.path = row->reflect;
    }
    if (row->ridge == MIXER_RIDGE_TOKEN) {
        problem.ridge_axes = LOAM_RIDGE_TOKEN;
        problem.ridge_unit = mix->options.ridge_unit;
    }
    if (row->ridge == MIXER_RIDGE_CHANNEL) problem.ridge_axes = LOAM_RIDGE_HEAD_CHANNEL;
    return problem;
}

loam_status mixing_open(mixing *mix, const machine *on, const mixer *row, const mixer_shape *shape,
                        const mixer_options *options, loam_error *error)
{
    *mix = (mixing){ .on = on, .row = row, .shape = *shape, .options = *options };
    const loam_problem forward = problem_of(mix, LOAM_FORWARD), backward = problem_of(mix, LOAM_BACKWARD);
    const loam_status status = loam_plan_create(&mix->plan[LOAM_FORWARD], &forward, error);
    return status ? status : loam_plan_create(&mix->plan[LOAM_BACKWARD], &backward, error);
}

void mixing_close(mixing *mix)
{
    loam_plan_destroy(mix->plan[LOAM_FORWARD]);
    loam_plan_destroy(mix->plan[LOAM_BACKWARD]);
}

/* An array as [batch, heads, token, channels], from the model of a call on. Rows of one token are [heads]
 * [channels]; an array of one row is [heads][channels] for all. */
static loam_view heads_of(const mixing *mix, matrix a, int64_t call)
{
    const int64_t head = a.width / mix->shape.heads, tokens = a.rows == 1 ? 0 : a.row;
    if (!a.data) return (loam_view){ 0 };
    void *from = (char *)a.data + call * a.model * matrix_bytes_each(a);
    return (loam_view){ from, mix->shape.length * tokens, head, tokens };
}

static loam_const_view input_of(const mixing *mix, const mixer_layer *layer, activation which, int64_t call)
{
    const loam_view view = heads_of(mix, layer->value[which], call);
    return (loam_const_view){ view.data, view.batch, view.head, view.token };
}

static loam_args args_of(const mixing *mix, const mixer_layer *layer, int64_t call)
{
    const loam_view grad_o = heads_of(mix, mix->gradient[ACTIVE_O], call);
    return (loam_args){
        .q = input_of(mix, layer, ACTIVE_Q, call),
        .k = input_of(mix, layer, ACTIVE_K, call),
        .v = input_of(mix, layer, ACTIVE_V, call),
        .probe = input_of(mix, layer, ACTIVE_PROBE, call),
        .ridge = input_of(mix, layer, ACTIVE_RIDGE, call),
        .log_decay = input_of(mix, layer, ACTIVE_DECAY, call),
        .beta = input_of(mix, layer, ACTIVE_BETA, call),
        .w = input_of(mix, layer, ACTIVE_REFLECT, call),
        .o = heads_of(mix, layer->value[ACTIVE_O], call),
        .saved = layer->saved,
        .grad_o = { grad_o.data, grad_o.batch, grad_o.head, grad_o.token },
        .grad_q = heads_of(mix, mix->gradient[ACTIVE_Q], call),
        .grad_k = heads_of(mix, mix->gradient[ACTIVE_K], call),
        .grad_v = heads_of(mix, mix->gradient[ACTIVE_V], call),
        .grad_probe = heads_of(mix, mix->gradient[ACTIVE_PROBE], call),
        .grad_ridge = heads_of(mix, mix->gradient[ACTIVE_RIDGE], call),
        .grad_log_decay = heads_of(mix, mix->gradient[ACTIVE_DECAY], call),
        .grad_beta = heads_of(mix, mix->gradient[ACTIVE_BETA], call),
        .grad_w = heads_of(mix, mix->gradient[ACTIVE_REFLECT], call),
        .work = mix->work,
    };
}

static loam_status attend(const mixing *mix, const mixer_layer *layer, loam_pass pass, loam_error *error)
{
    loam_status status = LOAM_OK;
    for (int64_t call = 0; call < calls_of(mix) && !status; call++) {
        loam_args args = args_of(mix, layer, call);
        loam_args_keep(&args, pass);
        status = loam_run(mix->plan[pass], &args, error);
    }
    return status;
}

/* ---- memory */

static bool has_array(const mixing *mix, role which)
{
    int64_t rows, width;
    mixer_array(mix->row, &mix->shape, which, &rows, &width);
    return rows > 0;
}

/* Rows and columns of an activation; 0 rows where the mixer has none. */
static void size_of(const mixing *mix, activation which, int64_t *rows, int64_t *width)
{
    const mixer *row = mix->row;
    const int64_t d = mix->shape.width, heads = mix->shape.heads;
    const int64_t tokens = mix->shape.batch * mix->shape.length;
    const bool channels = has_array(mix, ROLE_DECAY_2), learned = has_array(mix, ROLE_DECAY_1);
    const bool beta = has_array(mix, ROLE_BETA), token_ridge = has_array(mix, ROLE_RIDGE);
    const int64_t gates = channels ? d : heads;
    const int64_t sizes[ACTIVATIONS][2] = {
        [ACTIVE_X] = { tokens, d },
        [ACTIVE_X_NORM] = { tokens, 1 },
        [ACTIVE_Q] = { tokens, d },
        [ACTIVE_K] = { tokens, d },
        [ACTIVE_V] = { tokens, d },
        [ACTIVE_Q_RAW] = { row->silu ? tokens : 0, d },
        [ACTIVE_K_RAW] = { row->silu ? tokens : 0, d },
        [ACTIVE_V_RAW] = { row->silu ? tokens : 0, d },
        [ACTIVE_PROBE] = { row->probe ? tokens : 0, d },
        [ACTIVE_RIDGE_RAW] = { token_ridge ? tokens : 0, heads },
        [ACTIVE_RIDGE] = { token_ridge ? tokens : row->ridge != MIXER_NO_RIDGE, token_ridge ? heads : d },
        [ACTIVE_REFLECT_LOW] = { row->reflect ? tokens : 0, row->rank },
        [ACTIVE_REFLECT_RAW] = { row->reflect ? tokens : 0, d },
        [ACTIVE_REFLECT] = { row->reflect ? tokens : 0, d },
        [ACTIVE_BETA_RAW] = { beta ? tokens : 0, heads },
        [ACTIVE_BETA] = { beta ? tokens : 0, heads },
        [ACTIVE_DECAY_LOW] = { channels ? tokens : 0, row->rank },
        [ACTIVE_DECAY_RAW] = { learned ? tokens : 0, gates },
        [ACTIVE_DECAY] = { learned ? tokens : row->decay == MIXER_DECAY_FIXED, gates },
        [ACTIVE_O] = { tokens, d },
        [ACTIVE_O_NORM] = { row->head_norm ? tokens * heads : 0, 1 },
        [ACTIVE_NORMED] = { row->head_norm ? tokens : 0, d },
        [ACTIVE_GATE_RAW] = { row->gate ? tokens : 0, d },
        [ACTIVE_Y] = { row->gate ? tokens : 0, d },
    };
    *rows = sizes[which][0];
    *width = sizes[which][1];
}

static void take_all(const mixing *mix, matrix *to, memory *from)
{
    for (int i = 0; i < ACTIVATIONS; i++) {
        int64_t rows, width;
        size_of(mix, (activation)i, &rows, &width);
        to[i] = rows > 0 ? memory_matrix(from, mix->on, mix->shape.models, rows, width) : none;
    }
    if (!mix->row->silu)
        for (int i = 0; i < 3; i++)
            to[ACTIVE_Q_RAW + i] = to[ACTIVE_Q + i];
    if (!mix->row->head_norm) to[ACTIVE_NORMED] = to[ACTIVE_O];
    if (!mix->row->gate) to[ACTIVE_Y] = to[ACTIVE_NORMED];
}

void mixing_take(mixing *mix, memory *from)
{
    const size_t forward = loam_plan_work_bytes(mix->plan[LOAM_FORWARD]);
    const size_t backward = loam_plan_work_bytes(mix->plan[LOAM_BACKWARD]);
    take_all(mix, mix->gradient, from);
    /* The decay of RetNet is not learned. */
    if (mix->row->decay == MIXER_DECAY_FIXED) mix->gradient[ACTIVE_DECAY] = none;
    mix->work = memory_take(from, (int64_t)(forward > backward ? forward : backward), 1);
}

static void set_fixed_decay(const mixing *mix, matrix decay)
{
    for (int64_t i = 0; i < decay.models * decay.width; i++) {
        const double x = log1p(-exp2(-5 - (double)(i % mix->shape.heads)));
        matrix_set(decay, i, &x, 1);
    }
}

void mixer_layer_take(const mixing *mix, mixer_layer *layer, memory *from)
{
    const size_t saved = loam_plan_saved_bytes(mix->plan[LOAM_FORWARD]);
    take_all(mix, layer->value, from);
    layer->saved = saved > 0 ? memory_take(from, (int64_t)saved, 1) : NULL;
    if (from->base && mix->row->decay == MIXER_DECAY_FIXED) set_fixed_decay(mix, layer->value[ACTIVE_DECAY]);
}

/* ---- the passes */

static matrix array_of(const mixer_layer *layer, role which)
{
    return layer->array[which] ? layer->array[which]->x : none;
}

static matrix array_gradient(const mixer_layer *layer, role which)
{
    return layer->array[which] ? layer->array[which]->g : none;
}

/* to = from W. */
static void project(const mixing *mix, const mixer_layer *layer, activation to, activation from, role w)
{
    mix->on->op->product(mix->on, layer->value[to], layer->value[from], array_of(layer, w), 0);
}

/* dW = from^T g, and dfrom = g W^T, or that much more: PRODUCT_ADD. */
static void project_back(const mixing *mix, const mixer_layer *layer, activation to, activation from, role w,
                         unsigned how)
{
    const machine *on = mix->on;
    on->op->product(on, array_gradient(layer, w), layer->value[from], mix->gradient[to],
                    PRODUCT_A_TRANSPOSED);
    on->op->product(on, mix->gradient[from], mix->gradient[to], array_of(layer, w),
                    PRODUCT_B_TRANSPOSED | how);
}

static void forward_ridge(const mixing *mix, const mixer_layer *layer)
{
    const ops *op = mix->on->op;
    const matrix *value = layer->value;
    if (mix->row->ridge == MIXER_RIDGE_CHANNEL)
        op->softplus(mix->on, value[ACTIVE_RIDGE], array_of(layer, ROLE_RIDGE_CHANNEL), ridge_floor);
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
        on->op->decay_gate(on, y, a, rate, bias);
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
        on->op->decay_gate_back(on, da, array_gradient(layer, ROLE_DECAY_RATE), dbias, g,
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

static matrix by_heads(const mixing *mix, matrix a) { return matrix_parts(a, channels_of(mix)); }

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
                     by_heads(mix, value[ACTIVE_O]), array_of(layer, ROLE_HEAD_GAIN));
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
        op->rms_norm_back(mix->on, by_heads(mix, g[ACTIVE_O]), array_gradient(layer, ROLE_HEAD_GAIN),
                          by_heads(mix, g[ACTIVE_NORMED]), by_heads(mix, value[ACTIVE_O]),
                          value[ACTIVE_O_NORM], array_of(layer, ROLE_HEAD_GAIN), false);
}

loam_status mixer_forward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    for (int i = 0; i < 3; i++) {
        project(mix, layer, (activation)(ACTIVE_Q_RAW + i), ACTIVE_X, (role)(ROLE_Q + i));
        if (mix->row->silu)
            mix->on->op->silu(mix->on, layer->value[ACTIVE_Q + i], layer->value[ACTIVE_Q_RAW + i]);
    }
    if (mix->row->probe) project(mix, layer, ACTIVE_PROBE, ACTIVE_X, ROLE_PROBE);
    forward_ridge(mix, layer);
    forward_reflections(mix, layer);
    forward_beta(mix, layer);
    forward_decay(mix, layer);
    const loam_status status = attend(mix, layer, LOAM_FORWARD, error);
    if (!status) forward_output(mix, layer);
    return status;
}

loam_status mixer_backward(const mixing *mix, const mixer_layer *layer, loam_error *error)
{
    backward_output(mix, layer);
    const loam_status status = attend(mix, layer, LOAM_BACKWARD, error);
    if (status) return status;
    for (int i = 0; i < 3; i++) {
        if (mix->row->silu)
            mix->on->op->silu_back(mix->on, mix->gradient[ACTIVE_Q_RAW + i], mix->gradient[ACTIVE_Q + i],
                                   layer->value[ACTIVE_Q_RAW + i]);
        project_back(mix, layer, (activation)(ACTIVE_Q_RAW + i), ACTIVE_X, (role)(ROLE_Q + i),
                     i > 0 ? PRODUCT_ADD : 0);
    }
    if (mix->row->probe) project_back(mix, layer, ACTIVE_PROBE, ACTIVE_X, ROLE_PROBE, PRODUCT_ADD);
    backward_ridge(mix, layer);
    backward_reflections(mix, layer);
    backward_beta(mix, layer);
    backward_decay(mix, layer);
    if (mix->row->gate) project_back(mix, layer, ACTIVE_GATE_RAW, ACTIVE_X, ROLE_GATE, PRODUCT_ADD);
    return LOAM_OK;
}
