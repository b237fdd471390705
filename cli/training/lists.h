/* SPDX-License-Identifier: MIT
 * Learning rates and seeds as options. */
#ifndef LOAM_CLI_TRAINING_LISTS_H
#define LOAM_CLI_TRAINING_LISTS_H

#include "cli/training/plan.h"
#include "io/error.h"

/* Ascending, PLAN_RATES at most. */
int lists_rates(const char *option, const char *text, double *rates, int *count, io_error *error);
/* Of --seed, PLAN_SEEDS at most. */
int lists_seeds(const char *text, plan *p, io_error *error);

#endif
