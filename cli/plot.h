/* SPDX-License-Identifier: MIT
 * Pictures by gnuplot: the caller writes a script, with inline data, and gets a whole .svg or .png, or none.
 *
 * The script starts with the terminal and a common style: eight line types in colours that colour-blind
 * people can tell apart (1 blue, 2 vermilion, 3 green, 4 purple, 5 orange, 6 sky, 7 wine, 8 grey), a light
 * grid, axes left and below, and line types of the same number for points. It must not `set output`.
 *
 * One colour means one fit in every picture: blue a local line (LLA), vermilion a local constant (softmax),
 * green MesaNet, purple DeltaNet, orange linear attention, sky Gated DeltaNet, wine KDA, grey no fit. */
#ifndef LOAM_CLI_PLOT_H
#define LOAM_CLI_PLOT_H

#include "io/error.h"

#include <stdio.h>

typedef struct plot plot;

/* What would stop a picture at this path, known before any work is done: its ending, a missing gnuplot. */
int plot_check(const char *path, io_error *error);

/* Starts a picture of width x height pixels; the ending of path (.svg or .png) chooses the format. The
 * terminal, output, fonts and a common style (colours 1.., grid, margins) are set already. */
int plot_open(plot **out, const char *path, int width, int height, io_error *error);
/* Where to write gnuplot commands. */
FILE *plot_script(plot *p);
/* Writes `text` as a gnuplot string, 'it''s', without the marks of enhanced text having a meaning. */
void plot_quote(plot *p, const char *text);
/* Runs gnuplot and moves the picture to its place; frees the handle whatever happens. */
int plot_close(plot *p, io_error *error);
void plot_discard(plot *p); /* NULL is allowed */

#endif
