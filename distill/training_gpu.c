/* SPDX-License-Identifier: MIT */
#include "distill/training_gpu.h"

#include "distill/gains.h"

#include <math.h>
#include <stdlib.h>

/* Called twice: to add up the memory, and to take it (train/machine.h). */
static void take_arrays(training_gpu *g, const training *t)
{
    for (int64_t i = 0; i < g->layers; i++)
        for (int which = 0; which < 2; which++) {
            parameter *const p = which ? &g->log_alpha[i] : &g->z[i];
            const matrix of = which ? t->log_alpha[i].x : t->z[i].x;
            matrix *const all[] = { &p->x, &p->g, &p->m, &p->v };
            for (size_t n = 0; n < sizeof all / sizeof *all; n++)
                *all[n] = memory_matrix(&g->room, LOAM_F32, 1, of.rows, of.width);
        }
}

/* Head h of a layer has rows h M .. of z, and row h of log alpha. */
static void list_heads(training_gpu *g, const student *s)
{
    for (int64_t n = 0; n < s->layers * s->heads; n++) {
        const int64_t layer = n / s->heads, h = n % s->heads, M = s->layer[layer].features, d = s->channels;
        const parameter *z = &g->z[layer], *log_alpha = &g->log_alpha[layer];
        g->head[n] = (feature_head){ .z = (float *)z->x.data + h * M * d,
                                     .log_alpha = (float *)log_alpha->x.data + h * M,
                                     .grad_z = (float *)z->g.data + h * M * d,
                                     .grad_log_alpha = (float *)log_alpha->g.data + h * M,
                                     .features = s->layer[layer].used[h] };
    }
}

static int64_t most_numbers(const training *t)
{
    int64_t most = t->s->layers * t->s->heads;
    for (int64_t i = 0; i < t->s->layers; i++)
        if (matrix_elements(t->z[i].x) > most) most = matrix_elements(t->z[i].x);
    return most;
}

static bool take(training_gpu *g, const training *t)
{
    const student *s = t->s;
    const size_t layers = (size_t)s->layers;
    g->z = calloc(layers, sizeof *g->z);
    g->log_alpha = calloc(layers, sizeof *g->log_alpha);
    g->head = calloc(layers * (size_t)s->heads, sizeof *g->head);
    g->chosen = calloc((size_t)t->options.batch, sizeof *g->chosen);
    g->staged = calloc((size_t)most_numbers(t), sizeof *g->staged);
    g->gain = calloc(layers * (size_t)(s->heads * s->queries), sizeof *g->gain);
    if (!g->z || !g->log_alpha || !g->head || !g->chosen || !g->staged || !g->gain) return false;
    take_arrays(g, t);
    if (!memory_open(&g->room, g->on)) return false;
    take_arrays(g, t);
    list_heads(g, s);
    for (int64_t n = 0; n < s->layers * s->heads * s->queries; n++) {
        const int64_t place = n / s->queries;
        g->gain[n] = (float)student_gain_of_used(s, place / s->heads, place % s->heads, n % s->queries);
    }
    g->losses = (feature_losses){ .on = g->on,
                                  .kind = t->options.loss,
                                  .causal = t->a->causal,
                                  .tokens = t->a->tokens,
                                  .channels = s->channels,
                                  .heads = s->layers * s->heads,
                                  .queries = s->queries,
                                  .windows = t->a->windows,
                                  .batch = t->options.batch,
                                  .sinks = t->options.sinks,
                                  .window = t->options.window,
                                  .gain = g->gain };
    return feature_losses_open(&g->losses, g->head);
}

/* ---- x and y of all windows */

/* Queries and keys of one layer, and the map of one head. */
typedef struct loading {
    memory room;
    float *q, *k, *matrix, *shift;
} loading;

static void take_loading(loading *l, const activations *a)
{
    const int64_t rows = a->windows * a->tokens, d = a->channels;
    l->q = memory_take(&l->room, rows * a->heads_q, (size_t)d * sizeof *l->q);
    l->k = memory_take(&l->room, rows * a->heads_kv, (size_t)d * sizeof *l->k);
    l->matrix = memory_take(&l->room, d * d, sizeof *l->matrix);
    l->shift = memory_take(&l->room, d, sizeof *l->shift);
}

/* In float32, `staged` on the way. */
static void send_numbers(const machine *on, float *to, const double *x, int64_t count, float *staged)
{
    for (int64_t i = 0; i < count; i++)
        staged[i] = (float)x[i];
    machine_upload(on, to, staged, (size_t)count * sizeof *staged);
}

