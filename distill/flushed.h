/* SPDX-License-Identifier: MIT */
#ifndef LOAM_DISTILL_FLUSHED_H
#define LOAM_DISTILL_FLUSHED_H

#include "distill/student.h"

/* A key of large norm raises the running maximum that sums of a feature are relative to (docs/features.md):
 * what they held before falls below float32. Of each layer [layers] the share of tokens, over all windows and
 * heads, whose key takes the sums of some feature times less than e^-20. */
int student_flushed(const student *s, const activations *a, int threads, double *layers, io_error *error);

#endif
