/* SPDX-License-Identifier: MIT */
#include "tests/support/random.h"

#include <Random123/philox.h>
#include <math.h>

rng rng_make(uint64_t seed, uint64_t stream) { return (rng){ seed, stream, 0 }; }

uint64_t rng_bits(rng *r)
{
    const philox2x64_ctr_t counter = { { r->drawn++, r->stream } };
    const philox2x64_key_t key = { { r->seed } };
    return philox2x64(counter, key).v[0];
}

double rng_uniform(rng *r) { return ((double)(rng_bits(r) >> 12) + 0.5) * 0x1p-52; }

double rng_normal(rng *r)
{
    const double radius = sqrt(-2 * log(rng_uniform(r)));
    return radius * cos(6.283185307179586 * rng_uniform(r));
}

int64_t rng_int(rng *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(rng_bits(r) % ((uint64_t)(hi - lo) + 1));
}

int rng_one_in(rng *r, int64_t n) { return rng_int(r, 1, n) == 1; }

void rng_fill_normal(rng *r, double *x, int64_t count, double mean, double deviation)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = mean + deviation * rng_normal(r);
}

void rng_permutation(rng *r, int64_t *order, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t j = rng_int(r, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
}
