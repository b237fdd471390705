/* SPDX-License-Identifier: MIT
 * An array that is learned, with its gradient and the state of its optimiser. */
#ifndef LOAM_TRAIN_PARAMETER_H
#define LOAM_TRAIN_PARAMETER_H

#include "train/matrix.h"

#include <stdbool.h>

typedef enum parameter_start {
    START_NORMAL,      /* N(0, deviation^2) */
    START_CONSTANT,    /* `value` */
    START_UNIFORM,     /* U(-value, value) */
    START_DECAY_RATE,  /* log U(1, 16) */
    START_DECAY_DELTA, /* softplus(x) log-uniform in [0.001, 0.1] */
    START_IDENTITY,    /* square matrices, one below the other: each the identity */
} parameter_start;

typedef struct parameter {
    char name[32]; /* "layer1.W_q" */
    matrix x, g;   /* itself and its gradient */
    matrix m, v;   /* moments */
    matrix w;      /* itself as an operand of products, as of the last pass; x, where that is its type */
    parameter_start start;
    double deviation, value;
    bool decay;  /* by the optimiser: matrices, not vectors */
    bool muon;   /* a matrix of a mixer, which Muon takes where it is asked for */
    bool fixed;  /* is never learned, and has no gradient: always frozen */
    bool frozen; /* keeps its value; since it was made: no moments and, a matrix, no gradient */
} parameter;

#endif
