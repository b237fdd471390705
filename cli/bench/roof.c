/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench/roof.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SIDE = 2048, TRIES = 3, LINE = 64 };
static const size_t MEMORY_BYTES = (size_t)256 << 20;
static const size_t MATRIX_BYTES = sizeof(float) * SIDE * SIDE;

double bench_now(void)
{
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) != 0) return 0;
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

size_t bench_roofs_bytes(void) { return 2 * MEMORY_BYTES + 3 * MATRIX_BYTES; }

/* The part of `bytes` that belongs to this thread of the team, in whole lines. */
static size_t share(size_t bytes, size_t *begin)
{
    const size_t lines = bytes / LINE, team = (size_t)omp_get_num_threads(),
                 me = (size_t)omp_get_thread_num();
    *begin = lines * me / team * LINE;
    return lines * (me + 1) / team * LINE - *begin;
}

int bench_roofs_open(bench_roofs *roofs, int threads, io_error *error)
{
    *roofs = (bench_roofs){ .threads = threads };
    for (int i = 0; i < 3; i++) {
        roofs->matrix[i] = aligned_alloc(LINE, MATRIX_BYTES);
        if (!roofs->matrix[i])
            return io_fail(error, EXIT_INTERNAL, "out of memory for the matrices of the roof");
        for (size_t at = 0; at < (size_t)SIDE * SIDE; at++)
            roofs->matrix[i][at] = (float)(at % 7) - 3;
    }
    for (int i = 0; i < 2; i++) {
        roofs->memory[i] = aligned_alloc(LINE, MEMORY_BYTES);
        if (!roofs->memory[i])
            return io_fail(error, EXIT_INTERNAL, "out of memory for the arrays of the roof");
#pragma omp parallel num_threads(threads)
        {
            size_t begin, bytes = share(MEMORY_BYTES, &begin);
            memset((char *)roofs->memory[i] + begin, i + 1, bytes);
        }
    }
    return 0;
}

void bench_roofs_close(bench_roofs *roofs)
{
    for (int i = 0; i < 3; i++)
        free(roofs->matrix[i]);
    for (int i = 0; i < 2; i++)
        free(roofs->memory[i]);
    *roofs = (bench_roofs){ 0 };
}

static void run_sgemm(bench_roofs *roofs)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1, roofs->matrix[0], SIDE,
                roofs->matrix[1], SIDE, 0, roofs->matrix[2], SIDE);
}

/* Eight sums of integers: the compiler may vectorise each, and none waits for another. */
static uint64_t sum_words(const uint64_t *restrict words, size_t count)
{
    uint64_t sum[8] = { 0 };
    for (size_t i = 0; i + 8 <= count; i += 8)
        for (size_t lane = 0; lane < 8; lane++)
            sum[lane] += words[i + lane];
    return (sum[0] ^ sum[1]) + (sum[2] ^ sum[3]) + (sum[4] ^ sum[5]) + (sum[6] ^ sum[7]);
}

static void run_read(bench_roofs *roofs)
{
    uint64_t all = 0;
#pragma omp parallel num_threads(roofs->threads) reduction(+ : all)
    {
        size_t begin, bytes = share(MEMORY_BYTES, &begin);
        all += sum_words((const uint64_t *)((const char *)roofs->memory[0] + begin),
                         bytes / sizeof(uint64_t));
    }
    /* Stored, so that the reads are not for nothing. */
    *(volatile float *)roofs->matrix[2] = (float)(all & 1);
}

static void run_copy(bench_roofs *roofs)
{
#pragma omp parallel num_threads(roofs->threads)
    {
        size_t begin, bytes = share(MEMORY_BYTES, &begin);
        memcpy((char *)roofs->memory[1] + begin, (const char *)roofs->memory[0] + begin, bytes);
    }
}

/* In place, as a state is that is read and written. */
static void run_update(bench_roofs *roofs)
{
#pragma omp parallel num_threads(roofs->threads)
    {
        size_t begin, bytes = share(MEMORY_BYTES, &begin);
        uint64_t *words = (uint64_t *)((char *)roofs->memory[1] + begin);
        for (size_t i = 0; i < bytes / sizeof *words; i++)
            words[i]++;
    }
}

/* The best of a few, after one that wakes the threads. */
static void measure(bench_roofs *roofs, bench_roof *roof, void (*run)(bench_roofs *), double work)
{
    double best = INFINITY;
    run(roofs);
    for (int i = 0; i < TRIES; i++) {
        const double begun = bench_now();
        run(roofs);
        best = fmin(best, bench_now() - begun);
    }
    const double rate = 1e-9 * work / fmax(best, 1e-9);
    roof->first = roofs->count == 0 ? rate : roof->first;
    roof->last = rate;
    roof->most = fmax(roof->most, rate);
}

void bench_roofs_measure(bench_roofs *roofs)
{
    const int before = openblas_get_num_threads();
    openblas_set_num_threads(roofs->threads);
    measure(roofs, &roofs->sgemm, run_sgemm, 2.0 * SIDE * SIDE * SIDE);
    openblas_set_num_threads(before);
    measure(roofs, &roofs->read, run_read, (double)MEMORY_BYTES);
    measure(roofs, &roofs->copy, run_copy, 2 * (double)MEMORY_BYTES);
    measure(roofs, &roofs->update, run_update, 2 * (double)MEMORY_BYTES);
    roofs->count++;
    roofs->measured = bench_now();
}
