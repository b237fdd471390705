/* SPDX-License-Identifier: MIT
 * What the runs of a plan came to, and what is shown of it: mean over seeds, at the learning rate that was
 * best. */
#ifndef LOAM_CLI_TRAINING_RESULTS_H
#define LOAM_CLI_TRAINING_RESULTS_H

#include "cli/training/plan.h"
#include "io/error.h"

typedef struct results {
    const plan *plan;
    int64_t most;          /* records of a run */
    int64_t *counts;       /* [runs], fewer of a run that stopped early */
    train_record *records; /* [runs][most] */
    double *times;         /* [runs][most] ns a token of its stack */
} results;

int results_open(results *r, const plan *p, io_error *error);
void results_close(results *r);

train_record *results_record(const results *r, int64_t run, int64_t test);

/* The mean over seeds and its standard error; of one seed that over test examples. */
typedef struct result_value {
    double mean, error;
} result_value;

/* Where errors are compared, less is better; else shares of right answers are. */
bool results_are_errors(const plan *p);
bool results_better(const plan *p, double a, double b);

/* The rate whose mean over seeds and parts is best in the last test. */
int results_rate(const results *r, int mechanism, int cell);
/* There, after the last test: a part, or all parts together. */
result_value results_part(const results *r, int mechanism, int cell, int part);
result_value results_mean(const results *r, int mechanism, int cell);
/* There, after test 0, 1, ..; runs that stopped stay as they are. *step: steps taken. */
int64_t results_tests(const results *r, int mechanism, int cell);
double results_at(const results *r, int mechanism, int cell, int64_t test, double *step);
/* The test that was best. */
int64_t results_best_test(const results *r, int mechanism, int cell);
/* Answers are about as often right as by knowing no more than which ones occur in the example. */
bool results_on_plateau(const results *r, int mechanism, int cell, int part);

/* -1: it is not among those trained. */
int results_find(const plan *p, const char *mechanism);

#endif
