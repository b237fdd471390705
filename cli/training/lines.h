/* SPDX-License-Identifier: MIT
 * What can be said of the tasks without training: lines to draw beside what models learn. All from the test
 * examples of a seed. */
#ifndef LOAM_CLI_TRAINING_LINES_H
#define LOAM_CLI_TRAINING_LINES_H

#include "cli/training/plan.h"
#include "io/error.h"

/* Mean squared errors at the queries, which see the context alone. Of softmax, LLA and the one map the
 * best of a grid on the same queries: weights exp(a q.k + b q.k) over the channels that tell segments
 * apart and over the others; ridges relative to normalised weights. */
typedef struct regression_lines {
    double zero; /* saying 0 */
    double softmax, lla;
    double map; /* ridge regression on all pairs */
    double
        own; /* ridge regression, noise^2 dim_x, on the pairs of the query's own segment: the best there is */
} regression_lines;

int lines_regression(const machine *on, const regression_shape *shape, uint64_t seed, int64_t examples,
                     regression_lines *lines, io_error *error);

enum { LINES_HOPS = 4 };

/* Shares of right answers where a place is followed backwards through the swaps that touch it, and no more
 * than 0, 1, .. of them. */
int lines_swaps(const swaps_shape *shape, uint64_t seed, int64_t examples, double right[LINES_HOPS],
                io_error *error);

/* Of each cell of a plan, what its task has. */
typedef struct plan_lines {
    regression_lines regression[PLAN_CELLS];
    double swaps[PLAN_CELLS][LINES_HOPS];
} plan_lines;

int lines_of_plan(const machine *on, const plan *p, plan_lines *lines, io_error *error);

#endif
