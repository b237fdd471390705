/* SPDX-License-Identifier: MIT */
#include "distill/training.h"

#include "distill/gains.h"
#include "distill/training_gpu.h"

#include "random/random.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

training_options training_options_default(void)
{
    return (training_options){
        .loss = FEATURE_LOSS_SOFTMAX, .steps = 2000, .batch = 8, .rate = 0.02, .rate_log_alpha = 0.05
    };
}

/* ---- open and close */

/* Called twice: to add up the memory, and to take it (train/machine.h). */
static void take_arrays(training *t)
{
    const student *s = t->s;
    for (int64_t i = 0; i < s->layers; i++) {
        const student_layer *l = &s->layer[i];
        const int64_t rows = s->heads * l->features;
        t->z[i].x = matrix_dense(l->z, LOAM_F64, 1, rows, s->channels);
        t->log_alpha[i].x = matrix_dense(l->log_alpha, LOAM_F64, 1, s->heads, l->features);
        if (t->untied) t->z_keys[i].x = matrix_dense(l->z_keys, LOAM_F64, 1, rows, s->channels);
        for (int which = 0; which < (t->untied ? 3 : 2); which++) {
            parameter *const p = which == 0 ? &t->z[i] : which == 1 ? &t->log_alpha[i] : &t->z_keys[i];
            p->g = memory_matrix(&t->room, LOAM_F64, 1, p->x.rows, p->x.width);
            p->m = memory_matrix(&t->room, LOAM_F64, 1, p->x.rows, p->x.width);
            p->v = memory_matrix(&t->room, LOAM_F64, 1, p->x.rows, p->x.width);
        }
    }
}

static int64_t tokens_of(const training *t, int64_t window)
{
    return t->a->begins[window + 1] - t->a->begins[window];
}

static feature_loss loss_of(const training *t, int64_t layer, int64_t head, int64_t tokens, const double *x,
                            const double *y)
{
    const student_layer *l = &t->s->layer[layer];
    return (feature_loss){ .kind = t->options.loss,
                           .causal = t->a->causal,
                           .largest = t->largest[layer * t->s->heads + head],
                           .sinks = t->options.sinks,
                           .window = t->options.window,
                           .tokens = tokens,
                           .channels = t->s->channels,
                           .features = l->used[head],
                           .x = x,
                           .y = y,
                           .z = l->z + head * l->features * t->s->channels,
                           .z_keys = l->z_keys ? l->z_keys + head * l->features * t->s->channels : NULL,
                           .log_alpha = l->log_alpha + head * l->features };
}

/* x and y of the longest window, and the workspace of its loss, of any layer. */
static size_t work_doubles(const training *t)
{
    size_t most = 0;
    for (int64_t i = 0; i < t->s->layers; i++) {
        const feature_loss loss = loss_of(t, i, 0, t->a->tokens, NULL, NULL);
        const size_t its = feature_loss_doubles(&loss);
        if (its > most) most = its;
    }
    return most + 2 * (size_t)(t->a->tokens * t->s->channels);
}

static bool take(training *t)
{
    const student *s = t->s;
    const size_t layers = (size_t)s->layers, heads = layers * (size_t)s->heads,
                 windows = (size_t)t->a->windows;
    t->untied = s->layer[0].z_keys != NULL;
    t->z = calloc((t->untied ? 2 : 1) * layers, sizeof *t->z);
    t->z_keys = t->z && t->untied ? t->z + layers : NULL;
    t->log_alpha = calloc(layers, sizeof *t->log_alpha);
    t->largest = calloc(heads, sizeof *t->largest);
    t->losses = calloc(heads, sizeof *t->losses);
    t->work = calloc((size_t)t->options.threads, sizeof *t->work);
    t->order = calloc(windows, sizeof *t->order);
    t->table = calloc(windows, sizeof *t->table);
    t->chosen = calloc((size_t)t->options.batch, sizeof *t->chosen);
    bool there = t->z && t->log_alpha && t->largest && t->losses && t->work && t->order && t->table &&
                 t->chosen;
    for (int i = 0; there && i < t->options.threads; i++)
        there = (t->work[i] = calloc(work_doubles(t), sizeof **t->work)) != NULL;
    if (!there) return false;
    take_arrays(t);
    if (!memory_open(&t->room, &t->on)) return false;
    take_arrays(t);
    return true;
}

static bool open_optimisers(training *t)
{
    const optimiser_options options = { .steps = t->options.steps, .clip = HUGE_VAL };
    const int layers = (int)t->s->layers;
    const machine *on = t->gpu ? t->options.gpu : &t->on;
    return optimiser_open(&t->of_z, on, t->gpu ? t->gpu->z : t->z, (t->untied ? 2 : 1) * layers, &options,
                          &t->options.rate, NULL) &&
           optimiser_open(&t->of_log_alpha, on, t->gpu ? t->gpu->log_alpha : t->log_alpha, layers, &options,
                          &t->options.rate_log_alpha, NULL);
}

/* The largest x . y that a query sees, of all windows. */
static void find_largest(training *t, int64_t place, double *work)
{
    const student *s = t->s;
    const int64_t d = s->channels;
    double *const x = work, *const y = x + t->a->tokens * d, most = -HUGE_VAL;
    for (int64_t n = 0; n < t->a->windows * s->queries; n++) {
        const int64_t window = n / s->queries, T = tokens_of(t, window);
        student_rows(s, t->a, place / s->heads, place % s->heads, n % s->queries, window, x, y);
        for (int64_t i = 0; i < T; i++)
            for (int64_t j = 0; j < (t->a->causal ? i + 1 : T); j++) {
                double product = 0;
                for (int64_t c = 0; c < d; c++)
                    product += x[i * d + c] * y[j * d + c];
                most = fmax(most, product);
            }
    }
    t->largest[place] = most;
}

