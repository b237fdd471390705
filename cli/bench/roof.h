/* SPDX-License-Identifier: MIT
 * The roofs of the machine, measured with the threads of the run: OpenBLAS sgemm on 2048^3 for arithmetic,
 * reading, copying and updating arrays far larger than any cache for memory. A machine may be shared and its
 * rate may drift, so they are measured before, between and after the kernels; the highest counts. */
#ifndef LOAM_CLI_BENCH_ROOF_H
#define LOAM_CLI_BENCH_ROOF_H

#include "io/error.h"

#include <stddef.h>

/* 1e9 operations, or 1e9 bytes, a second; a byte that is copied or updated counts twice. */
typedef struct bench_roof {
    double first, last, most;
} bench_roof;

typedef struct bench_roofs {
    bench_roof sgemm, read, copy, update;
    int threads, count; /* count: of measurements; 0: none were wanted */
    double measured;    /* when, bench_now() */
    float *matrix[3];
    void *memory[2];
} bench_roofs;

/* Bytes that a bench_roofs holds. */
size_t bench_roofs_bytes(void);
/* Allocates; bench_roofs_close frees whatever happened. */
int bench_roofs_open(bench_roofs *roofs, int threads, io_error *error);
void bench_roofs_measure(bench_roofs *roofs);
void bench_roofs_close(bench_roofs *roofs);

/* Seconds of the monotonic clock. */
double bench_now(void);

#endif
