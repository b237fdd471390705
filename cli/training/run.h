/* SPDX-License-Identifier: MIT
 * Runs the stacks of a plan, one after another, as far as the time goes. */
#ifndef LOAM_CLI_TRAINING_RUN_H
#define LOAM_CLI_TRAINING_RUN_H

#include "cli/training/pace.h"
#include "cli/training/results.h"

/* Told after each test of a stack, whose model is then as the test left it. */
typedef int runner_tested(void *with, plan_stack stack, const trainer *t, io_error *error);

/* Told of a stack that has been opened, before it goes on from its checkpoint. */
typedef int runner_opened(void *with, plan_stack stack, const trainer *t, io_error *error);

typedef struct runner {
    const machine *on;
    const char *directory; /* of the state, exists */
    double interval;       /* seconds between checkpoints */
    double seconds;        /* after which it ends, from `begun` on; INFINITY: none */
    double begun;          /* by trainer_clock */
    runner_tested *tested; /* NULL: none */
    runner_opened *opened; /* likewise */
    void *with;
    bool keep; /* the checkpoints of finished stacks */
} runner;

/* The measured pace of all stacks that are not finished, and the seconds that they will take; on standard
 * output as a table with `told`. */
int runner_plan(const runner *with, const plan *p, pace *at, double *left, bool told, io_error *error);

/* Goes on from what the directory holds. *whole: all stacks are finished, and *r has the records. */
int runner_run(const runner *with, const pace *at, results *r, bool *whole, io_error *error);

#endif
