/* SPDX-License-Identifier: MIT
 * Pictures by gnuplot: the caller writes a script, with inline data, and gets a whole .svg or .png, or none. */
#ifndef LOAM_CLI_PLOT_H
#define LOAM_CLI_PLOT_H

#include "io/error.h"

#include <stdio.h>

typedef struct plot plot;

/* Starts a picture of width x height pixels; the ending of path (.svg or .png) chooses the format. The
 * terminal, output, fonts and a common style (colours 1.., grid, margins) are set already. */
int plot_open(plot **out, const char *path, int width, int height, io_error *error);
/* Where to write gnuplot commands. */
FILE *plot_script(plot *p);
/* Runs gnuplot and moves the picture to its place; frees the handle whatever happens. */
int plot_close(plot *p, io_error *error);
void plot_discard(plot *p); /* NULL is allowed */

#endif
