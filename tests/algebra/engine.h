/* SPDX-License-Identifier: MIT
 * Properties are tried on the float64 reference at a small size and
 * on the kernel that the library chooses for float32 at full size. */
#ifndef TESTS_ALGEBRA_ENGINE_H
#define TESTS_ALGEBRA_ENGINE_H

#include "tests/support/values.h"

typedef struct engine {
    const char *name;
    loam_dtype dtype;
    loam_backend backend;
    int64_t len, dim;
} engine;

enum { ENGINES = 2 };
/* The full size is smaller where no fast kernel does the pass. */
engine engine_at(int index, loam_pass pass);
/* Causal, two query heads on one key head, ridge 0.1. */
spec engine_spec(const engine *e, loam_mechanism mechanism, loam_pass pass);
/* How far two correct results may be apart. */
double engine_tolerance(const engine *e, loam_mechanism mechanism, loam_pass pass);

/* Changes of inputs. Rounds x to multiples of 2^-bits, so that sums with like numbers are exact. */
void coarsen(values *v, slot which, int bits);
/* Adds s[c] to every row. */
void shift_rows(values *v, slot which, const double *s);
/* Reflects every row in the plane across `axis` [channels], a unit vector; rounds to the type of the case. */
void reflect_rows(values *v, slot which, const double *axis);
void unit_vector(double *x, int64_t n, uint64_t seed);

#endif
