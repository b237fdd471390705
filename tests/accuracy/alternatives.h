/* SPDX-License-Identifier: MIT
 * What a row costs and how exact it is with other solvers: Gram matrices and the dual form, by way of BLAS. */
#ifndef TESTS_ACCURACY_ALTERNATIVES_H
#define TESTS_ACCURACY_ALTERNATIVES_H

#include "tests/accuracy/sample.h"

typedef enum alternative { GRAM_F32, DUAL_F32, GRAM_F64, DUAL_F64, ALTERNATIVES } alternative;

extern const char *const alternative_names[ALTERNATIVES];

/* o [len_q][dim] of Local Linear Attention, scores and all in the precision of the method; the processor time. */
double alternative_run(alternative which, const sample *s, double ridge, double *o);

#endif
