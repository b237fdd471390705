/* SPDX-License-Identifier: MIT
 * curve.svg, layers.svg, heads-30.svg: changes against the ridge, by one layer, by one head. */
#ifndef LOAM_CLI_RIDGE_PICTURES_H
#define LOAM_CLI_RIDGE_PICTURES_H

#include "cli/ridge/results.h"

int ridge_draw(const ridge_results *r, const char *directory, io_error *error);

#endif
