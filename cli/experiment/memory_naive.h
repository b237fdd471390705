/* SPDX-License-Identifier: MIT
 * Local Linear Attention as its equations stand, by BLAS and LAPACK, with all that they name in memory. */
#ifndef LOAM_CLI_EXPERIMENT_MEMORY_NAIVE_H
#define LOAM_CLI_EXPERIMENT_MEMORY_NAIVE_H

#include <stddef.h>
#include <stdint.h>

/* q, k, v, o: [n, d] */
typedef struct naive_task {
    int64_t n, d;
    float scale, ridge; /* of scores; added to Sigma_i */
    const float *q, *k, *v;
    float *o;
} naive_task;

/* Floats of `room`. */
int64_t naive_differences_room(int64_t n, int64_t d);
int64_t naive_systems_room(int64_t n, int64_t d);

/* 0, or the row, from 1, whose system is not positive definite. */
int64_t naive_differences(const naive_task *t, float *room);
int64_t naive_systems(const naive_task *t, float *room);

#endif
