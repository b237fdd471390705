/* SPDX-License-Identifier: MIT
 * Is what a kernel computed what the reference computed, within the tolerance of the case? */
#ifndef TESTS_CHECK_JUDGE_H
#define TESTS_CHECK_JUDGE_H

#include "tests/support/values.h"

typedef struct verdict {
    double fraction; /* of the tolerance, the worst of all outputs; > 1 fails */
    slot worst;
    int64_t at[3];  /* batch, head, token */
    char text[160]; /* what else is wrong: info, a NaN; "" if nothing */
} verdict;

/* got: outputs of the kernel; want: of the reference on the same inputs, in float64; rho: the probes that the
 * reference used, or NULL. */
verdict judge(const values *got, const values *want, const double *rho);

#endif
