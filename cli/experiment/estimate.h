/* SPDX-License-Identifier: MIT
 * The estimators of the test-time regression task, and their squared errors, on a batch of sequences. */
#ifndef LOAM_CLI_EXPERIMENT_ESTIMATE_H
#define LOAM_CLI_EXPERIMENT_ESTIMATE_H

#include "cli/experiment/task.h"
#include "loam.h"

typedef enum estimator {
    ESTIMATOR_LLA,
    ESTIMATOR_SOFTMAX,
    ESTIMATOR_MESA,   /* gates 1 */
    ESTIMATOR_LINEAR, /* divided by the number of pairs seen */
    ESTIMATOR_DELTA,  /* this and the next two: betas by the length of the key, fixed decays */
    ESTIMATOR_GATED_DELTA,
    ESTIMATOR_KDA,
    ESTIMATOR_RANDOM, /* the only one that is not of loam.h */
    ESTIMATORS
} estimator;

extern const char *const estimator_names[ESTIMATORS + 1];

typedef struct estimate_setup {
    loam_score score;
    double bandwidth; /* the scale of the scores is 1 / (bandwidth * sqrt(dim)) */
    double ridge;
    loam_ridge_unit ridge_unit;
    double mesa_ridge;
    double strength; /* of the delta rules: beta = strength / |k|^2 */
    double forget;   /* what the gated ones lose at each pair, in units of what the regression task has */
    loam_backend backend; /* LOAM_BACKEND_REFERENCE works on float64, the others on float32 */
    int threads;
} estimate_setup;

/* Sequences first .. first + count - 1 of a task; keys are the queries too. */
typedef struct estimate_batch {
    experiment_task task;
    int64_t first, count;
    int hidden;            /* 1: position i sees the pairs before i only, and says 0 at i = 0 */
    double *keys, *values; /* [count, length, dim] */
} estimate_batch;

/* Fills keys and values from the task. */
int estimate_generate(const estimate_batch *batch, int threads, io_error *error);

/* outputs: [count, length, dim] */
int estimate_outputs(const estimate_setup *setup, estimator which, const estimate_batch *batch,
                     double *outputs, io_error *error);

/* errors: [count, length], |output - value|^2 summed over the channels. */
void estimate_errors(const estimate_batch *batch, const double *outputs, double *errors);

/* The kernels that a batch of this task would run, "lla_kernel softmax_kernel ...": two runs with the same
 * names and inputs give the same bits. */
int estimate_kernels(const estimate_setup *setup, const estimate_batch *batch, char *text, size_t size,
                     io_error *error);

#endif
