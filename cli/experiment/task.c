/* SPDX-License-Identifier: MIT */
#include "cli/experiment/task.h"

#include <inttypes.h>
#include <math.h>

/* Sequences below 2^32, segments below 2^20, dimensions below 2^10: no two streams are the same. */
random_stream task_stream(const experiment_task *task, int64_t sequence, task_purpose use)
{
    const uint64_t stream = (uint64_t)sequence << 32 | (uint64_t)task->segment << 12 |
                            (uint64_t)task->dim << 2 | (uint64_t)use;
    return (random_stream){ task->seed, stream };
}

/* log2(length / segment), or -1 where that is no whole number. */
static int cone_channels(const experiment_task *task)
{
    if (task->segment < 1 || task->length % task->segment != 0) return -1;
    int channels = 0;
    int64_t segments = task->length / task->segment;
    for (; segments > 1 && segments % 2 == 0; segments /= 2)
        channels++;
    return segments == 1 ? channels : -1;
}

int task_check(const experiment_task *task, io_error *error)
{
    const int channels = cone_channels(task);
    if (channels < 0)
        return io_fail(error, EXIT_USAGE,
                       "segment %" PRId64 " and length %" PRId64
                       ": the length must be the segment times a power of two",
                       task->segment, task->length);
    if (channels > task->dim)
        return io_fail(error, EXIT_USAGE,
                       "d = %" PRId64 " is too small for %" PRId64
                       " segments: their cones need at least %d dimensions",
                       task->dim, task->length / task->segment, channels);
    return EXIT_OK;
}

static void generate_segment(const experiment_task *task, int64_t index, int channels, const double *map,
                             double *keys, double *values)
{
    const int64_t d = task->dim;
    for (int64_t i = 0; i < task->segment; i++) {
        double *key = keys + i * d, *value = values + i * d;
        for (int b = 0; b < channels; b++)
            key[b] = (index + 1) >> b & 1 ? fabs(key[b]) : -fabs(key[b]);
        for (int64_t a = 0; a < d; a++)
            value[a] *= task->noise;
        for (int64_t b = 0; b < d; b++)
            for (int64_t a = 0; a < d; a++)
                value[a] += map[b * d + a] * key[b];
    }
}

void task_generate(const experiment_task *task, int64_t sequence, double *keys, double *values, double *map)
{
    const int64_t d = task->dim, step = task->segment * d;
    const int channels = cone_channels(task);
    random_normals(task_stream(task, sequence, FOR_KEYS), 0, task->length * d, keys);
    random_normals(task_stream(task, sequence, FOR_NOISE), 0, task->length * d, values);
    for (int64_t index = 0; index < task->length / task->segment; index++) {
        random_normals(task_stream(task, sequence, FOR_MAPS), (uint64_t)(index * d * d), d * d, map);
        generate_segment(task, index, channels, map, keys + index * step, values + index * step);
    }
}

void task_guess(const experiment_task *task, int64_t sequence, double *guess)
{
    random_normals(task_stream(task, sequence, FOR_GUESSES), 0, task->length * task->dim, guess);
}
