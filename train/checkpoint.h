/* SPDX-License-Identifier: MIT
 * A trainer in a .safetensors file, from which it goes on with the very same bits: parameters, moments,
 * records, sums since the last test, and the step, which with the seeds is all that the random numbers depend
 * on. One line of metadata names everything that the bits depend on. */
#ifndef LOAM_TRAIN_CHECKPOINT_H
#define LOAM_TRAIN_CHECKPOINT_H

#include "io/error.h"
#include "train/trainer.h"

enum { CHECKPOINT_SECONDS = 60 }; /* the usual interval */

/* Written whole or not at all. */
int checkpoint_save(const trainer *t, const char *path, io_error *error);
/* *found says whether there is such a file; if so *t, just opened, goes on from it. A file that is damaged,
 * or of a run with other options, kernels or version, is an error and leaves *t alone. */
int checkpoint_load(trainer *t, const char *path, bool *found, io_error *error);

/* Goes on from `path` where there is such a file, until the trainer, just opened, is finished or `seconds`
 * have passed; saves each time that `interval` seconds have passed, and in the end. */
int checkpoint_run(trainer *t, const char *path, double interval, double seconds, io_error *error);

#endif
