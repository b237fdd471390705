/* SPDX-License-Identifier: MIT
 * One element of an array of any type, as double. */
#ifndef TESTS_SUPPORT_ELEMENT_H
#define TESTS_SUPPORT_ELEMENT_H

#include "loam.h"

size_t element_bytes(loam_dtype dtype);
/* The type that loam.h calls real. */
loam_dtype element_real(loam_dtype dtype);
double element_get(const void *data, loam_dtype dtype, int64_t index);
/* Rounds to nearest, ties to even, straight from double. */
void element_set(void *data, loam_dtype dtype, int64_t index, double x);
/* What is left of x after being stored. */
double element_round(loam_dtype dtype, double x);

#endif
