/* SPDX-License-Identifier: MIT
 * The sums of one cell of the sweep in a file, so that a killed run continues with the very same bits. */
#ifndef LOAM_CLI_EXPERIMENT_STATE_H
#define LOAM_CLI_EXPERIMENT_STATE_H

#include "cli/experiment/moments.h"

#include <stdbool.h>

/* `inputs` is one line that names everything the sums depend on. */
int state_save(const char *path, const char *inputs, const moments *m, io_error *error);

/* *found says whether there is such a file; if so *m, made for the same length, gets its sums. A file that
 * is damaged, or whose inputs differ, is an error. */
int state_load(const char *path, const char *inputs, moments *m, bool *found, io_error *error);

#endif