int training_open(training *t, student *s, const activations *a, const training_options *options,
                  io_error *error)
{
    *t = (training){ .s = s, .a = a, .options = *options };
    if (options->steps < 1 || options->batch < 1 || options->batch > a->windows)
        return io_fail(error, EXIT_USAGE,
                       "%" PRId64 " steps of %" PRId64
                       " windows: expected at least one step, of 1 to %" PRId64 " windows",
                       options->steps, options->batch, a->windows);
    if (options->window > 0 && options->loss != FEATURE_LOSS_SOFTMAX)
        return io_fail(error, EXIT_USAGE, "features beside a window are trained by the softmax loss");
    t->on = machine_cpu(LOAM_F64, options->threads);
    t->options.threads = t->on.threads;
    int status = take(t) ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for the training of features");
    if (!status && options->gpu) status = training_gpu_open(t, error);
    if (!status && !open_optimisers(t))
        status = io_fail(error, EXIT_INTERNAL, "out of memory for the optimiser of features");
    if (status) training_close(t);
    if (status || t->gpu || options->loss != FEATURE_LOSS_L2) return status;
#pragma omp parallel for num_threads(t->options.threads) schedule(dynamic, 1)
    for (int64_t place = 0; place < s->layers * s->heads; place++)
        find_largest(t, place, t->work[omp_get_thread_num()]);
    return 0;
}

void training_close(training *t)
{
    for (int i = 0; t->work && i < t->options.threads; i++)
        free(t->work[i]);
    optimiser_close(&t->of_z);
    optimiser_close(&t->of_log_alpha);
    training_gpu_close(t->gpu);
    memory_close(&t->room);
    machine_close(&t->on);
    free(t->z);
    free(t->log_alpha);
    free(t->largest);
    free(t->losses);
    free(t->work);
    free(t->order);
    free(t->table);
    free(t->chosen);
    *t = (training){ 0 };
}

/* ---- steps */

int64_t training_taken(const training *t) { return t->of_z.step; }

/* Windows of the step: the next ones of endless passes, each in its own order. */
static void choose(training *t)
{
    const int64_t windows = t->a->windows;
    int64_t pass = -1;
    for (int64_t i = 0; i < t->options.batch; i++) {
        const int64_t at = training_taken(t) * t->options.batch + i;
        if (at / windows != pass) {
            pass = at / windows;
            random_distinct((random_stream){ t->options.seed, (uint64_t)pass }, windows, windows, t->table,
                            t->order);
        }
        t->chosen[i] = t->order[at % windows];
    }
}

static void head_gradients(training *t, int64_t layer, int64_t head, double *work)
{
    const student *s = t->s;
    const int64_t M = s->layer[layer].features, d = s->channels, rows = t->a->tokens * d;
    double *const x = work, *const y = x + rows, *const rest = y + rows, loss = 0;
    double *const grad_z = (double *)t->z[layer].g.data + head * M * d,
                  *const grad_log_alpha = (double *)t->log_alpha[layer].g.data + head * M,
                  *const grad_keys = t->untied ? (double *)t->z_keys[layer].g.data + head * M * d : NULL;
    const double part = 1 / (double)(t->options.batch * s->queries);
    memset(grad_z, 0, (size_t)(M * d) * sizeof *grad_z);
    memset(grad_log_alpha, 0, (size_t)M * sizeof *grad_log_alpha);
    if (grad_keys) memset(grad_keys, 0, (size_t)(M * d) * sizeof *grad_keys);
    for (int64_t i = 0; i < t->options.batch; i++) {
        feature_loss its = loss_of(t, layer, head, tokens_of(t, t->chosen[i]), x, y);
        for (int64_t n = 0; n < s->queries; n++) {
            student_rows(s, t->a, layer, head, n, t->chosen[i], x, n == 0 ? y : NULL);
            its.gain = student_gain_of_used(s, layer, head, n);
            loss += part * feature_loss_run(&its, grad_z, grad_keys, grad_log_alpha, rest);
        }
    }
    for (int64_t e = 0; e < M * d; e++)
        grad_z[e] *= part;
    for (int64_t e = 0; grad_keys && e < M * d; e++)
        grad_keys[e] *= part;
    for (int64_t e = 0; e < M; e++)
        grad_log_alpha[e] *= part;
    t->losses[layer * s->heads + head] = loss;
}

void training_step(training *t)
{
    const int64_t heads = t->s->layers * t->s->heads;
    choose(t);
    if (t->gpu) {
        training_gpu_gradients(t->gpu, t->chosen);
    } else {
#pragma omp parallel for num_threads(t->options.threads) schedule(dynamic, 1)
        for (int64_t place = 0; place < heads; place++)
            head_gradients(t, place / t->s->heads, place % t->s->heads, t->work[omp_get_thread_num()]);
    }
    optimiser_step(&t->of_z);
    optimiser_step(&t->of_log_alpha);
}

int training_fetch(training *t, io_error *error) { return t->gpu ? training_gpu_fetch(t, error) : 0; }
