/* SPDX-License-Identifier: MIT */
#include "distill/activations.h"

#include <stdlib.h>

static bool take(activations *a)
{
    const size_t layers = (size_t)a->layers, rows = (size_t)a->begins[a->windows],
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

/* lengths NULL: each is a->tokens. */
static bool take_begins(activations *a, const int64_t *lengths)
{
    a->begins = calloc((size_t)a->windows + 1, sizeof *a->begins);
    if (!a->begins) return false;
    for (int64_t n = 0; n < a->windows; n++) {
        const int64_t its = lengths ? lengths[n] : a->tokens;
        a->begins[n + 1] = a->begins[n] + its;
        if (its > a->tokens) a->tokens = its;
    }
    return true;
}

static int fetch(void *to, int64_t layer, const lm_heads *heads, io_error *error)
{
    const place *p = to;
    const int64_t row = p->a->begins[p->window] * p->a->channels;
    const int status = lm_model_fetch(p->model, p->a->q[layer] + row * p->a->heads_q, heads->q, error);
    return status ? status : lm_model_fetch(p->model, p->a->k[layer] + row * p->a->heads_kv, heads->k, error);
}

static int read_windows(activations *a, const lm_model *m, const int32_t *ids, void (*read)(void *to),
                        void *to, io_error *error)
{
    lm_capture *capture;
    place at = { a, m, 0 };
    int status = lm_capture_open(&capture, m, a->tokens, error);
    for (; !status && at.window < a->windows; at.window++) {
        const int64_t begin = a->begins[at.window];
        status = lm_capture_read(capture, ids + begin, a->begins[at.window + 1] - begin, fetch, &at, error);
        if (!status && read) read(to);
    }
    lm_capture_close(capture);
    return status;
}

static activations shape_of(const lm_model *m, int64_t windows, int64_t tokens)
{
    const lm_config *c = lm_model_config(m);
    return (activations){ .layers = c->layers,
                          .heads_q = c->heads_q,
                          .heads_kv = c->heads_kv,
                          .channels = c->head_dim,
                          .windows = windows,
                          .tokens = tokens,
                          .causal = c->architecture != LM_BERT };
}

static int open_all(activations *a, const lm_model *m, const int32_t *ids, const int64_t *lengths,
                    void (*read)(void *to), void *to, io_error *error)
{
    int status = take_begins(a, lengths) && take(a)
                     ? 0
                     : io_fail(error, EXIT_INTERNAL, "out of memory for queries and keys of %lld windows",
                               (long long)a->windows);
    for (int64_t layer = 0; !status && layer < a->layers; layer++)
        a->scale[layer] = lm_config_scale(lm_model_config(m), layer);
    if (!status) status = read_windows(a, m, ids, read, to, error);
    if (status) activations_close(a);
    return status;
}

int activations_open(activations *a, const lm_model *m, const int32_t *ids, int64_t windows, int64_t tokens,
                     void (*read)(void *to), void *to, io_error *error)
{
    *a = shape_of(m, windows, tokens);
    return open_all(a, m, ids, NULL, read, to, error);
}

int activations_open_texts(activations *a, const lm_model *m, const int32_t *ids, const int64_t *lengths,
                           int64_t windows, void (*read)(void *to), void *to, io_error *error)
{
    *a = shape_of(m, windows, 0);
    return open_all(a, m, ids, lengths, read, to, error);
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
    free(a->begins);
    *a = (activations){ 0 };
}

dof_text activations_text(const activations *a, int64_t layer, int64_t head, int64_t window)
{
    const int64_t row = a->begins[window], key_head = head / (a->heads_q / a->heads_kv);
    return (dof_text){ .q = a->q[layer] + (row * a->heads_q + head) * a->channels,
                       .k = a->k[layer] + (row * a->heads_kv + key_head) * a->channels,
                       .q_row = a->heads_q * a->channels,
                       .k_row = a->heads_kv * a->channels,
                       .count = a->begins[window + 1] - row,
                       .scale = a->scale[layer],
                       .causal = a->causal };
}

bool activations_even(const activations *a) { return a->begins[a->windows] == a->windows * a->tokens; }
