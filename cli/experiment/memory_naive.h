/* SPDX-License-Identifier: MIT
 * Local Linear Attention as its equations stand, by BLAS and LAPACK, with all that they name in memory. */
#ifndef LOAM_CLI_EXPERIMENT_MEMORY_NAIVE_H
#define LOAM_CLI_EXPERIMENT_MEMORY_NAIVE_H

#include <stddef.h>
#include <stdint.h>

/* All arrays [n, d]; the last two lines for the backward alone. */
typedef struct naive_task {
    int64_t n, d;
    float scale, ridge; /* of scores; added to Sigma_i */
    const float *q, *k, *v;
    float *o;
    const float *grad_o;
    float *grad_q, *grad_k, *grad_v;
} naive_task;

/* Floats of `room`. That of differences serves the backward too. */
int64_t naive_differences_room(int64_t n, int64_t d);
int64_t naive_systems_room(int64_t n, int64_t d);
int64_t naive_systems_backward_room(int64_t n, int64_t d);

/* 0, or the row, from 1, whose system is not positive definite. */
int64_t naive_differences(const naive_task *t, float *room);
int64_t naive_systems(const naive_task *t, float *room);

/* After the forward, from what it left in the same room. */
int64_t naive_differences_backward(const naive_task *t, float *room);
int64_t naive_systems_backward(const naive_task *t, float *room);

#endif
