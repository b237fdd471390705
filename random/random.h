/* SPDX-License-Identifier: MIT
 * Counter-based random numbers: number n of a stream is a function of (seed, stream, n) alone, so that any
 * thread, chunk or restarted run finds the same ones. Block n of a stream is Philox4x32-10 of counter
 * (n, stream) and key seed; it is words 2 n and 2 n + 1, and one Box-Muller pair. */
#ifndef LOAM_RANDOM_RANDOM_H
#define LOAM_RANDOM_RANDOM_H

#include <stdint.h>

typedef struct random_stream {
    uint64_t seed, stream;
} random_stream;

/* out[0 .. count - 1] = words first .. first + count - 1 of the stream, uniform over 64 bits. */
void random_words(random_stream from, uint64_t first, int64_t count, uint64_t *out);
/* out[0 .. count - 1] = uniform numbers in (0, 1), one a word. */
void random_uniforms(random_stream from, uint64_t first, int64_t count, double *out);
/* out[0 .. count - 1] = standard normal deviates first .. first + count - 1 of the stream. */
void random_normals(random_stream from, uint64_t first, int64_t count, double *out);

/* A number 0 .. n - 1, n <= 2^31, from the high half of a word. */
int32_t random_below(uint64_t word, int64_t n);
/* out[0 .. count - 1] = different numbers 0 .. n - 1 in random order: the first steps of Fisher-Yates, one a
 * word, from word 0. table: [n], scratch. */
void random_distinct(random_stream from, int64_t n, int64_t count, int32_t *table, int32_t *out);

#endif
