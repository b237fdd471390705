/* SPDX-License-Identifier: MIT
 * The choice of the estimators' settings: for each the one of a grid with the least error on held-out
 * sequences. */
#ifndef LOAM_CLI_EXPERIMENT_TUNE_H
#define LOAM_CLI_EXPERIMENT_TUNE_H

#include "cli/experiment/estimate.h"

#include <stdbool.h>

/* Candidate number `index` of an estimator, in *setup; false where there is none. What the grid does not vary
 * stays as it is. Bandwidths are those of a Gaussian, in units of the keys. */
bool tune_candidate(estimator which, int index, int64_t dim, estimate_setup *setup);

/* *setup becomes the best candidate by the mean squared distance of the outputs from `truth`, which is laid
 * out as the batch's values. */
int tune_estimator(estimator which, const estimate_batch *batch, const double *truth, estimate_setup *setup,
                   io_error *error);

/* The bandwidth of a setup, as the grid has it. */
double tune_bandwidth(const estimate_setup *setup, int64_t dim);

#endif
