/* SPDX-License-Identifier: MIT
 * The headers of src/simd, and the Cholesky factor beside them, against plain float64. The suites are
 * compiled once per instruction set, as the kernels are; each returns how many of its tests failed. */
#ifndef TESTS_SIMD_SUITES_H
#define TESTS_SIMD_SUITES_H

#include <stdint.h>

int suite_vec(void);
int suite_panel(void);
int suite_pairs(void);
int suite_transpose(void);
int suite_convert(void);
int suite_cholesky(void);

/* A stream of numbers in (-1, 1): splitmix64 of a counter. */
static inline double next_number(uint64_t *counter)
{
    uint64_t x = (*counter += 0x9e3779b97f4a7c15u);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-52 - 1;
}

#endif
