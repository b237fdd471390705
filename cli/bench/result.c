/* SPDX-License-Identifier: MIT */
#include "cli/bench/result.h"

#include "cli/bench/count.h"

#include <math.h>
#include <stdlib.h>

enum { LEAST_RUNS = 3, MOST_RUNS = 1000 };
/* A row so slow that three runs would take this many times the budget is believed after one. */
static const double PATIENCE = 10;

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const double *sorted, int64_t count, double q)
{
    const double at = q * (double)(count - 1);
    const int64_t below = (int64_t)at, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (at - (double)below) * (sorted[above] - sorted[below]);
}

void bench_statistics(double *times, int64_t runs, bench_result *r)
{
    qsort(times, (size_t)runs, sizeof *times, compare_times);
    r->runs = runs;
    r->least = times[0];
    r->low = quantile(times, runs, 0.25);
    r->median = quantile(times, runs, 0.5);
    r->high = quantile(times, runs, 0.75);
    r->most = times[runs - 1];
}

bool bench_enough(const bench_protocol *protocol, int64_t runs, double spent)
{
    if (protocol->repeat > 0) return runs >= protocol->repeat;
    if (runs >= MOST_RUNS || (runs >= 1 && spent > PATIENCE * protocol->seconds)) return true;
    return runs >= LEAST_RUNS && spent >= protocol->seconds;
}

int64_t bench_most_runs(const bench_protocol *protocol)
{
    return protocol->repeat > 0 ? protocol->repeat : MOST_RUNS;
}

void bench_in_place(loam_args *args)
{
    const loam_view state = args->state_out;
    if (state.data) args->state_in = (loam_const_view){ state.data, state.batch, state.head, state.token };
}

void bench_count(const bench_arrays *a, bench_result *r)
{
    const loam_problem *p = &a->shape->problem;
    const loam_row_info *info = a->at[BENCH_INFO];
    r->pairs = bench_pairs(p);
    r->flop = bench_flop(p, info);
    r->bytes = bench_bytes(p);
    const bool told = info && (p->pass != LOAM_DECODE || bench_recurrent(p));
    r->iterations = told ? bench_iterations(p, info) : NAN;
    r->exact = told ? bench_exact(p, info) : NAN;
}
