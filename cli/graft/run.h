/* SPDX-License-Identifier: MIT
 * All runs of a plan, one after another. */
#ifndef LOAM_CLI_GRAFT_RUN_H
#define LOAM_CLI_GRAFT_RUN_H

#include "cli/graft/results.h"

typedef struct graft_runner {
    const machine *on;
    const lm_files *files;
    const char *directory, *state; /* of checkpoints; of what is finished */
    const char *from;              /* the model's name in checkpoints */
    double interval, seconds;      /* between checkpoints; of all */
    bool restart;                  /* checkpoints that are there are discarded */
} graft_runner;

/* Goes on with what is not finished. *whole: nothing is left. */
int graft_run(const graft_runner *with, graft_results *r, bool *whole, io_error *error);

#endif
