/* SPDX-License-Identifier: MIT
 * The pictures of a sweep, after figures 3, 4 and 7 of Zuo et al. 2025. */
#ifndef LOAM_CLI_EXPERIMENT_FIGURES_H
#define LOAM_CLI_EXPERIMENT_FIGURES_H

#include "cli/experiment_sweep.h"

/* Writes figure3, figure4 and figure7 as .svg and .png into the directory. Figure 7 is of the first setting
 * of the sweep; where there are two, figure7-hidden is of the other. */
int figures_write(const sweep *s, const char *directory, io_error *error);

#endif
