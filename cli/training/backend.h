/* SPDX-License-Identifier: MIT
 * Where models are trained. */
#ifndef LOAM_CLI_TRAINING_BACKEND_H
#define LOAM_CLI_TRAINING_BACKEND_H

#include "cli/backend.h"
#include "train/machine.h"

/* threads 0: all. */
int backend_open(backend b, int threads, machine *on, io_error *error);

#endif
