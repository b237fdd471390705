/* SPDX-License-Identifier: MIT */
#include "cli/bench/device.h"

#include "cli/bench/roof.h"
#include "cli/device_set.h"

#include <math.h>
#include <stdlib.h>

enum { TRIES = 5, FILLS = 10 };
static const size_t COPY_BYTES = (size_t)1 << 30;

static int fail(const char *failed, io_error *error)
{
    return failed ? io_fail(error, EXIT_INTERNAL, "CUDA: %s", failed) : 0;
}

/* ---------------------------------------------------------------- the roof */

static const char *measure_copy(void *to, const void *from, double *best)
{
    device_timer timer;
    double seconds = 0;
    *best = INFINITY;
    const char *failed = device_timer_make(&timer);
    for (int i = 0; i < TRIES && !failed; i++) {
        failed = device_timer_begin(&timer);
        if (!failed) failed = device_copy(to, from, COPY_BYTES);
        if (!failed) failed = device_timer_end(&timer);
        if (!failed) failed = device_timer_seconds(&timer, &seconds);
        if (i > 0) *best = fmin(*best, seconds); /* the first one wakes the clocks */
    }
    device_timer_free(&timer);
    return failed;
}

int bench_device_open(bench_device *device, bool roof, io_error *error)
{
    device_set set = { .count = 0 };
    void *from, *to;
    double seconds;
    *device = (bench_device){ .copy = 0 };
    const char *failed = device_describe(0, &device->info);
    if (!failed && roof) {
        failed = device_set_scratch(&set, &from, COPY_BYTES);
        if (!failed) failed = device_set_scratch(&set, &to, COPY_BYTES);
        if (!failed) failed = measure_copy(to, from, &seconds);
        if (!failed) device->copy = 2e-9 * (double)COPY_BYTES / seconds;
    }
    device_set_free(&set);
    return fail(failed, error);
}

/* ---------------------------------------------------------------- the arrays */

typedef struct device_run {
    bench_arrays *arrays;
    device_set set;
    loam_args args;
    void *info;
    void *flush; /* twice the cache */
    size_t flush_bytes;
    device_timer timer;
} device_run;

static const char *send(device_run *run)
{
    bench_arrays *a = run->arrays;
    loam_args *args = &run->args;
    const struct {
        enum bench_array which;
        const void **pointer;
    } in[] = { { BENCH_Q, &args->q.data },
               { BENCH_K, &args->k.data },
               { BENCH_V, &args->v.data },
               { BENCH_PROBE, &args->probe.data },
               { BENCH_SLOPE, &args->slope },
               { BENCH_SINK, &args->sink },
               { BENCH_GRAD_O, &args->grad_o.data },
               { BENCH_W, &args->w.data },
               { BENCH_LOG_DECAY, &args->log_decay.data },
               { BENCH_BETA, &args->beta.data },
               { BENCH_Z, &args->z.data },
               { BENCH_STATE_IN, &args->state_in.data } };
    const struct {
        enum bench_array which;
        void **pointer;
    } out[] = { { BENCH_O, &args->o.data },
                { BENCH_GRAD_Q, &args->grad_q.data },
                { BENCH_GRAD_K, &args->grad_k.data },
                { BENCH_GRAD_V, &args->grad_v.data },
                { BENCH_INFO, &run->info },
                { BENCH_GRAD_PROBE, &args->grad_probe.data },
                { BENCH_GRAD_RIDGE, &args->grad_ridge.data },
                { BENCH_GRAD_W, &args->grad_w.data },
                { BENCH_GRAD_LOG_DECAY, &args->grad_log_decay.data },
                { BENCH_GRAD_BETA, &args->grad_beta.data },
                { BENCH_GRAD_Z, &args->grad_z.data },
                { BENCH_STATE_OUT, &args->state_out.data } };
    const char *failed = NULL;
    for (size_t i = 0; i < sizeof in / sizeof in[0] && !failed; i++)
        failed = device_set_input(&run->set, in[i].pointer, bench_array_bytes(a, in[i].which));
    for (size_t i = 0; i < sizeof out / sizeof out[0] && !failed; i++)
        failed = device_set_output(&run->set, out[i].pointer, bench_array_bytes(a, out[i].which));
    return failed;
}

static int launch(const loam_plan *plan, device_run *run, io_error *error)
{
    loam_error reason;
    loam_args args = run->args;
    loam_args_keep(&args, loam_plan_problem(plan)->pass);
    return loam_run(plan, &args, &reason) ? bench_fail(run->arrays->shape, &reason, error) : 0;
}

