/* SPDX-License-Identifier: MIT */
#include "distill/flushed.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

static const double least = -20; /* of the log of a gate */

/* Room of a thread: x, y [tokens][channels], a [tokens][M]. */
static size_t room_of(const student *s, const activations *a)
{
    int64_t most = 0;
    for (int64_t i = 0; i < s->layers; i++)
        most = s->layer[i].features > most ? s->layer[i].features : most;
    return (size_t)(a->tokens * (2 * s->channels + most));
}

/* logs [tokens][M] <- a_m = z_m . y - |y|^2 / 2 + log alpha_m. */
static void logarithms(const student_layer *l, int64_t head, const double *y, int64_t tokens, int64_t d,
                       double *logs)
{
    const int64_t M = l->used[head];
    const double *alpha = l->log_alpha + head * l->features;
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)tokens, (int)M, (int)d, 1, y, (int)d,
                (l->z_keys ? l->z_keys : l->z) + head * l->features * d, (int)d, 0, logs, (int)M);
    for (int64_t t = 0; t < tokens; t++) {
        const double half = cblas_ddot((int)d, y + t * d, 1, y + t * d, 1) / 2;
        for (int64_t m = 0; m < M; m++)
            logs[t * M + m] += alpha[m] - half;
    }
}

/* Tokens of a window after the first; logs of a token become the maximum up to it. */
static int64_t count_flushed(double *logs, int64_t tokens, int64_t M)
{
    int64_t count = 0;
    for (int64_t t = 0; t < tokens; t++) {
        double gate = 0;
        for (int64_t m = 0; m < M; m++) {
            const double before = t > 0 ? logs[(t - 1) * M + m] : -HUGE_VAL, up = ceil(logs[t * M + m]);
            logs[t * M + m] = fmax(before, up);
            if (t > 0) gate = fmin(gate, before - logs[t * M + m]);
        }
        count += gate < least;
    }
    return count;
}

static int64_t flushed_of(const student *s, const activations *a, int64_t layer, int64_t head, double *room)
{
    const int64_t d = s->channels;
    double *const y = room + a->tokens * d, *const logs = y + a->tokens * d;
    int64_t count = 0;
    for (int64_t w = 0; w < a->windows; w++) {
        const int64_t tokens = a->begins[w + 1] - a->begins[w];
        student_rows(s, a, layer, head, 0, w, room, y);
        logarithms(&s->layer[layer], head, y, tokens, d, logs);
        count += count_flushed(logs, tokens, s->layer[layer].used[head]);
    }
    return count;
}

int student_flushed(const student *s, const activations *a, int threads, double *layers, io_error *error)
{
    const int64_t heads = s->layers * s->heads;
    const size_t each = room_of(s, a);
    int64_t *const counts = calloc((size_t)heads, sizeof *counts);
    double *const rooms = calloc((size_t)threads, each * sizeof *rooms);
    const bool there = counts && rooms;
    /* Heads are shared out here. */
    openblas_set_num_threads(1);
    if (there) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t n = 0; n < heads; n++)
            counts[n] = flushed_of(s, a, n / s->heads, n % s->heads,
                                   rooms + (size_t)omp_get_thread_num() * each);
    }
    for (int64_t i = 0; there && i < s->layers; i++) {
        int64_t count = 0;
        for (int64_t head = 0; head < s->heads; head++)
            count += counts[i * s->heads + head];
        layers[i] = (double)count / (double)(s->heads * a->begins[a->windows]);
    }
    free(counts);
    free(rooms);
    return there ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for running maxima");
}
