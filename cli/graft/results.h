/* SPDX-License-Identifier: MIT
 * What runs came to, in a file until all are finished, and what is shown of it. */
#ifndef LOAM_CLI_GRAFT_RESULTS_H
#define LOAM_CLI_GRAFT_RESULTS_H

#include "cli/graft/plan.h"
#include "cli/ridge/results.h"

/* Of a test on the way: the numbers of train_record that are kept. */
enum { GRAFT_STEP, GRAFT_TRAIN, GRAFT_TEST, GRAFT_LENGTH, GRAFT_CURVE };

/* Numbers of one run; pointers into the results'. */
typedef struct graft_result {
    double *nll;     /* [windows], sums over their tokens; the first is NaN until the run is finished */
    double *away;    /* of its start: the largest change of a window's mean NLL from the model as it is */
    double *moved;   /* how many parameters move */
    double *seconds; /* a step */
    double *ridge, *temperature; /* [layers][heads]: 1 / softplus(s), 1 + t; NaN of kinds without */
    double *negative;            /* [layers], of Parallax: the share of weights below 0 */
    double *curve;               /* [tests][GRAFT_CURVE] */
} graft_result;

typedef struct graft_results {
    const graft_plan *plan;
    int64_t tests, size; /* numbers of a run */
    double *x;           /* [runs][size] */
    /* All that numbers depend on: what was asked for, and where they were made, "" while none is. */
    char line[2 * GRAFT_LINE], machine[GRAFT_LINE];
} graft_results;

int graft_results_open(graft_results *r, const graft_plan *p, io_error *error);
void graft_results_close(graft_results *r);

/* Runs are numbered: first the model as it is, then the kinds of each seed. */
int64_t graft_runs(const graft_plan *p);
int graft_run_kind(int64_t run);
int graft_run_seed(int64_t run); /* its place among the seeds */
bool graft_run_chosen(const graft_plan *p, int64_t run);
int64_t graft_run_of(const graft_plan *p, int kind, int seed);
graft_result graft_result_of(const graft_results *r, int64_t run);
bool graft_finished(const graft_results *r, int64_t run);
/* Nothing is left of what was asked for: then no machine is needed. */
bool graft_whole(const graft_results *r);

/* A file of another line is an error; none: nothing is finished. Sets the machine. */
int graft_results_load(graft_results *r, const char *path, io_error *error);
int graft_results_save(const graft_results *r, const char *path, io_error *error);

/* NLL of kind a less that of b, means over seeds, paired over windows. b < 0: itself. text < 0: of all. */
paired graft_difference(const graft_results *r, int a, int b, int text);

#endif
