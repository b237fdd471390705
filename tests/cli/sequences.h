/* SPDX-License-Identifier: MIT
 * Every mechanism of `loam attend` on random sequences that are
 * packed, (H,T,D): what the tests of packing and of CUDA share. */
#ifndef LOAM_TESTS_CLI_SEQUENCES_H
#define LOAM_TESTS_CLI_SEQUENCES_H

#include <stdbool.h>
#include <stdint.h>

enum { MOST_SEQUENCES = 8 };

typedef struct sequences {
    int64_t count, queries[MOST_SEQUENCES], keys[MOST_SEQUENCES]; /* lengths */
    int64_t dim, dim_v;
} sequences;

typedef struct attend_case {
    const char *arguments; /* of `loam attend`, without outputs */
    const char *outputs;   /* beside --out o.npy, --grad-dir g */
    bool keys;             /* keys have lengths of their own */
} attend_case;

extern const attend_case ATTEND_CASES[];
extern const int ATTEND_CASE_COUNT;

/* Writes into `directory`, an existing one, the inputs that the cases name: sequences first ..
 * first + count - 1 of s; where `one` is set just sequence `first`, its states without an axis of
 * sequences. cu.npy and cuk.npy have the offsets. The numbers of a token are the same in either. */
void save_sequences(const char *directory, const sequences *s, bool one, int64_t first);

/* A vector of int32 or int64, of so many bytes each; io only reads them. */
void save_integers(const char *path, const int64_t *values, int64_t count, int bytes);

#endif
