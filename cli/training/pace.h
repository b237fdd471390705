/* SPDX-License-Identifier: MIT
 * How long the stacks of a plan will take: measured in a few steps of each mechanism and length. */
#ifndef LOAM_CLI_TRAINING_PACE_H
#define LOAM_CLI_TRAINING_PACE_H

#include "cli/training/plan.h"
#include "io/error.h"

typedef struct pace {
    double token[PLAN_MECHANISMS][PLAN_CELLS]; /* seconds of training; 0: not measured */
} pace;

/* Of the stack that begins with run `first`, where none of its mechanism and length has been measured yet. */
int pace_measure(pace *at, const plan *p, const machine *on, int64_t first, io_error *error);
/* Seconds of one step of a stack, and of all steps of one that has taken `done`. */
double pace_step(const pace *at, const plan *p, plan_stack stack);
double pace_left(const pace *at, const plan *p, plan_stack stack, int64_t done);

#endif
