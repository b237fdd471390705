/* SPDX-License-Identifier: MIT
 * Small float64 cases for the reference, option by option. */
#ifndef TESTS_REFERENCE_SMALL_H
#define TESTS_REFERENCE_SMALL_H

#include "tests/support/spec.h"

/* Case `number` of a mechanism and pass: all options drawn at random, at most about a dozen tokens. */
spec small_case(loam_mechanism mechanism, loam_pass pass, int64_t number);

#endif
