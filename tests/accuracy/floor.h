/* SPDX-License-Identifier: MIT
 * The best that float32 can do: the equations in float64, but for what a kernel holds in float32. */
#ifndef TESTS_ACCURACY_FLOOR_H
#define TESTS_ACCURACY_FLOOR_H

#include "tests/accuracy/answer.h"

/* The answer where scores, u, t, g = do . v, its mean, rho and the adjoint y are rounded
 * to float32 once each, and all sums and solves are in float64. rounded = false: the plain
 * equations, written once more. Rows that `like` calls singular are taken as such. */
answer floor_answer(const sample *s, const question *ask, const answer *like, bool rounded);

#endif
