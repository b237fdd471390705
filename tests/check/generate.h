/* SPDX-License-Identifier: MIT
 * Random cases for one row of the registry: odd shapes, every option, hostile data. */
#ifndef TESTS_CHECK_GENERATE_H
#define TESTS_CHECK_GENERATE_H

#include "tests/support/values.h"

/* Case `number` of a seed; budget: about the multiplications that the
 * reference may take (a tenth of the cases: 15 times as many). */
spec generate_spec(const loam_kernel_info *row, uint64_t seed, uint64_t number, double budget);

#endif
