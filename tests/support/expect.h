/* SPDX-License-Identifier: MIT
 * What the cmocka tests say about cases; a failure prints the case and the place. */
#ifndef TESTS_SUPPORT_EXPECT_H
#define TESTS_SUPPORT_EXPECT_H

#include "tests/support/run.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* The run succeeds and misuses no memory. */
void expect_run(values *v);
/* The slot of `got` is within `tolerance` of `want` (dense, of its size),
 * relative, Frobenius; floor: what the norm is at least taken to be. */
void expect_near(const char *what, const values *got, slot which, const double *want, double tolerance,
                 double floor);
/* Rows begin .. begin + count - 1 of the slot have the same bits. */
void expect_same_rows(const char *what, const values *got, slot which, int64_t begin, const double *want,
                      int64_t count);
void expect_same(const char *what, const values *got, slot which, const double *want);
/* All outputs, and what is told of rows, have the same bits for 1 thread and for 2 to `most`. */
void expect_any_threads(spec s, int most);
void expect_no_nan(const values *got);

#endif
