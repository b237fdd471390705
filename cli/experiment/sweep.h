/* SPDX-License-Identifier: MIT
 * The sweep over dimensions, segment sizes and settings: a cell for each, filled in chunks of sequences,
 * with its sums kept in a state file until the run is done. */
#ifndef LOAM_CLI_EXPERIMENT_SWEEP_H
#define LOAM_CLI_EXPERIMENT_SWEEP_H

#include "cli/experiment/moments.h"

#include <stdbool.h>

typedef struct sweep_cell {
    experiment_task task;
    int hidden;
    moments sums;
} sweep_cell;

typedef enum sweep_start {
    SWEEP_CONTINUE, /* where the state files stand, if there are any */
    SWEEP_RESUME,   /* likewise, but there must be some */
    SWEEP_RESTART   /* anew */
} sweep_start;

typedef struct sweep {
    estimate_setup setup;
    int64_t sequences;
    sweep_start start;
    const char *directory; /* of the state files; exists */
    sweep_cell *cells;     /* ordered: settings, then dimensions, then segments */
    int64_t cell_count;
} sweep;

/* Fills the sums of every cell. The same options give the same sums, bit for bit, for any number of threads
 * and however often the run is killed and started again. */
int sweep_run(sweep *s, io_error *error);

/* Removes the state files of the cells, and what a kill left of others. */
void sweep_forget(const sweep *s);

#endif
