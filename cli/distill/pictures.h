/* SPDX-License-Identifier: MIT */
#ifndef LOAM_CLI_DISTILL_PICTURES_H
#define LOAM_CLI_DISTILL_PICTURES_H

#include "cli/distill/cells.h"

/* nll-1.svg, dimensions-1.svg where a strategy shares features out, positions-1.svg where longer windows
 * were read, speed-1.svg where tokens were timed: of a model by its number. texts: paths of what is
 * predicted, with commas between. */
int distill_draw(const cells *c, const char *texts, int number, const char *directory, io_error *error);
/* The first cell trained by itself of a strategy; NULL: there is none. */
const cell *distill_shared(const cells *c, int how);

#endif
