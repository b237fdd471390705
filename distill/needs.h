/* SPDX-License-Identifier: MIT */
#ifndef LOAM_DISTILL_NEEDS_H
#define LOAM_DISTILL_NEEDS_H

#include "distill/activations.h"

/* Of each layer [layers] the degrees of freedom of its attention (DOF_ATTN, docs/dof.md), means over windows,
 * of the head that has most: what dof_budget_share shares features out by. */
int activations_needs(const activations *a, double lambda, int threads, double *layers, io_error *error);

#endif
