/* SPDX-License-Identifier: MIT
 * Times one row of the registry on one shape. */
#ifndef LOAM_CLI_BENCH_MEASURE_H
#define LOAM_CLI_BENCH_MEASURE_H

#include "cli/bench_arrays.h"

typedef struct bench_protocol {
    int threads;
    int64_t repeat; /* timed runs of each row; 0: as many as fit into `seconds`, at least 3 */
    double seconds;
    uint64_t seed;
} bench_protocol;

typedef struct bench_result {
    const bench_shape *shape;
    char kernel[BENCH_NAME_BYTES];
    int64_t runs;
    double median, low, high, least, most; /* seconds; low and high are the quartiles */
    double pairs, flop, bytes;
    double iterations; /* mean of conjugate gradients; NaN but for LLA forward and backward */
    double error;      /* NaN: not asked for */
    size_t work_bytes;
} bench_result;

/* kernel NULL: the row that a plan chooses. Runs once untimed, then as the protocol says. */
int bench_measure(bench_arrays *arrays, const char *kernel, const bench_protocol *protocol,
                  bench_result *result, io_error *error);

/* Median, quartiles and extremes of runs > 0 times, which are sorted. */
void bench_statistics(double *times, int64_t runs, bench_result *result);

#endif
