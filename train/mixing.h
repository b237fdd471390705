/* SPDX-License-Identifier: MIT
 * What the passes of mixers share. */
#ifndef LOAM_TRAIN_MIXING_H
#define LOAM_TRAIN_MIXING_H

#include "train/mixer.h"

/* Heads of queries and keys; their channels, and those of values. */
static inline int64_t mixing_query_heads(const mixing *mix)
{
    return mix->row->block == MIXER_MAMBA ? 1 : mix->shape.heads;
}
static inline int64_t mixing_key_channels(const mixing *mix)
{
    return mixer_keys(mix->row, &mix->options, &mix->shape) / mixing_query_heads(mix);
}
static inline int64_t mixing_value_channels(const mixing *mix)
{
    const int64_t inner = mixer_inner(mix->row, &mix->options, &mix->shape);
    return inner / mixer_value_heads(mix->row, &mix->shape);
}

/* Of x W_in the columns that a short convolution is over. */
static inline matrix mixing_filtered(const mixing *mix, matrix in)
{
    int64_t first, count;
    mixer_filtered(mix->row, &mix->shape, &first, &count);
    return matrix_columns(in, first, count);
}

/* An array of the layer, and its gradient; without data where it has none. */
static inline matrix array_of(const mixer_layer *layer, role which)
{
    return layer->array[which] ? layer->array[which]->x : (matrix){ 0 };
}
/* As an operand of products. */
static inline matrix weight_of(const mixer_layer *layer, role which) { return layer->array[which]->w; }
static inline matrix array_gradient(const mixer_layer *layer, role which)
{
    return layer->array[which] ? layer->array[which]->g : (matrix){ 0 };
}

/* Whether rows that are not seen have a call of their own; the problems of a pass, and how many calls those
 * rows are. */
bool mixing_in_parts(const mixing *mix);
loam_problem mixing_problem(const mixing *mix, loam_pass pass);
loam_problem mixing_query_problem(const mixing *mix, loam_pass pass);
int64_t mixing_query_calls(const mixing *mix);
/* Those of the rows that are seen. A ridge of heads or channels is a parameter, of which each model has its
 * own: then a call for each model. */
int64_t mixing_calls(const mixing *mix);

/* Side i of a layer's: its array, and what comes of it. */
static inline role side_role(int i)
{
    static const role roles[SIDES] = { ROLE_Q, ROLE_K, ROLE_V, ROLE_PROBE, ROLE_GATE };
    return roles[i];
}
static inline activation side_activation(int i)
{
    return i < STREAMS ? (activation)(ACTIVE_Q_IN + i) : ACTIVE_GATE_RAW;
}
static inline bool is_side(const mixer_layer *layer, role which)
{
    bool found = false;
    for (int i = 0; i < SIDES; i++)
        found = found || side_role(i) == which;
    return found && layer->sides.all.data;
}

/* The library's pass, from the layer's queries, keys, values and gates to ACTIVE_O; or back. */
loam_status mixing_attend(const mixing *mix, const mixer_layer *layer, loam_pass pass, loam_error *error);

/* Where rows that are not seen have no call of their own they write nothing: their strengths, or where there
 * are none their values, and their log decays become 0, or the gradients of these. */
void mixing_hide(const mixing *mix, const matrix *list);

/* Queries, keys and probes of `list` turned by their positions; or, gradients, back. */
loam_status mixing_turn(const mixing *mix, const matrix *list, bool back, loam_error *error);

/* The gradient of an array that moves, from what it multiplies and the gradient of the product. */
static inline void mixing_weight_gradient(const machine *on, const parameter *p, matrix x, matrix g)
{
    if (p->g.data) on->op->product(on, p->g, x, g, PRODUCT_A_TRANSPOSED);
}

/* y + bias, where the layer has that. add_positions with one row adds it to all. */
static inline void mixing_add_bias(const mixing *mix, const mixer_layer *layer, role bias, matrix y)
{
    if (bias < ROLES && layer->array[bias]) mix->on->op->add_positions(mix->on, y, layer->array[bias]->x);
}
static inline void mixing_bias_back(const mixing *mix, const mixer_layer *layer, role bias, matrix g)
{
    static const matrix none = { 0 };
    if (bias < ROLES && layer->array[bias])
        mix->on->op->column_sums(mix->on, layer->array[bias]->g, g, none, none);
}

/* A and B beside W_q, W_k, W_v, W_R or W_o, where the layer has them. */
static inline bool mixing_low(const mixer_layer *layer, int which)
{
    return layer->array[ROLE_Q_LOW_1 + which] != NULL;
}
/* y += x A B; `alone`: y = x A B. */
void mixing_add_low(const mixing *mix, const mixer_layer *layer, int which, matrix y, matrix x, bool alone);
/* dx += g B^T A^T, and the gradients of A and B. */
void mixing_low_back(const mixing *mix, const mixer_layer *layer, int which, matrix g, matrix x, matrix dx);

/* The passes of each kind of mixer, from ACTIVE_X to ACTIVE_Y and back. */
typedef loam_status mixer_pass(const mixing *mix, const mixer_layer *layer, loam_error *error);
mixer_pass plain_forward, plain_backward;
mixer_pass mamba_forward, mamba_backward;
mixer_pass hyena_forward, hyena_backward;

/* Hyena's fixed arrays: what its filter's MLP reads, (t, cos, -sin) of t = 0 .. 1, and e^(-r_c t) with r_c
 * from ln 100 / 1.5 to ln 100 / 0.3 over the channels. */
void hyena_times(const machine *on, matrix times, matrix window);

#endif
