/* SPDX-License-Identifier: MIT
 * The arrays of a shape, filled with numbers that depend on the seed alone (N(0, 1) but for the shape's
 * data) or are read from its files, and what the library is to be called with. */
#ifndef LOAM_CLI_BENCH_ARRAYS_H
#define LOAM_CLI_BENCH_ARRAYS_H

#include "cli/bench/shape.h"

enum bench_array {
    BENCH_Q, /* q, k and v are in the order of files.h */
    BENCH_K,
    BENCH_V,
    BENCH_PROBE,
    BENCH_W,
    BENCH_GRAD_O, /* so far of the problem's type and random */
    BENCH_LOG_DECAY,
    BENCH_BETA,
    BENCH_Z,        /* of positive features, as is its gradient */
    BENCH_STATE_IN, /* decode of the recurrences, as is the next one */
    BENCH_STATE_OUT,
    BENCH_O,
    BENCH_GRAD_Q,
    BENCH_GRAD_K,
    BENCH_GRAD_V,
    BENCH_GRAD_PROBE,
    BENCH_GRAD_W,
    BENCH_GRAD_LOG_DECAY,
    BENCH_GRAD_BETA,
    BENCH_GRAD_Z,
    BENCH_ROWS, /* those before have rows: heads, tokens and channels */
    BENCH_SLOPE = BENCH_ROWS,
    BENCH_SINK,
    BENCH_GRAD_RIDGE,
    BENCH_INFO,
    BENCH_ARRAYS
};

/* Of one sequence; all 0 where the problem has no such array. */
typedef struct bench_layout {
    int64_t heads, tokens, channels;
} bench_layout;

typedef struct bench_arrays {
    const bench_shape *shape;
    void *at[BENCH_ARRAYS]; /* NULL where the problem has none */
    void *saved;            /* of the forward, where the shape has it */
    loam_args args;         /* all but work and info */
} bench_arrays;

bool bench_recurrent(const loam_problem *problem);
/* Heads of the rows of the result. */
int64_t bench_heads_out(const loam_problem *problem);
bench_layout bench_layout_of(const loam_problem *problem, enum bench_array which);
/* Element type of an array of the problem. */
loam_dtype bench_array_dtype(const loam_problem *problem, enum bench_array which);
/* The arguments for arrays that lie as the shape says, all but work and info. */
loam_args bench_args(const bench_arrays *arrays);

/* Bytes of all arrays but workspaces; a double, since it may be absurd. */
double bench_arrays_bytes(const bench_shape *shape);
/* Of one of them, 0 where the problem has none. */
size_t bench_array_bytes(const bench_arrays *arrays, enum bench_array which);
/* Allocates and fills. bench_arrays_free frees whatever happened. */
int bench_arrays_fill(bench_arrays *arrays, const bench_shape *shape, uint64_t seed, int threads,
                      io_error *error);
/* Likewise; where the shape has `saved` also runs the forward, on the CPU. */
int bench_arrays_make(bench_arrays *arrays, const bench_shape *shape, uint64_t seed, int threads,
                      io_error *error);
void bench_arrays_free(bench_arrays *arrays);

/* Channel 0 of a row of an array with heads and tokens. */
int64_t bench_row(const bench_arrays *arrays, enum bench_array which, int64_t b, int64_t h, int64_t token);
double bench_element(const void *data, loam_dtype dtype, int64_t index);

/* aligned_alloc(LOAM_ALIGN), also of 0 bytes. */
void *bench_alloc(size_t bytes);
/* What the library said about a shape, as an error of the program. */
int bench_fail(const bench_shape *shape, const loam_error *reason, io_error *error);

#endif
