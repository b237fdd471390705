/* SPDX-License-Identifier: MIT */
#include "distill/cascade.h"

#include "distill/reading.h"

#include <stdlib.h>
#include <string.h>

static bool take_shape(activations *at, const activations *shape)
{
    const size_t windows = (size_t)shape->windows, rows = (size_t)shape->begins[windows],
                 bytes = (size_t)shape->channels * sizeof(float);
    *at = *shape;
    at->layers = 1;
    at->begins = calloc(windows + 1, sizeof *at->begins);
    at->scale = calloc(1, sizeof *at->scale);
    at->q = calloc(1, sizeof *at->q);
    at->k = calloc(1, sizeof *at->k);
    if (!at->begins || !at->scale || !at->q || !at->k) return false;
    memcpy(at->begins, shape->begins, (windows + 1) * sizeof *at->begins);
    at->q[0] = calloc(rows, (size_t)at->heads_q * bytes);
    at->k[0] = calloc(rows, (size_t)at->heads_kv * bytes);
    return at->q[0] && at->k[0];
}

/* Called twice: to add up the memory, and to take it (train/machine.h). */
static void take_streams(cascade *c)
{
    const machine *on = lm_model_machine(c->model);
    const int64_t width = lm_model_config(c->model)->width;
    c->stream = memory_matrix(&c->room, on->dtype, 1, c->at.begins[c->at.windows], width);
    c->x = memory_matrix(&c->room, on->dtype, 1, c->at.tokens, width);
}

static int64_t tokens_of(const cascade *c, int64_t window)
{
    return c->at.begins[window + 1] - c->at.begins[window];
}

static matrix stream_of(const cascade *c, int64_t window)
{
    return matrix_rows(c->stream, c->at.begins[window], tokens_of(c, window));
}

/* The text is that window from now on; its tokens enter x. */
static int enter(cascade *c, int64_t window, matrix x, io_error *error)
{
    return lm_text_enter(c->text, c->ids + c->at.begins[window], tokens_of(c, window), x, error);
}

int cascade_open(cascade *c, const lm_model *m, student *s, const activations *shape, const int32_t *ids,
                 io_error *error)
{
    *c = (cascade){ .model = m, .ids = ids, .s = s, .one = *s };
    c->one.layers = 1;
    int status = take_shape(&c->at, shape) ? 0 : EXIT_INTERNAL;
    if (!status) {
        take_streams(c);
        status = memory_open(&c->room, lm_model_machine(m)) ? 0 : EXIT_INTERNAL;
    }
    if (status)
        (void)io_fail(error, status, "out of memory for a cascade of %lld windows",
                      (long long)shape->windows);
    if (!status) take_streams(c);
    if (!status) status = lm_text_open(&c->text, m, c->at.tokens, c->at.tokens, error);
    for (int64_t n = 0; !status && n < c->at.windows; n++)
        status = enter(c, n, stream_of(c, n), error);
    if (status) cascade_close(c);
    return status;
}

void cascade_close(cascade *c)
{
    lm_text_close(c->text);
    memory_close(&c->room);
    activations_close(&c->at);
    *c = (cascade){ 0 };
}

static int look_at(cascade *c, int64_t window, io_error *error)
{
    const machine *on = lm_model_machine(c->model);
    const int64_t count = tokens_of(c, window), row = c->at.begins[window] * c->at.channels;
    const matrix x = matrix_rows(c->x, 0, count);
    int status = enter(c, window, x, error);
    if (status) return status;
    on->op->copy(on, x, stream_of(c, window));
    status = lm_text_layers(c->text, c->layer, c->layer + 1, x, error);
    if (status) return status;
    const lm_heads heads = lm_text_heads(c->text, c->layer, count);
    status = lm_model_fetch(c->model, c->at.q[0] + row * c->at.heads_q, heads.q, error);
    return status ? status : lm_model_fetch(c->model, c->at.k[0] + row * c->at.heads_kv, heads.k, error);
}

int cascade_look(cascade *c, io_error *error)
{
    const lm_options softmax = lm_options_default();
    int status = lm_text_attention(c->text, &softmax, error);
    c->one.layer = c->s->layer + c->layer;
    c->at.scale[0] = lm_config_scale(lm_model_config(c->model), c->layer);
    for (int64_t n = 0; !status && n < c->at.windows; n++)
        status = look_at(c, n, error);
    return status;
}

static int pass_by(cascade *c, const lm_features *features, io_error *error)
{
    lm_options options = lm_options_default();
    options.features = features, options.only = c->layer;
    int status = lm_text_attention(c->text, &options, error);
    for (int64_t n = 0; !status && n < c->at.windows; n++) {
        status = enter(c, n, matrix_rows(c->x, 0, tokens_of(c, n)), error);
        if (!status) status = lm_text_layers(c->text, c->layer, c->layer + 1, stream_of(c, n), error);
    }
    return status;
}

int cascade_pass(cascade *c, io_error *error)
{
    lm_features *const all = calloc((size_t)c->s->layers, sizeof *all);
    reading r;
    if (!all) return io_fail(error, EXIT_INTERNAL, "out of memory for features");
    int status = reading_open(&r, &c->one, lm_model_machine(c->model), error);
    if (!status) {
        all[c->layer] = r.layers[0];
        status = pass_by(c, all, error);
        const lm_options softmax = lm_options_default(); /* it forgets `all` */
        if (!status) status = lm_text_attention(c->text, &softmax, error);
        reading_close(&r);
    }
    free(all);
    if (!status) c->layer++;
    return status;
}
