/* SPDX-License-Identifier: MIT */
#include "distill/activations.h"

#include <stdlib.h>

static bool take(activations *a)
{
    const size_t layers = (size_t)a->layers, rows = (size_t)a->windows * (size_t)a->tokens,
                 bytes = (size_t)a->channels * sizeof(float);
    a->scale = calloc(layers, sizeof *a->scale);
    a->q = calloc(layers, sizeof *a->q);
    a->k = calloc(layers, sizeof *a->k);
    bool there = a->scale && a->q && a->k;
    for (size_t i = 0; there && i < layers; i++) {
        a->q[i] = calloc(rows, (size_t)a->heads_q * bytes);
        a->k[i] = calloc(rows, (size_t)a->heads_kv * bytes);
        there = a->q[i] && a->k[i];
    }
    return there;
}

typedef struct place {
    activations *a;
    const lm_model *model;
    int64_t window;
} place;

static int fetch(void *to, int64_t layer, const lm_heads *heads, io_error *error)
{
    const place *p = to;
    const int64_t row = p->window * p->a->tokens * p->a->channels;
    const int status = lm_model_fetch(p->model, p->a->q[layer] + row * p->a->heads_q, heads->q, error);
    return status ? status : lm_model_fetch(p->model, p->a->k[layer] + row * p->a->heads_kv, heads->k, error);
}

int activations_open(activations *a, const lm_model *m, const int32_t *ids, int64_t windows, int64_t tokens,
                     void (*read)(void *to), void *to, io_error *error)
{
    const lm_config *c = lm_model_config(m);
    lm_capture *capture = NULL;
    place at = { a, m, 0 };
    *a = (activations){ .layers = c->layers,
                        .heads_q = c->heads_q,
                        .heads_kv = c->heads_kv,
                        .channels = c->head_dim,
                        .windows = windows,
                        .tokens = tokens,
                        .causal = c->architecture != LM_BERT };
    int status = take(a) ? lm_capture_open(&capture, m, tokens, error)
                         : io_fail(error, EXIT_INTERNAL, "out of memory for queries and keys of %lld tokens",
                                   (long long)(windows * tokens));
    for (int64_t layer = 0; !status && layer < a->layers; layer++)
        a->scale[layer] = lm_config_scale(c, layer);
    for (; !status && at.window < windows; at.window++) {
        status = lm_capture_read(capture, ids + at.window * tokens, tokens, fetch, &at, error);
        if (!status && read) read(to);
    }
    lm_capture_close(capture);
    if (status) activations_close(a);
    return status;
}

void activations_close(activations *a)
{
    for (int64_t i = 0; i < a->layers; i++) {
        if (a->q) free(a->q[i]);
        if (a->k) free(a->k[i]);
    }
    free(a->q);
    free(a->k);
    free(a->scale);
    *a = (activations){ 0 };
}

dof_text activations_text(const activations *a, int64_t layer, int64_t head, int64_t window)
{
    const int64_t row = window * a->tokens, key_head = head / (a->heads_q / a->heads_kv);
    return (dof_text){ .q = a->q[layer] + (row * a->heads_q + head) * a->channels,
                       .k = a->k[layer] + (row * a->heads_kv + key_head) * a->channels,
                       .q_row = a->heads_q * a->channels,
                       .k_row = a->heads_kv * a->channels,
                       .count = a->tokens,
                       .scale = a->scale[layer],
                       .causal = a->causal };
}
