/* SPDX-License-Identifier: MIT
 * What a row costs and how exact it is with other solvers, by way of BLAS: conjugate gradients
 * for all rows at once, Gram matrices and the dual form for one row after another. */
#ifndef TESTS_ACCURACY_ALTERNATIVES_H
#define TESTS_ACCURACY_ALTERNATIVES_H

#include "tests/accuracy/sample.h"

typedef enum alternative { CG, CG_SHARED, GRAM_F32, DUAL_F32, GRAM_F64, DUAL_F64, ALTERNATIVES } alternative;

extern const char *const alternative_names[ALTERNATIVES];

/* What is measured of one: processor time, and steps until every row had stopped. */
typedef struct alternative_cost {
    double seconds;
    int steps;
} alternative_cost;

/* o [len_q][dim] of Local Linear Attention, scores and all
 * in the precision of the method. All rows see all keys. */
alternative_cost alternative_run(alternative which, const sample *s, double ridge, double *o);

#endif
