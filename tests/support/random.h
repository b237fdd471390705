/* SPDX-License-Identifier: MIT
 * Random numbers for tests: the same seed and stream give the same numbers on every machine. */
#ifndef TESTS_SUPPORT_RANDOM_H
#define TESTS_SUPPORT_RANDOM_H

#include <stdint.h>

typedef struct rng {
    uint64_t seed, stream, drawn;
} rng;

rng rng_make(uint64_t seed, uint64_t stream);
uint64_t rng_bits(rng *r);
/* In (0, 1). */
double rng_uniform(rng *r);
double rng_normal(rng *r);
/* lo .. hi, both included. */
int64_t rng_int(rng *r, int64_t lo, int64_t hi);
/* True once in `n` on average. */
int rng_one_in(rng *r, int64_t n);
void rng_fill_normal(rng *r, double *x, int64_t count, double mean, double deviation);
/* A permutation of 0 .. count - 1. */
void rng_permutation(rng *r, int64_t *order, int64_t count);

#endif
