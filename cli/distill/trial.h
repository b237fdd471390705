/* SPDX-License-Identifier: MIT
 * How a model predicts texts with one attention after another: sums of -log p by window, in pairs. */
#ifndef LOAM_CLI_DISTILL_TRIAL_H
#define LOAM_CLI_DISTILL_TRIAL_H

#include "cli/ridge/plan.h"

enum { TRIAL_ARMS = 32 };

typedef struct trial {
    const ridge_plan *plan; /* of its windows */
    scorer *scorer;
    int32_t *inputs;
    double *nll;
    int count;
    const char *names[TRIAL_ARMS];
    double *sums[TRIAL_ARMS]; /* [windows] */
} trial;

/* Plan and model must live as long. On failure *t is all zero. */
int trial_open(trial *t, const ridge_plan *p, const lm_model *m, io_error *error);
void trial_close(trial *t);

/* Reads all windows with this attention, as arm t->count, whose name lives as long; `told`, unless NULL, is
 * called with `to` after each. */
int trial_run(trial *t, const char *name, const lm_options *options, void (*told)(void *to), void *to,
              io_error *error);

/* Forgets the last arm. */
void trial_drop(trial *t);

/* The mean of -log p by token, and how much more that is than arm 0's, with one standard error over windows;
 * NaN of a single one. */
typedef struct trial_value {
    double mean, more, error;
} trial_value;
trial_value trial_value_of(const trial *t, int arm);

#endif
