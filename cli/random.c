/* SPDX-License-Identifier: MIT */
#include "cli/random.h"

#include <Random123/philox.h>
#include <Random123/u01fixedpt.h>
#include <math.h>

static const double two_pi = 6.283185307179586477;

static uint64_t join(uint32_t low, uint32_t high) { return (uint64_t)high << 32 | low; }

/* One block of 128 random bits is one Box-Muller pair. */
static void normal_pair(random_stream from, uint64_t block, double pair[2])
{
    const philox4x32_key_t key = { { (uint32_t)from.seed, (uint32_t)(from.seed >> 32) } };
    const philox4x32_ctr_t counter = { { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)from.stream,
                                         (uint32_t)(from.stream >> 32) } };
    const philox4x32_ctr_t bits = philox4x32(counter, key);
    const double radius = sqrt(-2 * log(u01fixedpt_open_open_64_double(join(bits.v[0], bits.v[1]))));
    const double angle = two_pi * u01fixedpt_open_open_64_double(join(bits.v[2], bits.v[3]));
    pair[0] = radius * cos(angle);
    pair[1] = radius * sin(angle);
}

void random_normals(random_stream from, uint64_t first, int64_t count, double *out)
{
    double pair[2];
    int64_t done = 0;
    if (count > 0 && first % 2 == 1) {
        normal_pair(from, first / 2, pair);
        out[done++] = pair[1];
    }
    while (done < count) {
        normal_pair(from, (first + (uint64_t)done) / 2, pair);
        out[done++] = pair[0];
        if (done < count) out[done++] = pair[1];
    }
}
