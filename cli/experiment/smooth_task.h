/* SPDX-License-Identifier: MIT
 * The data of the smooth task: one smooth map for a whole sequence, seen through noise. */
#ifndef LOAM_CLI_EXPERIMENT_SMOOTH_TASK_H
#define LOAM_CLI_EXPERIMENT_SMOOTH_TASK_H

#include "cli/experiment/task.h"

/* pairs.dim = 1 + the inputs: the first channel of a key is 1, which gives linear maps an intercept and tells
 * a local estimator nothing. pairs.segment = 0. */
typedef struct smooth_task {
    experiment_task pairs;
    double scale; /* the distance over which the map changes, in standard deviations of an input */
} smooth_task;

/* keys, truth, values: [length, dim]. Inputs are uniform with mean 0 and variance 1. Each channel of the
 * truth is a draw of a Gaussian process whose covariance at x and y is exp(-|x - y|^2 / (2 scale^2)), made of
 * waves; values = truth + noise * N(0, I). */
int smooth_generate(const smooth_task *task, int64_t sequence, double *keys, double *truth, double *values,
                    io_error *error);

#endif
