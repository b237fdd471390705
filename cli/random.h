/* SPDX-License-Identifier: MIT
 * Counter-based random numbers: number n of a stream is a function of (seed, stream, n) alone, so that any
 * thread, chunk or restarted run finds the same ones. */
#ifndef LOAM_CLI_RANDOM_H
#define LOAM_CLI_RANDOM_H

#include <stdint.h>

typedef struct random_stream {
    uint64_t seed, stream;
} random_stream;

/* out[0 .. count - 1] = standard normal deviates first .. first + count - 1 of the stream. */
void random_normals(random_stream from, uint64_t first, int64_t count, double *out);

#endif
