/* SPDX-License-Identifier: MIT
 * The errors at one number of pairs: by bandwidth, and at the bandwidths that are chosen. */
#ifndef LOAM_CLI_EXPERIMENT_RATES_CELL_H
#define LOAM_CLI_EXPERIMENT_RATES_CELL_H

#include "cli/experiment/rates_fit.h"
#include "cli/progress.h"

enum { RATES_STEPS = 32 };

typedef struct rates_line {
    rates_estimator estimator;
    bool
        validated; /* bandwidths by cross-validation, a draw its own; else each has that of its least error */
} rates_line;

/* Those that are validated last. */
enum { RATES_LINES = 5, RATES_ORACLES = 3 };
extern const rates_line rates_lines[RATES_LINES];

typedef double rates_draws[RATES_REGIONS][RATES_DRAWS];

/* at[step][repetition], for `done` repetitions. The global line, without bandwidth, has step 0 alone. */
typedef struct rates_curve {
    rates_draws *at[RATES_STEPS];
    int64_t done[RATES_STEPS];
} rates_curve;

typedef struct rates_cell {
    rates_task task;
    int64_t most; /* repetitions that there is room for */
    rates_curve curves[RATES_ESTIMATORS];
    /* [repetition], means over the draws; and the geometric means of what was chosen. */
    double (*errors[RATES_LINES])[RATES_REGIONS];
    double bandwidth[RATES_LINES][RATES_REGIONS];
} rates_cell;

/* 0.02 * 1.2^step * n^(-1 / (d + 3.5)) */
double rates_bandwidth(const rates_task *task, int step);

/* The errors of an oracle's line: bandwidths are tried around that with the least mean error. */
int rates_cell_fill(rates_cell *cell, const rates_engine *engine, int line, int64_t repetitions,
                    progress *bar, io_error *error);
/* Of a validated line, whose oracle has been filled. */
int rates_cell_validate(rates_cell *cell, const rates_engine *engine, int line, int64_t repetitions,
                        progress *bar, io_error *error);
void rates_cell_free(rates_cell *cell);

/* Evaluations of a line in one repetition, in most cells. */
enum { RATES_EVALUATIONS = 10 };

#endif
