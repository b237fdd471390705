/* SPDX-License-Identifier: MIT
 * What a text keeps, and the room to read it. */
#include "lm/text.h"

#include "lm/loaded.h"
#include "lm/manner.h"

#include <assert.h>
#include <stdlib.h>

static const matrix none = { 0 };

static void take_step(lm_text *t)
{
    const lm_config *c = t->of->config;
    const machine *on = t->of->on;
    const int64_t q = c->heads_q * c->head_dim, kv = c->heads_kv * c->head_dim;
    t->key = memory_matrix(&t->memory, on->operand, 1, 1, kv);
    t->value = memory_matrix(&t->memory, on->operand, 1, 1, kv);
    t->forget = memory_matrix(&t->memory, on->dtype, 1, 1, c->heads_q);
    t->parts = memory_matrix(&t->memory, on->operand, 1, t->splits, q);
    t->lse = memory_matrix(&t->memory, LOAM_F32, 1, t->splits, c->heads_q);
    t->split_counts = memory_take(&t->memory, t->splits, sizeof *t->split_counts);
}

/* What a layer with features keeps. */
static void take_states(lm_text *t, int64_t layer, const lm_features *f)
{
    const lm_config *c = t->of->config;
    const lm_options *o = &t->of->options;
    const int64_t heads = manner_features_heads(f, c), near = c->heads_kv * (o->sinks + o->window);
    if (o->window == 0) {
        t->states[layer] = memory_matrix(&t->memory, LOAM_F32, 1, heads * manner_state_rows(c), f->features);
        return;
    }
    t->states[layer] = memory_matrix(&t->memory, LOAM_F32, 1, heads * hybrid_rows(c), f->features + 1);
    t->near_keys[layer] = memory_matrix(&t->memory, t->of->on->operand, 1, near, c->head_dim);
    t->near_values[layer] = memory_matrix(&t->memory, t->of->on->operand, 1, near, c->head_dim);
}

static void take_all(lm_text *t)
{
    const lm_config *c = t->of->config;
    const machine *on = t->of->on;
    const bool forgets = t->of->options.own && c->forgets;
    const int64_t q = c->heads_q * c->head_dim, kv = c->heads_kv * c->head_dim;
    const int64_t room = on->gpu ? t->splits * TEXT_SPLIT : t->room;
    for (int64_t i = 0; i < c->layers; i++) {
        const lm_features *f = manner_features(&t->of->options, i);
        const int64_t rows = f && t->most < t->room ? t->most : room;
        t->keys[i] = memory_matrix(&t->memory, on->operand, 1, rows, kv);
        t->values[i] = memory_matrix(&t->memory, on->operand, 1, rows, kv);
        if (f && c->architecture != LM_BERT) take_states(t, i, f);
        if (forgets) t->decays[i] = memory_matrix(&t->memory, on->dtype, 1, room, c->heads_q);
    }
    t->x = memory_matrix(&t->memory, on->dtype, 1, t->most, c->width);
    t->y = memory_matrix(&t->memory, on->dtype, 1, t->most, c->width);
    t->second = c->parallel ? memory_matrix(&t->memory, on->dtype, 1, t->most, c->width) : none;
    t->stats = memory_matrix(&t->memory, on->dtype, 1, t->most, 2);
    t->q = memory_matrix(&t->memory, on->operand, 1, t->most, q);
    t->o = memory_matrix(&t->memory, on->operand, 1, t->most, q);
    t->up = memory_matrix(&t->memory, on->dtype, 1, t->most, c->inner);
    t->inner = memory_matrix(&t->memory, on->dtype, 1, t->most, c->inner);
    t->gate = memory_matrix(&t->memory, on->dtype, 1, t->most, c->inner);
    t->probe = t->of->options.mechanism == LOAM_PARALLAX
                   ? memory_matrix(&t->memory, on->operand, 1, t->most, q)
                   : none;
    t->ridges = memory_matrix(&t->memory, LOAM_F32, 1, c->layers, c->heads_q);
    if (t->of->options.own && (c->forgets || c->mechanism == LOAM_LLA)) {
        t->gates = memory_matrix(&t->memory, on->dtype, 1, t->most, c->heads_q);
        t->ridge = memory_matrix(&t->memory, on->dtype, 1, t->most, c->heads_q);
    }
    t->ids = memory_take(&t->memory, t->most, sizeof *t->ids);
    t->place = memory_take(&t->memory, 1, sizeof *t->place);
    if (on->gpu) take_step(t);
}

static int open_text(lm_text **made, const lm_model *m, int64_t batch, int64_t room, int64_t chunk,
                     io_error *error)
{
    const lm_config *c = m->config;
    assert(chunk >= 1 && chunk <= room);
    *made = NULL;
    if (c->context > 0 && room / batch > c->context && c->rope_dim == 0)
        return io_fail(error, EXIT_INPUT, "%lld tokens: the model has positions for %lld",
                       (long long)(room / batch), (long long)c->context);
    lm_text *t = calloc(1, sizeof *t);
    if (!t) return io_fail(error, EXIT_INTERNAL, "out of memory for a text");
    t->batch = 1, t->most_batch = batch;
    t->of = m, t->room = room, t->most = chunk, t->splits = (room + TEXT_SPLIT - 1) / TEXT_SPLIT;
    t->keys = calloc((size_t)c->layers, sizeof *t->keys),
    t->values = calloc((size_t)c->layers, sizeof *t->keys);
    t->decays = calloc((size_t)c->layers, sizeof *t->decays);
    t->states = calloc((size_t)c->layers, sizeof *t->states);
    t->near_keys = calloc((size_t)c->layers, sizeof *t->near_keys);
    t->near_values = calloc((size_t)c->layers, sizeof *t->near_values);
    t->plans = calloc((size_t)c->layers, (size_t)c->heads_q * sizeof *t->plans);
    t->counts = calloc((size_t)t->splits, sizeof *t->counts);
    bool there = t->keys && t->values && t->decays && t->states && t->plans && t->counts && t->near_keys &&
                 t->near_values;
    if (there) take_all(t), there = memory_open(&t->memory, m->on);
    if (!there) {
        lm_text_close(t);
        return io_fail(error, EXIT_INTERNAL, "out of memory for a text of %lld tokens", (long long)room);
    }
    take_all(t);
    const int status = lm_text_attention(t, &m->options, error);
    if (status)
        lm_text_close(t);
    else
        *made = t;
    return status;
}

int lm_text_open(lm_text **made, const lm_model *m, int64_t room, int64_t chunk, io_error *error)
{
    return open_text(made, m, 1, room, chunk, error);
}

int lm_text_open_batch(lm_text **made, const lm_model *m, int64_t most, int64_t length, io_error *error)
{
    return open_text(made, m, most, most * length, most * length, error);
}

void lm_text_close(lm_text *t)
{
    if (!t) return;
    text_drop_plans(t);
    window_close(&t->window, t->of->on);
    hybrid_close(&t->hybrid);
    encoder_close(&t->encoder);
    untied_close(&t->untied);
    memory work = { .gpu = t->of->on->gpu, .base = t->work };
    memory_close(&work);
    memory_close(&t->memory);
    free(t->counts);
    free(t->plans);
    free(t->keys);
    free(t->values);
    free(t->decays);
    free(t->states);
    free(t->near_keys);
    free(t->near_values);
    free(t);
}
