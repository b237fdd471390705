/* SPDX-License-Identifier: MIT
 * How a model reads texts with one attention after another: sums of -log p by window, or, of an encoder, how
 * far the vector of each line turns, in pairs. */
#ifndef LOAM_CLI_DISTILL_TRIAL_H
#define LOAM_CLI_DISTILL_TRIAL_H

#include "cli/ridge/plan.h"

enum { TRIAL_ARMS = 32, TRIAL_PLACES = 16 };

typedef struct trial {
    const ridge_plan *plan; /* of its windows */
    const lm_model *model;
    scorer *scorer;  /* NULL of an encoder */
    lm_text *text;   /* the scorer's, or an encoder's own */
    int32_t *inputs; /* of windows that are read side by side */
    double *nll;
    float *base, *vector, *rows; /* an encoder's: [windows] of arm 0, of a window; rows in host memory */
    int count;
    const char *names[TRIAL_ARMS];
    double *sums[TRIAL_ARMS]; /* [windows]: -log p, or 1 less the cosine to the vector of arm 0 */
    double *places; /* NULL, or the caller's [windows][TRIAL_PLACES]: sums of the last arm by place */
} trial;

/* Plan and model must live as long. On failure *t is all zero. */
int trial_open(trial *t, const ridge_plan *p, const lm_model *m, io_error *error);
void trial_close(trial *t);

/* Reads all windows with this attention, as arm t->count, whose name lives as long; `told`, unless NULL, is
 * called with `to` after each. */
int trial_run(trial *t, const char *name, const lm_options *options, void (*told)(void *to), void *to,
              io_error *error);

/* Which part of windows, of TRIAL_PLACES equal ones, the i-th token that a window predicts is in. */
int64_t trial_place(const ridge_plan *p, int64_t window, int64_t i);

/* Forgets the last arm. */
void trial_drop(trial *t);

/* The mean of -log p by token, or of 1 - cosine by line, and how much more that is than arm 0's, with one
 * standard error over windows; NaN of a single one. */
typedef struct trial_value {
    double mean, more, error;
} trial_value;
trial_value trial_value_of(const trial *t, int arm);

#endif
