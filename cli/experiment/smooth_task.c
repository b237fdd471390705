/* SPDX-License-Identifier: MIT */
#include "cli/experiment/smooth_task.h"

#include <math.h>
#include <stdlib.h>

enum { WAVES = 256 };

/* sqrt(3) erf(z / sqrt(2)) of a normal deviate z is uniform with variance 1. */
static void generate_keys(const experiment_task *pairs, int64_t sequence, double *keys)
{
    const int64_t count = pairs->length * pairs->dim;
    random_normals(task_stream(pairs, sequence, FOR_KEYS), 0, count, keys);
    for (int64_t i = 0; i < count; i++)
        keys[i] = i % pairs->dim == 0 ? 1 : sqrt(3) * erf(keys[i] / sqrt(2));
}

/* The frequencies are common to the channels, the amplitudes [dim, 2 WAVES] of cosines and sines their own.
 * The wave of the constant channel is a phase. */
static void generate_truth(const smooth_task *task, const double *frequencies, const double *amplitudes,
                           const double *key, double *truth)
{
    const int64_t d = task->pairs.dim;
    for (int64_t c = 0; c < d; c++)
        truth[c] = 0;
    for (int64_t w = 0; w < WAVES; w++) {
        double angle = 0;
        for (int64_t a = 0; a < d; a++)
            angle += frequencies[w * d + a] * key[a] / task->scale;
        const double cosine = cos(angle) / sqrt(WAVES), sine = sin(angle) / sqrt(WAVES);
        for (int64_t c = 0; c < d; c++)
            truth[c] += amplitudes[2 * (c * WAVES + w)] * cosine + amplitudes[2 * (c * WAVES + w) + 1] * sine;
    }
}

int smooth_generate(const smooth_task *task, int64_t sequence, double *keys, double *truth, double *values,
                    io_error *error)
{
    const experiment_task *pairs = &task->pairs;
    const int64_t d = pairs->dim, count = pairs->length * d;
    double *waves = calloc((size_t)(3 * WAVES * d), sizeof *waves);
    if (!waves) return io_fail(error, EXIT_INTERNAL, "out of memory");
    random_normals(task_stream(pairs, sequence, FOR_MAPS), 0, 3 * WAVES * d, waves);
    generate_keys(pairs, sequence, keys);
    random_normals(task_stream(pairs, sequence, FOR_NOISE), 0, count, values);
    for (int64_t i = 0; i < count; i += d)
        generate_truth(task, waves, waves + WAVES * d, keys + i, truth + i);
    for (int64_t i = 0; i < count; i++)
        values[i] = truth[i] + pairs->noise * values[i];
    free(waves);
    return EXIT_OK;
}
