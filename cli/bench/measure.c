/* SPDX-License-Identifier: MIT */
#include "cli/bench/measure.h"

#include "cli/bench/count.h"
#include "cli/bench/device.h"
#include "cli/bench/roof.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    if (bench_solves(p) && args->state_in.data && args->state_in.data == args->state_out.data)
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