static void map_head(const training *t, const loading *l, int64_t layer, int64_t head)
{
    const student *s = t->s;
    const activations *a = t->a;
    const int64_t d = s->channels, n = s->queries, group = a->heads_q / a->heads_kv;
    training_gpu *const g = t->gpu;
    feature_rows from = { .row = a->heads_q * d,
                          .count = a->windows * a->tokens,
                          .matrix = l->matrix,
                          .factor = sqrt(a->scale[layer]) };
    float staged[LOAM_MAX_DIM];
    for (int64_t c = 0; c < d; c++)
        send_numbers(g->on, l->matrix + c * d, s->layer[layer].balance + (head * d + c) * d, d, staged);
    for (int64_t i = 0; i < n; i++) {
        from.x = l->q + (head * n + i) * d;
        feature_losses_rows(&g->losses, layer * s->heads + head, i, &from);
    }
    for (int64_t c = 0; c < d; c++)
        send_numbers(g->on, l->matrix + c * d, s->layer[layer].balance_keys + (head * d + c) * d, d, staged);
    send_numbers(g->on, l->shift, s->layer[layer].shift + head * d, d, staged);
    from.x = l->k + head * n / group * d;
    from.row = a->heads_kv * d, from.shift = l->shift;
    feature_losses_rows(&g->losses, layer * s->heads + head, -1, &from);
}

static bool map_all(const training *t)
{
    const activations *a = t->a;
    const machine *on = t->gpu->on;
    const size_t bytes = (size_t)(a->windows * a->tokens * a->channels) * sizeof(float);
    loading l = { 0 };
    take_loading(&l, a);
    if (!memory_open(&l.room, on)) return false;
    take_loading(&l, a);
    for (int64_t layer = 0; layer < a->layers; layer++) {
        machine_upload(on, l.q, a->q[layer], bytes * (size_t)a->heads_q);
        machine_upload(on, l.k, a->k[layer], bytes * (size_t)a->heads_kv);
        for (int64_t head = 0; head < t->s->heads; head++)
            map_head(t, &l, layer, head);
    }
    feature_losses_prepare(&t->gpu->losses);
    memory_close(&l.room);
    return true;
}

int training_gpu_open(training *t, io_error *error)
{
    if (!activations_even(t->a))
        return io_fail(error, EXIT_USAGE,
                       "training on a GPU: texts of different lengths; expected one length");
    if (t->untied)
        return io_fail(error, EXIT_USAGE,
                       "training on a GPU: untied features; expected queries and keys alike");
    training_gpu *const g = calloc(1, sizeof *g);
    if (!g) return io_fail(error, EXIT_INTERNAL, "out of memory for training on a GPU");
    *g = (training_gpu){ .on = t->options.gpu, .layers = t->s->layers };
    t->gpu = g;
    if (!take(g, t) || !map_all(t))
        return io_fail(error, EXIT_INTERNAL,
                       "out of memory on the GPU for queries and keys of %lld tokens; take fewer --windows",
                       (long long)(t->a->windows * t->a->tokens));
    training_gpu_send(t);
    return training_gpu_fetch(t, error);
}

void training_gpu_close(training_gpu *g)
{
    if (!g) return;
    feature_losses_close(&g->losses);
    memory_close(&g->room);
    free(g->z);
    free(g->log_alpha);
    free(g->head);
    free(g->chosen);
    free(g->staged);
    free(g->gain);
    free(g);
}

/* ---- steps */

void training_gpu_gradients(training_gpu *g, const int64_t *windows)
{
    for (int64_t i = 0; i < g->losses.batch; i++)
        g->chosen[i] = (int32_t)windows[i];
    feature_losses_run(&g->losses, g->chosen);
}

void training_gpu_send(const training *t)
{
    const training_gpu *g = t->gpu;
    for (int64_t i = 0; i < g->layers; i++)
        for (int which = 0; which < 2; which++) {
            const parameter *to = which ? &g->log_alpha[i] : &g->z[i];
            const parameter *from = which ? &t->log_alpha[i] : &t->z[i];
            const int64_t count = matrix_elements(to->x);
            send_numbers(g->on, to->x.data, from->x.data, count, g->staged);
            send_numbers(g->on, to->m.data, from->m.data, count, g->staged);
            send_numbers(g->on, to->v.data, from->v.data, count, g->staged);
        }
}

static loam_status fetch_numbers(const training_gpu *g, double *to, const void *from, int64_t count,
                                 loam_error *reason)
{
    const loam_status status = machine_download(g->on, g->staged, from, (size_t)count * sizeof *g->staged,
                                                reason);
    for (int64_t i = 0; !status && i < count; i++)
        to[i] = (double)g->staged[i];
    return status;
}

static loam_status fetch_parameter(const training_gpu *g, const parameter *to, const parameter *from,
                                   loam_error *reason)
{
    const int64_t count = matrix_elements(to->x);
    loam_status status = fetch_numbers(g, to->x.data, from->x.data, count, reason);
    if (!status) status = fetch_numbers(g, to->m.data, from->m.data, count, reason);
    return status ? status : fetch_numbers(g, to->v.data, from->v.data, count, reason);
}

int training_gpu_fetch(training *t, io_error *error)
{
    const training_gpu *g = t->gpu;
    loam_error reason;
    loam_status status = fetch_numbers(g, t->losses, g->losses.losses, g->losses.heads, &reason);
    for (int64_t i = 0; !status && i < g->layers; i++) {
        status = fetch_parameter(g, &t->z[i], &g->z[i], &reason);
        if (!status) status = fetch_parameter(g, &t->log_alpha[i], &g->log_alpha[i], &reason);
    }
    return status ? io_fail(error, EXIT_INTERNAL, "training on the GPU: %s", reason.text) : 0;
}
