/* SPDX-License-Identifier: MIT
 * A case of PaTH scores: dense arrays of all that a pass reads
 * and writes, as double and in the types of the library. */
#ifndef TESTS_PATH_SCENE_H
#define TESTS_PATH_SCENE_H

#include "loam.h"

typedef enum part {
    Q,
    K,
    V,
    PROBE,
    W,
    GRAD_O,
    RIDGE,
    BETA,
    DECAY,
    SCENE_INPUTS,
    O = SCENE_INPUTS,
    DQ,
    DK,
    DV,
    DPROBE,
    DW,
    LSE,
    DBETA,
    DDECAY,
    DRIDGE,
    DSCALE,
    SCENE_PARTS
} part;

typedef struct scene {
    loam_problem p;
    double *x[SCENE_PARTS];
    int64_t size[SCENE_PARTS];
    int64_t cut; /* decode: 0, or the states of the keys before it and of the others, merged */
} scene;

/* N(0, 1), w of length 1, beta in 0 .. 2, log decays about -0.3, ridge 0.5 per row; from the seed. */
scene scene_make(const loam_problem *p, uint64_t seed);
scene scene_copy(const scene *from);
void scene_free(scene *s);
/* Runs the pass (backward: after a forward on the same row) and fills the outputs. 1, or 0 with a message. */
int scene_run(scene *s, loam_pass pass);
/* |a - b| / |b| */
double scene_error(const scene *got, const scene *want, part which);

#endif
