/* SPDX-License-Identifier: MIT
 * A mixer's plans and its memory. */
#include "train/mixing.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const matrix none = { 0 };

/* Why a mixer does not go with options, or NULL. */
static const char *refusal(const mixer *row, const mixer_shape *shape, const mixer_options *options)
{
    const bool local = row->block == MIXER_PLAIN && row->mechanism <= LOAM_LLA && !row->reflect &&
                       row->decay == MIXER_NO_DECAY;
    if (shape->heads_kv != shape->heads && !local && !row->positive)
        return "grouped heads are for softmax, Parallax, LLA and features";
    if (row->positive && shape->seen < shape->length) return "no blind queries with it";
    if (row->ridge == MIXER_RIDGE_HEAD && shape->seen < shape->length) return "no blind queries with it";
    if ((options->low >> LOW_OUT & 1) && !options->mlp) return "A and B of W_o only with an MLP behind";
    if (options->biases && !options->mlp) return "biases only with an MLP";
    if (row->block == MIXER_PLAIN) return NULL;
    if (options->biases) return "a block has no biases";
    if (options->positions == POSITIONS_ROPE) return "a block has no queries and keys to turn";
    return options->qk_norm ? "a block has no queries and keys by heads to norm" : NULL;
}

loam_status mixing_open(mixing *mix, const machine *on, const mixer *row, const mixer_shape *shape,
                        const mixer_options *options, loam_error *error)
{
    *mix = (mixing){ .on = on, .row = row, .shape = *shape, .options = *options };
    const char *refused = refusal(row, shape, options);
    if (refused) {
        if (error) {
            *error = (loam_error){ .status = LOAM_EUNSUPPORTED };
            snprintf(error->text, sizeof error->text, "%s: %s", row->name, refused);
        }
        return LOAM_EUNSUPPORTED;
    }
    loam_status status = LOAM_OK;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD && row->block != MIXER_HYENA && !status; pass++) {
        const loam_problem problem = mixing_problem(mix, (loam_pass)pass);
        status = loam_plan_create(&mix->plan[pass], &problem, error);
        if (status || !mixing_in_parts(mix)) continue;
        const loam_problem queries = mixing_query_problem(mix, (loam_pass)pass);
        status = loam_plan_create(&mix->query_plan[pass], &queries, error);
    }
    return status;
}

void mixing_close(mixing *mix)
{
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        loam_plan_destroy(mix->plan[pass]);
        loam_plan_destroy(mix->query_plan[pass]);
    }
}

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
    const int64_t tokens = mix->shape.batch * mix->shape.length;
    const bool norm = which >= ACTIVE_Q_NORM;
    const int at = which - (norm ? ACTIVE_Q_NORM : ACTIVE_Q_IN), stream = at % STREAMS;
    if (mix->row->block != MIXER_PLAIN || at < 0 || which > ACTIVE_PROBE_NORM) return false;
    *rows = has_stage(mix, norm ? STAGE_NORM : (stage)(at / STREAMS), stream) ? tokens : 0;
    if (norm) *rows *= mixer_stream_heads(&mix->shape, stream);
    *width = norm ? 1 : mixer_stream_columns(mix->row, &mix->options, &mix->shape, stream);
    return true;
}

/* Those of the products of thin matrices; false: `which` is another. */
static bool low_size(const mixing *mix, activation which, int64_t *rows, int64_t *width)
{
    if (which < ACTIVE_Q_LOW || which > ACTIVE_OUT_LOW) return false;
    const bool there = has_array(mix, (role)(ROLE_Q_LOW_1 + which - ACTIVE_Q_LOW));
    *rows = there ? mix->shape.batch * mix->shape.length : 0;
    *width = mix->options.rank;
    return true;
}

/* Those of the MLP; false: `which` is another. */
static bool mlp_size(const mixing *mix, activation which, int64_t *rows, int64_t *width)
{
    const bool there = has_array(mix, which == ACTIVE_MLP_GATE ? ROLE_MLP_GATE : ROLE_MLP_1);
    *rows = there ? mix->shape.batch * mix->shape.length : 0;
    switch (which) {
    case ACTIVE_BETWEEN:
    case ACTIVE_MLP_X: *width = mix->shape.width; return true;
    case ACTIVE_MLP_NORM: *width = mix->options.layer_norm ? 2 : 1; return true;
    case ACTIVE_MLP_RAW:
    case ACTIVE_MLP_GATE:
    case ACTIVE_MLP: *width = mixer_mlp_inner(&mix->options, &mix->shape); return true;
    default: return false;
    }
}

