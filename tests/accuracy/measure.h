/* SPDX-License-Identifier: MIT
 * How far an answer is from the reference, and how far it may be. */
#ifndef TESTS_ACCURACY_MEASURE_H
#define TESTS_ACCURACY_MEASURE_H

#include "tests/accuracy/answer.h"

/* A row by itself may be this many times further off than the whole. */
#define ROW_FACTOR 20.0

typedef struct distance {
    double whole; /* |got - want| / |want|, Frobenius */
    double row;   /* the same of the worst row */
    int64_t at;   /* that row */
} distance;

/* Rows (and arrays) that are 0 but for rounding are measured against a tenth of the
 * mean row (and grad_o), rows of dridge against the mean row, and dscale, one
 * number in which all rows cancel, against the root of the sum of their squares. */
distance measure(const sample *s, const answer *want, const answer *got, part which);
/* The largest of the gradients. *which: where it is. */
distance measure_gradients(const sample *s, const answer *want, const answer *got, part *which);

/* The bound on distance.whole. */
double bound_of(const question *ask, bool gradient);

/* Every number of every part is finite. */
bool answer_finite(const sample *s, const answer *a);

#endif
