/* SPDX-License-Identifier: MIT
 * Errors against the number of pairs, at the bandwidth that has the least error and at the one that
 * cross-validation chooses, and the slopes of their logarithms. */
#ifndef LOAM_CLI_EXPERIMENT_RATES_SWEEP_H
#define LOAM_CLI_EXPERIMENT_RATES_SWEEP_H

#include "cli/experiment/options.h"
#include "cli/experiment/rates_fit.h"

enum { RATES_STEPS = 32 };

typedef struct rates_line {
    rates_estimator estimator;
    bool validated; /* the bandwidth by cross-validation on each repetition, else by the mean error itself */
} rates_line;

/* Those that are validated last. */
enum { RATES_LINES = 5, RATES_ORACLES = 3 };
extern const rates_line rates_lines[RATES_LINES];

typedef double rates_errors_at[RATES_REGIONS][RATES_DRAWS];

/* at[step][repetition], for `done` repetitions; a line without a choice of bandwidths, and one where each draw has
 * its own, uses step 0. */
typedef struct rates_curve {
    rates_errors_at *at[RATES_STEPS];
    int64_t done[RATES_STEPS];
} rates_curve;

typedef struct rates_cell {
    rates_task task;
    rates_curve curves[RATES_LINES];
    double log_bandwidth[RATES_LINES]; /* validated: the mean over the repetitions */
} rates_cell;

/* All numbers of pairs of one dimension. */
typedef struct rates_sweep {
    rates_engine engine;
    int64_t least, most; /* repetitions */
    double tolerance;    /* of the slopes of the oracles over all of D: repetitions end below it */
    bool validate;
    rates_cell cells[EXPERIMENT_LIST];
    int cell_count;
    int64_t repetitions; /* that were made */
} rates_sweep;

/* 0.02 * 1.2^step * n^(-1 / (d + 3.5)) */
double rates_bandwidth(const rates_task *task, int step);

int rates_sweep_run(rates_sweep *s, io_error *error);
void rates_sweep_free(rates_sweep *s);

/* 3, or 5 where bandwidths were validated. */
int rates_line_count(const rates_sweep *s);

typedef struct rates_point {
    double error, deviation; /* the mean over the repetitions, and its standard error */
    double bandwidth;        /* NaN for the global line; validated: the geometric mean */
} rates_point;

rates_point rates_point_of(const rates_sweep *s, int cell, int line, rates_region region);

typedef struct rates_slope {
    double slope,
        deviation; /* by leaving out each repetition in turn, the choice of the bandwidth included */
} rates_slope;

rates_slope rates_slope_of(const rates_sweep *s, int line, rates_region region);

/* What the propositions say of the slope. */
double rates_theory(const rates_task *task, rates_estimator which, rates_region region);

#endif
