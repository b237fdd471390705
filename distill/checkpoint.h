/* SPDX-License-Identifier: MIT
 * A student and the state of its training in a .safetensors file, from which it goes on with the very same
 * bits. */
#ifndef LOAM_DISTILL_CHECKPOINT_H
#define LOAM_DISTILL_CHECKPOINT_H

#include "distill/training.h"

/* Written whole or not at all. */
int training_save(training *t, const char *path, io_error *error);
/* *found says whether there is such a file; if so *t, just opened, goes on from it. A file of a run with
 * other options, or whose calibration is not the student's, as of other texts or another model, is an error
 * and leaves *t alone. */
int training_load(training *t, const char *path, bool *found, io_error *error);

#endif