static void want_info(device_run *run, bool wanted)
{
    const loam_problem *p = &run->arrays->shape->problem;
    run->args.info = loam_dense_out(wanted ? run->info : NULL, bench_heads_out(p), p->len_q, 1);
}

/* Leaves `saved` and the info of the rows. */
static int run_forward(const loam_plan *backward, device_run *run, io_error *error)
{
    loam_problem problem = run->arrays->shape->problem;
    problem.pass = LOAM_FORWARD;
    problem.kernel = NULL;
    problem.backend = LOAM_BACKEND_CUDA;
    loam_plan *plan;
    loam_error reason;
    if (loam_plan_create(&plan, &problem, &reason)) return bench_fail(run->arrays->shape, &reason, error);
    const size_t saved = loam_plan_saved_bytes(backward);
    const char *failed = saved ? device_set_scratch(&run->set, &run->args.saved, saved) : NULL;
    if (!failed) failed = device_set_scratch(&run->set, &run->args.work, loam_plan_work_bytes(plan));
    want_info(run, true);
    int status = fail(failed, error);
    if (!status) status = launch(plan, run, error);
    want_info(run, false);
    loam_plan_destroy(plan);
    return status;
}

/* One run, with its time where `seconds` is not NULL. All is launched before the first event comes up: what
 * is timed is the device, not the host. The cache is written several times over, since the clock of a GPU
 * that has been idle comes back only after some tenths of a millisecond of work. */
static int run_once(const loam_plan *plan, device_run *run, double *seconds, io_error *error)
{
    const char *failed = device_hold();
    for (int i = 0; i < FILLS && !failed; i++)
        failed = device_fill(run->flush, 0, run->flush_bytes);
    if (!failed) failed = device_timer_begin(&run->timer);
    int status = fail(failed, error);
    if (!status) status = launch(plan, run, error);
    if (status) return status;
    failed = device_timer_end(&run->timer);
    double ignored;
    if (!failed) failed = device_timer_seconds(&run->timer, seconds ? seconds : &ignored);
    return fail(failed, error);
}

static int time_runs(const loam_plan *plan, device_run *run, const bench_protocol *protocol,
                     bench_result *result, io_error *error)
{
    double *times = calloc((size_t)bench_most_runs(protocol), sizeof *times);
    if (!times) return io_fail(error, EXIT_INTERNAL, "out of memory for the times");
    const double begun = bench_now();
    int64_t runs = 0;
    int status = 0;
    while (!status && !bench_enough(protocol, runs, bench_now() - begun))
        status = run_once(plan, run, &times[runs++], error);
    if (!status) bench_statistics(times, runs, result);
    free(times);
    return status;
}

static int measure(const loam_plan *plan, device_run *run, const bench_protocol *protocol,
                   bench_result *result, io_error *error)
{
    const bool backward = run->arrays->shape->problem.pass == LOAM_BACKWARD;
    int status = backward && run->arrays->shape->saved ? run_forward(plan, run, error) : 0;
    const char *failed = NULL;
    if (!status && !backward && run->arrays->shape->saved)
        failed = device_set_scratch(&run->set, &run->args.saved, loam_plan_saved_bytes(plan));
    if (!status && !failed)
        failed = device_set_scratch(&run->set, &run->args.work, loam_plan_work_bytes(plan));
    if (!status) status = fail(failed, error);
    want_info(run, !backward);
    if (!status) status = run_once(plan, run, NULL, error);
    want_info(run, false);
    if (!status) status = fail(device_set_fetch(&run->set), error);
    if (status) return status;
    bench_count(run->arrays, result);
    bench_in_place(&run->args);
    return time_runs(plan, run, protocol, result, error);
}

int bench_device_measure(const loam_plan *plan, bench_arrays *a, const bench_protocol *protocol,
                         bench_result *result, io_error *error)
{
    device_info info;
    device_run run = { .arrays = a, .args = a->args, .info = a->at[BENCH_INFO] };
    const char *failed = device_describe(0, &info);
    run.flush_bytes = failed ? 0 : 2 * info.l2_bytes;
    if (!failed) failed = device_timer_make(&run.timer);
    if (!failed) failed = device_set_scratch(&run.set, &run.flush, run.flush_bytes);
    if (!failed) failed = send(&run);
    int status = fail(failed, error);
    if (!status) status = measure(plan, &run, protocol, result, error);
    result->device = true;
    device_timer_free(&run.timer);
    device_set_free(&run.set);
    return status;
}
