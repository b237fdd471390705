/* SPDX-License-Identifier: MIT
 * What was measured of a model as a file, from which a run goes on. */
#ifndef LOAM_CLI_DISTILL_KEPT_H
#define LOAM_CLI_DISTILL_KEPT_H

#include "cli/distill/cells.h"

/* What it has comes to what is known of cells that were opened for the model; no file: nothing does. One of
 * another line is an error. */
int kept_load(cells *c, const char *path, io_error *error);
/* Written whole or not at all. */
int kept_save(const cells *c, const char *path, io_error *error);

#endif
