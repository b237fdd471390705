/* SPDX-License-Identifier: MIT
 * How hard the rows of a sample are for Local Linear Attention. */
#ifndef TESTS_ACCURACY_CONDITION_H
#define TESTS_ACCURACY_CONDITION_H

#include "tests/accuracy/sample.h"

/* Largest over smallest eigenvalue of Cov_i + ridge of every row, into out [len_q]; inf where singular. */
void condition_rows(const sample *s, double ridge, double *out);

/* The largest distance of a score of a row from the middle of its scores. */
double condition_steepness(const sample *s);

#endif
