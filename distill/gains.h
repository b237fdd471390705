/* SPDX-License-Identifier: MIT */
#ifndef LOAM_DISTILL_GAINS_H
#define LOAM_DISTILL_GAINS_H

#include "distill/student.h"

/* Gains of all query heads for features beside exact attention to the first `sinks` tokens and the last
 * `window`: those under which rows of up to 16 windows are nearest to softmax's, by the sum of squares, from
 * -40 to 20. The same bits for any number of threads. */
int student_gains(student *s, const activations *a, int64_t sinks, int64_t window, int threads,
                  io_error *error);
/* Of the n-th query head of a head: for estimates that are means over the features that it uses. */
double student_gain_of_used(const student *s, int64_t layer, int64_t head, int64_t n);

#endif
