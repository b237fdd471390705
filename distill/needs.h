/* SPDX-License-Identifier: MIT */
#ifndef LOAM_DISTILL_NEEDS_H
#define LOAM_DISTILL_NEEDS_H

#include "distill/activations.h"

/* Degrees of freedom of all query heads [layers][heads_q] (docs/dof.md), by which dof/budget.h shares
 * features out: DOF_ATTN, means over windows; or, drawn by the seed, of 1024 of a head's queries and keys, or
 * as many as there are, in another mode. First tokens of windows are not drawn. */
int activations_needs(const activations *a, dof_mode mode, double lambda, uint64_t seed, int threads,
                      double *heads, io_error *error);
/* out [count]: the largest of `each` that follow each other, as of the heads of a layer. */
void needs_largest(const double *heads, int64_t count, int64_t each, double *out);

#endif
