/* SPDX-License-Identifier: MIT
 * The cases of full size for one row of the registry:
 * sequences of 4096 tokens, and lengths around one chunk. */
#ifndef TESTS_CHECK_FULL_H
#define TESTS_CHECK_FULL_H

#include "tests/support/values.h"

enum { FULL_MOST = 64 };

/* Fills cases and returns how many; none for the rows of the
 * reference, which are what the others are compared with. */
int full_specs(const loam_kernel_info *row, spec cases[FULL_MOST]);

#endif
