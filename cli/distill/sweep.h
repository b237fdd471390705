/* SPDX-License-Identifier: MIT
 * All cells of a model, one after another, as far as the time goes. */
#ifndef LOAM_CLI_DISTILL_SWEEP_H
#define LOAM_CLI_DISTILL_SWEEP_H

#include "cli/distill/cells.h"

typedef struct distill_sweep_options {
    const course *course;
    const lm_words *words;
    const char *model, *directory;
    int number;           /* of the model, in the names of files */
    double interval, end; /* seconds between checkpoints; of lm_seconds, when it stops */
    bool restart;
    bool report; /* on what is done so far: nothing is run */
} distill_sweep_options;

/* Opens *c, which cells_close frees. *whole: nothing is left. */
int distill_sweep_run(const distill_sweep_options *with, cells *c, bool *whole, io_error *error);

#endif
