/* SPDX-License-Identifier: MIT
 * How often a row is to be timed, and what comes of it; for host and device memory. */
#ifndef LOAM_CLI_BENCH_RESULT_H
#define LOAM_CLI_BENCH_RESULT_H

#include "cli/bench/arrays.h"

typedef struct bench_protocol {
    int threads;
    int64_t repeat; /* timed runs of each row; 0: as many as fit into `seconds`, at least 3 */
    double seconds;
    uint64_t seed;
    loam_backend backend;
} bench_protocol;

typedef struct bench_result {
    const bench_shape *shape;
    char kernel[BENCH_NAME_BYTES];
    int64_t runs;
    double median, low, high, least, most; /* seconds; low and high are the quartiles */
    double pairs, flop, bytes;
    double iterations; /* mean of conjugate gradients; NaN but for MesaNet, and LLA forward and backward */
    double exact;      /* share of rows that a factorisation solved; NaN likewise */
    double error;      /* NaN: not asked for */
    size_t work_bytes;
    bool device; /* measured on a GPU */
} bench_result;

/* Is this the number of timed runs that the protocol asks for, after `spent` seconds? Never more than
 * bench_most_runs. */
bool bench_enough(const bench_protocol *protocol, int64_t runs, double spent);
int64_t bench_most_runs(const bench_protocol *protocol);
/* A decode step that is timed goes on from the state that the one before left, in its memory. */
void bench_in_place(loam_args *args);
/* Pairs, operations, bytes, iterations and who solved, by the info of the rows where there is any. */
void bench_count(const bench_arrays *arrays, bench_result *result);

/* Median, quartiles and extremes of runs > 0 times, which are sorted. */
void bench_statistics(double *times, int64_t runs, bench_result *result);

#endif
