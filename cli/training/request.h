/* SPDX-License-Identifier: MIT
 * The options of an experiment that trains, as a plan and how to run it. */
#ifndef LOAM_CLI_TRAINING_REQUEST_H
#define LOAM_CLI_TRAINING_REQUEST_H

#include "cli/training/backend.h"
#include "cli/training/plan.h"

typedef struct request {
    plan plan;
    const char *out;
    int64_t threads; /* 0: all */
    double minutes;  /* after which the run ends, to be continued; 0: none */
    double interval; /* seconds between checkpoints */
    double fit;      /* minutes that the plan may take, or it is made smaller; 0: as long as it takes */
    bool resume, restart;
    backend where;
} request;

/* *help: the options were told, and there is nothing to run. */
int request_read(request *r, train_task task, int argc, char **argv, bool *help, io_error *error);

#endif
