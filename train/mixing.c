/* SPDX-License-Identifier: MIT
 * What a mixer has of the library, plans and their arguments; and its memory. */
#include "train/mixing.h"

#include <math.h>
#include <stdio.h>

static const matrix none = { 0 };

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
    problem.dtype = mix->on->operand;
    problem.backend = machine_backend(mix->on);
    problem.batch = shape->models * shape->batch / calls_of(mix);
    problem.heads_q = problem.heads_kv = mixing_query_heads(mix);
    if (row->block == MIXER_MAMBA) problem.heads_v = mixer_value_heads(row, shape);
    problem.len_q = problem.len_kv = shape->length;
    problem.dim_qk = mixing_key_channels(mix);
    problem.dim_v = mixing_value_channels(mix);
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

/* Why a mixer does not go with options, or NULL. */
static const char *refusal(const mixer *row, const mixer_options *options)
{
    if (row->block == MIXER_PLAIN) return NULL;
    if (options->positions == POSITIONS_ROPE) return "a block has no queries and keys to turn";
    return options->qk_norm ? "a block has no queries and keys by heads to norm" : NULL;
}

loam_status mixing_open(mixing *mix, const machine *on, const mixer *row, const mixer_shape *shape,
                        const mixer_options *options, loam_error *error)
{
    *mix = (mixing){ .on = on, .row = row, .shape = *shape, .options = *options };
    const char *refused = refusal(row, options);
    if (refused) {
        if (error) {
            *error = (loam_error){ .status = LOAM_EUNSUPPORTED };
            snprintf(error->text, sizeof error->text, "%s: %s", row->name, refused);
        }
        return LOAM_EUNSUPPORTED;
    }
    if (row->block == MIXER_HYENA) return LOAM_OK;
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
static loam_view heads_of(const mixing *mix, const matrix *list, activation which, int64_t call)
{
    const matrix a = list[which];
    const bool key = which == ACTIVE_Q || which == ACTIVE_K;
    const int64_t heads = key ? mixing_query_heads(mix) : mixer_value_heads(mix->row, &mix->shape);
    const int64_t tokens = a.rows == 1 ? 0 : a.row;
    if (!a.data) return (loam_view){ 0 };
    void *from = (char *)a.data + call * a.model * matrix_bytes_each(a);
    return (loam_view){ from, mix->shape.length * tokens, a.width / heads, tokens };
}

static loam_const_view input_of(const mixing *mix, const matrix *list, activation which, int64_t call)
{
    const loam_view view = heads_of(mix, list, which, call);
    return (loam_const_view){ view.data, view.batch, view.head, view.token };
}

static loam_args args_of(const mixing *mix, const mixer_layer *layer, int64_t call)
{
    const matrix *value = layer->value, *g = mix->gradient;
    return (loam_args){
        .q = input_of(mix, value, ACTIVE_Q, call),
        .k = input_of(mix, value, ACTIVE_K, call),
        .v = input_of(mix, value, ACTIVE_V, call),
        .probe = input_of(mix, value, ACTIVE_PROBE, call),
        .ridge = input_of(mix, value, ACTIVE_RIDGE, call),
        .log_decay = input_of(mix, value, ACTIVE_DECAY, call),
        .beta = input_of(mix, value, ACTIVE_BETA, call),
        .w = input_of(mix, value, ACTIVE_REFLECT, call),
        .o = heads_of(mix, value, ACTIVE_O, call),
        .saved = layer->saved,
        .grad_o = input_of(mix, g, ACTIVE_O, call),
        .grad_q = heads_of(mix, g, ACTIVE_Q, call),
        .grad_k = heads_of(mix, g, ACTIVE_K, call),
        .grad_v = heads_of(mix, g, ACTIVE_V, call),
        .grad_probe = heads_of(mix, g, ACTIVE_PROBE, call),
        .grad_ridge = heads_of(mix, g, ACTIVE_RIDGE, call),
        .grad_log_decay = heads_of(mix, g, ACTIVE_DECAY, call),
        .grad_beta = heads_of(mix, g, ACTIVE_BETA, call),
        .grad_w = heads_of(mix, g, ACTIVE_REFLECT, call),
        .work = mix->work,
        .stream = machine_stream(mix->on),
    };
}

loam_status mixing_attend(const mixing *mix, const mixer_layer *layer, loam_pass pass, loam_error *error)
{
    loam_status status = LOAM_OK;
    for (int64_t call = 0; call < calls_of(mix) && !status; call++) {
        loam_args args = args_of(mix, layer, call);
        loam_args_keep(&args, pass);
        status = loam_run(mix->plan[pass], &args, error);
    }
    return status;
}

loam_status mixing_turn(const mixing *mix, const matrix *list, bool back, loam_error *error)
{
    static const activation turned[] = { ACTIVE_Q, ACTIVE_K, ACTIVE_PROBE };
    loam_rope rope = loam_rope_default(mix->on->operand);
    rope.backend = machine_backend(mix->on);
    rope.stream = machine_stream(mix->on);
    rope.batch = mix->shape.models * mix->shape.batch;
    rope.heads = mix->shape.heads;
    rope.tokens = mix->shape.length;
    rope.channels = mixing_key_channels(mix);
    rope.inverse = back;
    rope.threads = mix->on->threads;
    loam_status status = LOAM_OK;
    for (int i = 0; i < 3 && !status; i++) {
        const loam_const_view from = input_of(mix, list, turned[i], 0);
        const loam_view to = heads_of(mix, list, turned[i], 0);
        if (from.data) status = loam_rope_apply(&rope, &from, &to, error);
    }
    return status;
}

/* ---- memory */

static bool has_stage(const mixing *mix, stage at, int stream)
{
    const bool there = stream != STREAM_PROBE || mix->row->probe;
    return mix->row->block == MIXER_PLAIN && there &&
           (at == STAGE_IN || mixer_has_stage(mix->row, &mix->options, at, stream));
}

static bool has_array(const mixing *mix, role which)
{
    int64_t rows, width;
    mixer_array(mix->row, &mix->options, &mix->shape, which, &rows, &width);
    return rows > 0;
}

/* Those of the stages of queries, keys, values and probes; false: `which` is another. */
static bool stage_size(const mixing *mix, activation which, int64_t *rows, int64_t *width)
{
    const int64_t tokens = mix->shape.batch * mix->shape.length, heads = mix->shape.heads;
    const int at = which - ACTIVE_Q_IN;
    if (mix->row->block != MIXER_PLAIN || at < 0 || which > ACTIVE_PROBE_NORM) return false;
    const int stream = at % STREAMS;
    const bool norm = at / STREAMS == STAGES;
    *rows = has_stage(mix, norm ? STAGE_NORM : (stage)(at / STREAMS), stream) ? tokens : 0;
    if (norm) *rows *= heads;
    *width = norm                 ? 1
             : stream == STREAM_V ? mixer_inner(mix->row, &mix->options, &mix->shape)
                                  : mixer_keys(mix->row, &mix->options, &mix->shape);
    return true;
}

/* Rows and columns of an activation; 0 rows where the mixer has none, or it is the memory of another. */
static void size_of(const mixing *mix, activation which, int64_t *rows, int64_t *width)
{
    const mixer *row = mix->row;
    const int64_t d = mix->shape.width, heads = mix->shape.heads;
    const int64_t tokens = mix->shape.batch * mix->shape.length;
    const bool channels = has_array(mix, ROLE_DECAY_2), learned = has_array(mix, ROLE_DECAY_1);
    const bool beta = has_array(mix, ROLE_BETA), token_ridge = has_array(mix, ROLE_RIDGE);
    const bool probe_gate = has_array(mix, ROLE_PROBE_GATE), mlp = has_array(mix, ROLE_MLP_1);
    const int64_t keys = mixer_keys(row, &mix->options, &mix->shape);
    const int64_t inner = mixer_inner(row, &mix->options, &mix->shape);
    const int64_t gates = channels ? keys : mixer_value_heads(row, &mix->shape);
    const bool block = row->block != MIXER_PLAIN, mamba = row->block == MIXER_MAMBA;
    const matrix in = { .width = mixer_in_width(row, &mix->shape) };
    const int64_t times = row->block == MIXER_HYENA ? mix->shape.length : 0;
    const int64_t sizes[ACTIVATIONS][2] = {
        [ACTIVE_X] = { tokens, d },
        [ACTIVE_X_NORM] = { tokens, mix->options.layer_norm ? 2 : 1 },
        [ACTIVE_IN] = { block ? tokens : 0, in.width },
        [ACTIVE_IN_CONV] = { has_array(mix, ROLE_IN_TAPS) ? tokens : 0,
                             mixer_filtered(row, &mix->shape, in).width },
        [ACTIVE_Q] = { mamba ? tokens : 0, keys },
        [ACTIVE_K] = { mamba ? tokens : 0, keys },
        [ACTIVE_V] = { block ? tokens : 0, inner },
        [ACTIVE_PROBE_GATE_RAW] = { probe_gate ? tokens : 0, heads },
        [ACTIVE_PROBE_GATE] = { probe_gate ? tokens : 0, heads },
        [ACTIVE_RIDGE_RAW] = { token_ridge ? tokens : 0, heads },
        [ACTIVE_RIDGE] = { token_ridge ? tokens : row->ridge != MIXER_NO_RIDGE, token_ridge ? heads : keys },
        [ACTIVE_REFLECT_LOW] = { row->reflect ? tokens : 0, row->rank },
        [ACTIVE_REFLECT_RAW] = { row->reflect ? tokens : 0, keys },
        [ACTIVE_REFLECT] = { row->reflect ? tokens : 0, keys },
        [ACTIVE_BETA_RAW] = { beta ? tokens : 0, heads },
        [ACTIVE_BETA] = { beta || mamba ? tokens : 0, gates },
        [ACTIVE_DECAY_LOW] = { channels ? tokens : 0, row->rank },
        [ACTIVE_DECAY_RAW] = { learned ? tokens : 0, gates },
        [ACTIVE_DECAY] = { learned || mamba ? tokens : row->decay == MIXER_DECAY_FIXED, gates },
        [ACTIVE_TIMES] = { times, 3 },
        [ACTIVE_WINDOW] = { times, d },
        [ACTIVE_FILTER_RAW_1] = { times, HYENA_FILTER },
        [ACTIVE_FILTER_1] = { times, HYENA_FILTER },
        [ACTIVE_FILTER_RAW_2] = { times, HYENA_FILTER },
        [ACTIVE_FILTER_2] = { times, HYENA_FILTER },
        [ACTIVE_FILTER_RAW_3] = { times, HYENA_FILTER },
        [ACTIVE_FILTER_3] = { times, HYENA_FILTER },
        [ACTIVE_FILTER_RAW] = { times, d },
        [ACTIVE_FILTER] = { times, d },
        [ACTIVE_O] = { tokens, inner },
        [ACTIVE_O_NORM] = { row->head_norm ? tokens * (block ? 1 : heads) : 0, 1 },
        [ACTIVE_NORMED] = { row->head_norm ? tokens : 0, inner },
        [ACTIVE_GATE_RAW] = { row->gate ? tokens : 0, inner },
        [ACTIVE_Y] = { row->gate || block ? tokens : 0, inner },
        [ACTIVE_BETWEEN] = { mlp ? tokens : 0, d },
        [ACTIVE_MLP_X] = { mlp ? tokens : 0, d },
        [ACTIVE_MLP_NORM] = { mlp ? tokens : 0, mix->options.layer_norm ? 2 : 1 },
        [ACTIVE_MLP_RAW] = { mlp ? tokens : 0, MLP_EXPAND * d },
        [ACTIVE_MLP] = { mlp ? tokens : 0, MLP_EXPAND * d },
    };
    *rows = sizes[which][0];
    *width = sizes[which][1];
}

/* What products or attention read; gates, norms and the filter of Hyena are float32. */
static bool is_operand(activation which)
{
    switch (which) {
    case ACTIVE_X_NORM:
    case ACTIVE_Q_NORM:
    case ACTIVE_K_NORM:
    case ACTIVE_PROBE_NORM:
    case ACTIVE_PROBE_GATE_RAW:
    case ACTIVE_PROBE_GATE:
    case ACTIVE_RIDGE_RAW:
    case ACTIVE_RIDGE:
    case ACTIVE_BETA_RAW:
    case ACTIVE_BETA:
    case ACTIVE_DECAY_RAW:
    case ACTIVE_DECAY:
    case ACTIVE_O_NORM:
    case ACTIVE_BETWEEN:
    case ACTIVE_MLP_NORM: return false;
    default: return which < ACTIVE_TIMES || which > ACTIVE_FILTER;
    }
}

static loam_dtype dtype_of(const mixing *mix, activation which)
{
    return is_operand(which) ? mix->on->operand : mix->on->dtype;
}

static void take_all(const mixing *mix, matrix *to, memory *from)
{
    for (int i = 0; i < ACTIVATIONS; i++) {
        int64_t rows, width;
        if (!stage_size(mix, (activation)i, &rows, &width)) size_of(mix, (activation)i, &rows, &width);
        const loam_dtype dtype = dtype_of(mix, (activation)i);
        to[i] = rows > 0 ? memory_matrix(from, dtype, mix->shape.models, rows, width) : none;
    }
    if (mix->row->block == MIXER_PLAIN)
        for (int i = ACTIVE_Q_CONV; i <= ACTIVE_PROBE; i++)
            if (!to[i].data) to[i] = to[i - STREAMS];
    if (!to[ACTIVE_IN_CONV].data && to[ACTIVE_IN].data)
        to[ACTIVE_IN_CONV] = mixer_filtered(mix->row, &mix->shape, to[ACTIVE_IN]);
    if (!mix->row->head_norm) to[ACTIVE_NORMED] = to[ACTIVE_O];
    if (!mix->row->gate && mix->row->block == MIXER_PLAIN) to[ACTIVE_Y] = to[ACTIVE_NORMED];
}

static size_t work_of(const loam_plan *plan) { return plan ? loam_plan_work_bytes(plan) : 0; }

void mixing_take(mixing *mix, memory *from)
{
    const size_t forward = work_of(mix->plan[LOAM_FORWARD]), backward = work_of(mix->plan[LOAM_BACKWARD]);
    take_all(mix, mix->gradient, from);
    /* The decay of RetNet is not learned. */
    if (mix->row->decay == MIXER_DECAY_FIXED) mix->gradient[ACTIVE_DECAY] = none;
    mix->work = memory_take(from, (int64_t)(forward > backward ? forward : backward), 1);
}

static void set_fixed_decay(const mixing *mix, matrix decay)
{
    for (int64_t i = 0; i < decay.models * decay.width; i++) {
        const double x = log1p(-exp2(-5 - (double)(i % mix->shape.heads)));
        machine_set(mix->on, decay, i, &x, 1);
    }
}

void mixer_layer_take(const mixing *mix, mixer_layer *layer, memory *from)
{
    const loam_plan *plan = mix->plan[LOAM_FORWARD];
    const size_t saved = plan ? loam_plan_saved_bytes(plan) : 0;
    take_all(mix, layer->value, from);
    layer->saved = saved > 0 ? memory_take(from, (int64_t)saved, 1) : NULL;
    if (from->base && mix->row->decay == MIXER_DECAY_FIXED) set_fixed_decay(mix, layer->value[ACTIVE_DECAY]);
    if (from->base && mix->row->block == MIXER_HYENA)
        hyena_times(mix->on, layer->value[ACTIVE_TIMES], layer->value[ACTIVE_WINDOW]);
}
