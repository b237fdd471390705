/* SPDX-License-Identifier: MIT */
#include "cli/bench/measure.h"

#include "cli/bench/count.h"
#include "cli/bench/device.h"
#include "cli/bench/roof.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static int run_once(const loam_plan *plan, const bench_arrays *a, const loam_args *args, io_error *error)
{
    loam_error reason;
    loam_args own = *args;
    loam_args_keep(&own, loam_plan_problem(plan)->pass);
    return loam_run(plan, &own, &reason) ? bench_fail(a->shape, &reason, error) : 0;
}

/* MesaNet's time depends on H, which the same token over and over would leave with one direction. */
static void begin_again(const bench_arrays *a, const loam_args *args)
{
    const loam_problem *p = &a->shape->problem;
    if (p->mechanism == LOAM_MESA && args->state_in.data && args->state_in.data == args->state_out.data)
        memcpy(args->state_out.data, a->at[BENCH_STATE_IN], bench_array_bytes(a, BENCH_STATE_IN));
}

static int time_runs(const loam_plan *plan, const bench_arrays *a, const loam_args *args,
                     const bench_protocol *protocol, bench_result *result, io_error *error)
{
    const int64_t room = bench_most_runs(protocol);
    double *times = calloc((size_t)room, sizeof *times), spent = 0;
    if (!times) return io_fail(error, EXIT_INTERNAL, "out of memory for %lld times", (long long)room);
    int64_t runs = 0;
    int status = 0;
    while (!status && !bench_enough(protocol, runs, spent)) {
        begin_again(a, args);
        const double begun = bench_now();
        status = run_once(plan, a, args, error);
        times[runs] = bench_now() - begun;
        spent += times[runs++];
    }
    if (!status) bench_statistics(times, runs, result);
    free(times);
    return status;
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
    r->iterations = info && (p->pass != LOAM_DECODE || bench_recurrent(p)) ? bench_iterations(p, info) : NAN;
}

static int measure_plan(const loam_plan *plan, bench_arrays *a, const bench_protocol *protocol,
                        bench_result *result, io_error *error)
{
    const loam_problem *p = &a->shape->problem;
    void *work = bench_alloc(loam_plan_work_bytes(plan));
    if (!work)
        return io_fail(error, EXIT_INTERNAL, "%s: out of memory for a workspace of %zu bytes", a->shape->name,
                       loam_plan_work_bytes(plan));
    loam_args args = a->args;
    args.work = work;
    if (p->pass != LOAM_BACKWARD)
        args.info = loam_dense_out(a->at[BENCH_INFO], bench_heads_out(p), p->len_q, 1);
    int status = run_once(plan, a, &args, error);
    if (!status) {
        bench_count(a, result);
        args.info.data = NULL;
        bench_in_place(&args);
        status = time_runs(plan, a, &args, protocol, result, error);
        args = a->args, args.work = work; /* what is compared begins with the state that was made */
        if (!status && args.state_in.data) status = run_once(plan, a, &args, error);
    }
    free(work);
    return status;
}

int bench_measure(bench_arrays *a, const char *kernel, const bench_protocol *protocol, bench_result *result,
                  io_error *error)
{
    loam_problem problem = a->shape->problem;
    problem.kernel = kernel;
    problem.threads = protocol->threads;
    problem.backend = protocol->backend;
    *result = (bench_result){ .shape = a->shape, .error = NAN };
    loam_plan *plan;
    loam_error reason;
    if (loam_plan_create(&plan, &problem, &reason)) return bench_fail(a->shape, &reason, error);
    snprintf(result->kernel, sizeof result->kernel, "%s", loam_plan_problem(plan)->kernel);
    result->work_bytes = loam_plan_work_bytes(plan);
    const int status = loam_plan_problem(plan)->backend == LOAM_BACKEND_CUDA
                           ? bench_device_measure(plan, a, protocol, result, error)
                           : measure_plan(plan, a, protocol, result, error);
    loam_plan_destroy(plan);
    return status;
}
