/* SPDX-License-Identifier: MIT
 * The data of the test-time regression task: a sequence of segments, each with its own cone of keys and its
 * own linear map from keys to values. */
#ifndef LOAM_CLI_EXPERIMENT_TASK_H
#define LOAM_CLI_EXPERIMENT_TASK_H

#include "io/error.h"
#include "random/random.h"

#include <stdint.h>

enum { TASK_MAX_LENGTH = 1 << 16 };

typedef struct experiment_task {
    int64_t dim, segment, length; /* segment * 2^m == length with m <= dim: see task_check */
    double noise;                 /* standard deviation added to each value channel */
    uint64_t seed;
} experiment_task;

typedef enum task_purpose { FOR_KEYS, FOR_MAPS, FOR_NOISE, FOR_GUESSES } task_purpose;

/* The numbers of one purpose in one sequence; a segment of 0 is the smooth task's. */
random_stream task_stream(const experiment_task *task, int64_t sequence, task_purpose use);

int task_check(const experiment_task *task, io_error *error);

/* keys, values: [length, dim]. Segment c = 1 .. 2^m draws keys N(0, I) whose first m channels then get the
 * signs of the bits of c (1: plus), and a matrix A of N(0, 1) entries: v = A k + noise * N(0, I).
 * map: [dim, dim], scratch. */
void task_generate(const experiment_task *task, int64_t sequence, double *keys, double *values, double *map);

/* What the random predictor says for this sequence: N(0, I), [length, dim]. */
void task_guess(const experiment_task *task, int64_t sequence, double *guess);

#endif
