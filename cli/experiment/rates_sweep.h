/* SPDX-License-Identifier: MIT
 * Errors against the number of pairs, and the slopes of their logarithms. */
#ifndef LOAM_CLI_EXPERIMENT_RATES_SWEEP_H
#define LOAM_CLI_EXPERIMENT_RATES_SWEEP_H

#include "cli/experiment/options.h"
#include "cli/experiment/rates_cell.h"

/* All numbers of pairs of one dimension. */
typedef struct rates_sweep {
    rates_engine engine;
    int64_t least, most; /* repetitions */
    double tolerance;    /* of the slopes of the oracles over all of D: repetitions end below it */
    bool validate;
    rates_cell cells[EXPERIMENT_LIST];
    int cell_count;
    int64_t repetitions; /* that were made */
    double ridge_effect; /* the largest share by which a ridge 100 times smaller changes an error of LLA */
} rates_sweep;

int rates_sweep_run(rates_sweep *s, io_error *error);
void rates_sweep_free(rates_sweep *s);

/* RATES_ORACLES, or RATES_LINES where bandwidths were validated. */
int rates_line_count(const rates_sweep *s);

typedef struct rates_value {
    double value, deviation;
} rates_value;

/* The mean error over the repetitions and its standard error. */
rates_value rates_error_of(const rates_sweep *s, int cell, int line, rates_region region);
/* The slope of its logarithm on log n, by least squares; its standard error by leaving out each repetition in
 * turn. */
rates_value rates_slope_of(const rates_sweep *s, int line, rates_region region);
/* The slope of the best LL less that of the best NW, over all of D. */
rates_value rates_lead_of(const rates_sweep *s);

/* What the propositions say of the slope. */
double rates_theory(const rates_task *task, rates_estimator which, rates_region region);

#endif
