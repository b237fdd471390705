/* SPDX-License-Identifier: MIT
 * ridges.svg, temperatures.svg, both.svg and both-temperatures.svg: what each head of each layer has learned;
 * steps.svg: losses on the way. */
#ifndef LOAM_CLI_GRAFT_PICTURES_H
#define LOAM_CLI_GRAFT_PICTURES_H

#include "cli/graft/results.h"

int graft_draw(const graft_results *r, const char *directory, io_error *error);

#endif