/* Rows and columns of an activation; 0 rows where the mixer has none, or it is the memory of another. */
static void size_of(const mixing *mix, activation which, int64_t *rows, int64_t *width)
{
    const mixer *row = mix->row;
    const mixer_shape *shape = &mix->shape;
    const mixer_options *options = &mix->options;
    const int64_t d = shape->width, heads = shape->heads, tokens = shape->batch * shape->length;
    const bool channels = has_array(mix, ROLE_DECAY_2), learned = has_array(mix, ROLE_DECAY_1);
    const bool beta = has_array(mix, ROLE_BETA), token_ridge = has_array(mix, ROLE_RIDGE);
    const bool probe_gate = has_array(mix, ROLE_PROBE_GATE);
    const int64_t keys = mixer_keys(row, options, shape), inner = mixer_inner(row, options, shape);
    const int64_t gates = channels ? keys : mixer_value_heads(row, shape);
    const bool block = row->block != MIXER_PLAIN, mamba = row->block == MIXER_MAMBA;
    int64_t first, filtered;
    mixer_filtered(row, shape, &first, &filtered);
    const int64_t times = row->block == MIXER_HYENA ? shape->length : 0;
    const int64_t sizes[ACTIVATIONS][2] = {
        [ACTIVE_X] = { tokens, d },
        [ACTIVE_X_NORM] = { tokens, options->layer_norm ? 2 : 1 },
        [ACTIVE_IN] = { block ? tokens : 0, mixer_in_width(row, shape) },
        [ACTIVE_IN_CONV] = { has_array(mix, ROLE_IN_TAPS) ? tokens : 0, filtered },
        [ACTIVE_Q] = { mamba ? tokens : 0, keys },
        [ACTIVE_K] = { mamba ? tokens : 0, keys },
        [ACTIVE_V] = { block ? tokens : 0, inner },
        [ACTIVE_PROBE_GATE_RAW] = { probe_gate ? tokens : 0, heads },
        [ACTIVE_PROBE_GATE] = { probe_gate ? tokens : 0, heads },
        [ACTIVE_RIDGE_RAW] = { token_ridge ? tokens : 0, heads },
        [ACTIVE_RIDGE] = { token_ridge ? tokens : row->ridge != MIXER_NO_RIDGE,
                           row->ridge == MIXER_RIDGE_CHANNEL ? keys : heads },
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
        [ACTIVE_V_SEEN] = { times && shape->seen < shape->length ? tokens : 0, d },
        [ACTIVE_O] = { tokens, inner },
        [ACTIVE_O_NORM] = { row->head_norm ? tokens * (block ? 1 : heads) : 0, 1 },
        [ACTIVE_NORMED] = { row->head_norm ? tokens : 0, inner },
        [ACTIVE_GATE_RAW] = { row->gate ? tokens : 0, inner },
        [ACTIVE_Y] = { row->gate || block ? tokens : 0, inner },
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

static bool has_sides(const mixing *mix)
{
    const mixer_options *options = &mix->options;
    return mix->row->block == MIXER_PLAIN && !options->qk_norm && !options->probe_gate;
}

/* Columns of an array that may have no memory yet. */
static matrix columns_of(matrix all, int64_t first, int64_t count)
{
    if (all.data) return matrix_columns(all, first, count);
    all.width = count;
    return all;
}

static matrix take_sides(const mixing *mix, matrix *to, memory *from)
{
    const int64_t tokens = mix->shape.batch * mix->shape.length;
    int64_t widths[SIDES], total = 0, first = 0;
    for (int i = 0; i < SIDES; i++) {
        int64_t rows;
        mixer_array(mix->row, &mix->options, &mix->shape, side_role(i), &rows, &widths[i]);
        if (rows == 0) widths[i] = 0;
        total += widths[i];
    }
    const matrix all = memory_matrix(from, mix->on->operand, mix->shape.models, tokens, total);
    for (int i = 0; i < SIDES; i++) {
        to[side_activation(i)] = widths[i] > 0 ? columns_of(all, first, widths[i]) : none;
        first += widths[i];
    }
    return all;
}

/* Their arrays as operands, of which each has its columns. */
static matrix take_arrays(const mixing *mix, const mixer_layer *layer, matrix all, memory *from)
{
    const matrix w = memory_matrix(from, mix->on->operand, all.models, mix->shape.width, all.width);
    int64_t first = 0;
    for (int i = 0; i < SIDES; i++) {
        parameter *p = layer->array[side_role(i)];
        if (!p) continue;
        p->w = columns_of(w, first, p->x.width);
        first += p->x.width;
    }
    return w;
}

static void take_all(const mixing *mix, matrix *to, matrix *all, memory *from)
{
    if (has_sides(mix)) *all = take_sides(mix, to, from);
    for (int i = 0; i < ACTIVATIONS; i++) {
        int64_t rows, width;
        const bool stream = i >= ACTIVE_Q_IN && i < ACTIVE_Q_IN + STREAMS;
        if (has_sides(mix) && (stream || i == ACTIVE_GATE_RAW) && to[i].width > 0) continue;
        if (!low_size(mix, (activation)i, &rows, &width) && !stage_size(mix, (activation)i, &rows, &width) &&
            !mlp_size(mix, (activation)i, &rows, &width))
            size_of(mix, (activation)i, &rows, &width);
        const loam_dtype dtype = dtype_of(mix, (activation)i);
        to[i] = rows > 0 ? memory_matrix(from, dtype, mix->shape.models, rows, width) : none;
    }
    if (mix->row->block == MIXER_PLAIN)
        for (int i = ACTIVE_Q_CONV; i <= ACTIVE_PROBE; i++)
            if (!to[i].data) to[i] = to[i - STREAMS];
    if (!to[ACTIVE_IN_CONV].data && to[ACTIVE_IN].data)
        to[ACTIVE_IN_CONV] = mixing_filtered(mix, to[ACTIVE_IN]);
    if (!to[ACTIVE_V_SEEN].data) to[ACTIVE_V_SEEN] = to[ACTIVE_V];
    if (!mix->row->head_norm) to[ACTIVE_NORMED] = to[ACTIVE_O];
    if (!mix->row->gate && mix->row->block == MIXER_PLAIN) to[ACTIVE_Y] = to[ACTIVE_NORMED];
}

/* That LLA solves in a layer. */
static int64_t rows_solved(const mixing *mix)
{
    return mix->shape.models * mix->shape.batch * mix->shape.heads * mix->shape.length;
}

int64_t mixing_work(const mixing *mix)
{
    size_t most = 0;
    for (int pass = LOAM_FORWARD; pass <= LOAM_BACKWARD; pass++) {
        const loam_plan *plans[] = { mix->plan[pass], mix->query_plan[pass] };
        for (int i = 0; i < 2; i++) {
            const size_t work = plans[i] ? loam_plan_work_bytes(plans[i]) : 0;
            if (work > most) most = work;
        }
    }
    return (int64_t)most;
}

/* What the calls of unseen queries have of keys' gradients. */
static void take_beside(mixing *mix, memory *from)
{
    static const activation of_keys[] = { ACTIVE_K, ACTIVE_V, ACTIVE_REFLECT, ACTIVE_BETA };
    const mixer_shape *shape = &mix->shape;
    const loam_dtype real = mix->on->dtype;
    const int64_t queries = shape->length - shape->seen;
    for (int i = 0; i < 4; i++) {
        const matrix like = mix->gradient[of_keys[i]];
        if (like.rows > 0)
            mix->beside[of_keys[i]] = memory_matrix(from, like.dtype, like.models, like.rows, like.width);
    }
    if (mix->gradient[ACTIVE_DECAY].rows == 0) return;
    const int64_t rows = shape->batch * shape->seen * shape->heads;
    mix->beside[ACTIVE_DECAY] = memory_matrix(from, real, shape->models, rows, queries);
    mix->ones = memory_matrix(from, real, 1, queries, 1);
    for (int64_t i = 0; i < queries && from->base; i++)
        machine_set(mix->on, mix->ones, i, &(double){ 1 }, 1);
}

void mixing_take(mixing *mix, int64_t work, memory *from)
{
    take_all(mix, mix->gradient, &mix->sides.all, from);
    const matrix all = mix->sides.all;
    if (has_sides(mix))
        mix->sides.w = memory_matrix(from, mix->on->dtype, all.models, mix->shape.width, all.width);
    /* The decay of RetNet is not learned. */
    if (mix->row->decay == MIXER_DECAY_FIXED) mix->gradient[ACTIVE_DECAY] = none;
    if (mixing_in_parts(mix)) take_beside(mix, from);
    mix->work = memory_take(from, work, 1);
}

void mixing_share(mixing *mix, const mixing *with)
{
    memcpy(mix->gradient, with->gradient, sizeof mix->gradient);
    mix->sides = with->sides, mix->work = with->work;
}

static void set_fixed_decay(const mixing *mix, matrix decay)
{
    for (int64_t i = 0; i < decay.models * decay.width; i++) {
        const double x = log1p(-exp2(-5 - (double)(i % mix->shape.heads)));
        machine_set(mix->on, decay, i, &x, 1);
    }
}

static void *take_saved(const loam_plan *plan, int64_t calls, memory *from)
{
    const size_t bytes = plan ? loam_plan_saved_bytes(plan) : 0;
    return bytes > 0 ? memory_take(from, calls, bytes) : NULL;
}

void mixer_layer_take(const mixing *mix, mixer_layer *layer, memory *from)
{
    take_all(mix, layer->value, &layer->sides.all, from);
    if (has_sides(mix)) layer->sides.w = take_arrays(mix, layer, layer->sides.all, from);
    layer->saved = take_saved(mix->plan[LOAM_FORWARD], mixing_calls(mix), from);
    layer->query_saved = take_saved(mix->query_plan[LOAM_FORWARD], mixing_query_calls(mix), from);
    if (mix->row->mechanism == LOAM_LLA)
        layer->info = memory_take(from, rows_solved(mix), sizeof *layer->info);
    if (from->base && mix->row->decay == MIXER_DECAY_FIXED) set_fixed_decay(mix, layer->value[ACTIVE_DECAY]);
    if (from->base && mix->row->block == MIXER_HYENA)
        hyena_times(mix->on, layer->value[ACTIVE_TIMES], layer->value[ACTIVE_WINDOW]);
}
