/* SPDX-License-Identifier: MIT
 * The pictures of trained experiments, after figures 5, 6 and 8 of Zuo et al. 2025: one for each length,
 * small enough for a telephone. */
#ifndef LOAM_CLI_TRAINING_PICTURES_H
#define LOAM_CLI_TRAINING_PICTURES_H

#include "cli/training/lines.h"
#include "cli/training/results.h"

typedef struct picture {
    char name[64]; /* of the file */
    char title[64];
    int first, count; /* cells */
    bool curve;       /* against steps; else against S or N */
} picture;

enum { PICTURES = 2 * PLAN_CELLS };

/* What there is to draw; returns how many. */
int pictures_list(const plan *p, picture *out);
int pictures_write(const results *r, const plan_lines *lines, const char *directory, io_error *error);

/* The name of a mechanism for people. */
const char *picture_mechanism(const char *name);

#endif
