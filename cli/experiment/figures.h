/* SPDX-License-Identifier: MIT
 * The pictures of the experiments. Each is small enough for a telephone and has its own legend; a mechanism
 * has the same colour and mark in all of them. */
#ifndef LOAM_CLI_EXPERIMENT_FIGURES_H
#define LOAM_CLI_EXPERIMENT_FIGURES_H

#include "cli/experiment/sweep.h"

/* The names of the estimators in pictures. */
extern const char *const figure_names[ESTIMATORS];

typedef struct figure_text {
    const char *title, *error; /* of the picture, and of the axis of errors */
    bool logarithmic;          /* positions */
} figure_text;

/* Mean errors over windows of positions, with 95 % bands. */
int figure_positions(const moments *sums, const figure_text *text, const char *path, io_error *error);

/* After figures 3, 4 and 7 of Zuo et al. 2025: position-dD-SS-OWN.svg for each cell of the sweep, and
 * ratio-SS-OWN.svg, the errors over that of LLA against d, for each segment size and setting. */
int figures_write(const sweep *s, const char *directory, io_error *error);

#endif
