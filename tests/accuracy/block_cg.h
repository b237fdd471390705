/* SPDX-License-Identifier: MIT
 * Conjugate gradients in float32 for all rows at once, with and without a preconditioner that they share. */
#ifndef TESTS_ACCURACY_BLOCK_CG_H
#define TESTS_ACCURACY_BLOCK_CG_H

#include "tests/accuracy/alternatives.h"

#include <stdbool.h>

/* shared: preconditioned by the mean of the rows' matrices, one Cholesky factor for all. */
alternative_cost block_cg_run(const sample *s, double ridge, bool shared, double *o);

#endif
