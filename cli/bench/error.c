/* SPDX-License-Identifier: MIT */
#include "cli/bench/error.h"

#include "cli/names.h"

#include <math.h>
#include <stdlib.h>

/* One array of the sample, and where its rows lie in the whole. */
typedef struct window {
    enum bench_array which;
    int64_t heads, head0, tokens, token0, channels;
} window;

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static window window_of(const bench_reference *r, const loam_problem *whole, enum bench_array which)
{
    const bench_layout part = bench_layout_of(&r->shape.problem, which), all = bench_layout_of(whole, which);
    return (window){ .which = which,
                     .heads = part.heads,
                     .head0 = all.heads - part.heads,
                     .tokens = part.tokens,
                     .token0 = all.tokens - part.tokens,
                     .channels = part.channels };
}

/* The rows of the window in the whole become the float64 array of the sample. */
static int gather(bench_reference *r, const bench_arrays *from, enum bench_array which, io_error *error)
{
    const loam_problem *p = &from->shape->problem;
    const window w = window_of(r, p, which);
    if (!from->at[which]) return 0;
    double *to = bench_alloc((size_t)(w.heads * w.tokens * w.channels) * sizeof *to);
    r->arrays.at[which] = to;
    if (!to) return io_fail(error, EXIT_INTERNAL, "%s: out of memory for the reference", from->shape->name);
    for (int64_t h = 0; h < w.heads; h++)
        for (int64_t t = 0; t < w.tokens; t++) {
            const int64_t at = bench_row(from, which, p->batch - 1, w.head0 + h, w.token0 + t);
            for (int64_t c = 0; c < w.channels; c++)
                *to++ = bench_element(from->at[which], bench_array_dtype(p, which), at + c);
        }
    return 0;
}

static int gather_heads(bench_reference *r, const bench_arrays *from, enum bench_array which, io_error *error)
{
    const loam_problem *p = &from->shape->problem;
    const int64_t heads = r->shape.problem.heads_q;
    if (!from->at[which]) return 0;
    double *to = bench_alloc((size_t)heads * sizeof *to);
    r->arrays.at[which] = to;
    if (!to) return io_fail(error, EXIT_INTERNAL, "%s: out of memory for the reference", from->shape->name);
    for (int64_t h = 0; h < heads; h++)
        to[h] = bench_element(from->at[which], p->dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32,
                              p->heads_q - heads + h);
    return 0;
}

static bool needs_forward(const bench_reference *r)
{
    return r->shape.problem.pass == LOAM_BACKWARD && !bench_recurrent(&r->shape.problem);
}

static int run_pass(bench_reference *r, loam_pass pass, io_error *error)
{
    loam_problem problem = r->shape.problem;
    problem.pass = pass;
    loam_plan *plan;
    loam_error reason;
    if (loam_plan_create(&plan, &problem, &reason)) return bench_fail(&r->shape, &reason, error);
    if (!r->arrays.saved && needs_forward(r)) r->arrays.saved = bench_alloc(loam_plan_saved_bytes(plan));
    loam_args args = r->arrays.args;
    args.saved = r->arrays.saved;
    args.work = bench_alloc(loam_plan_work_bytes(plan));
    loam_args_keep(&args, pass);
    int status = 0;
    if (!args.work || (!args.saved && needs_forward(r)))
        status = io_fail(error, EXIT_INTERNAL, "%s: out of memory for the reference", r->shape.name);
    else if (loam_run(plan, &args, &reason))
        status = bench_fail(&r->shape, &reason, error);
    free(args.work);
    loam_plan_destroy(plan);
    return status;
}

static void shrink(bench_reference *r, const bench_shape *whole)
{
    loam_problem *p = &r->shape.problem;
    r->shape = *whole;
    r->shape.tokens_first = false;
    p->dtype = LOAM_F64;
    p->backend = LOAM_BACKEND_REFERENCE;
    p->batch = 1;
    if (bench_recurrent(p)) {
        p->heads_v /= p->heads_q;
        p->heads_q = p->heads_kv = 1;
        r->keys = p->len_kv;
        return;
    }
    p->heads_q /= p->heads_kv;
    p->heads_kv = 1;
    p->len_q = least(p->len_q, BENCH_TAIL);
    const bool all = p->len_q == whole->problem.len_q;
    r->keys = p->causal || all ? least(p->len_kv, BENCH_TAIL) : 0;
}

double bench_reference_bytes(const bench_shape *shape)
{
    bench_reference r;
    shrink(&r, shape);
    return bench_arrays_bytes(&r.shape);
}

int bench_reference_make(bench_reference *r, const bench_arrays *from, io_error *error)
{
    *r = (bench_reference){ 0 };
    shrink(r, from->shape);
    r->arrays.shape = &r->shape;
    int status = 0;
    for (int which = 0; which < BENCH_ROWS && !status; which++)
        status = gather(r, from, (enum bench_array)which, error);
    if (!status) status = gather_heads(r, from, BENCH_SLOPE, error);
    if (!status) status = gather_heads(r, from, BENCH_SINK, error);
    if (status) return status;
    r->arrays.args = bench_args(&r->arrays);
    if (needs_forward(r)) status = run_pass(r, LOAM_FORWARD, error);
    return status ? status : run_pass(r, r->shape.problem.pass, error);
}

void bench_reference_free(bench_reference *r) { bench_arrays_free(&r->arrays); }

/* Over the last `tokens` of the window. */
static double relative_error(const bench_reference *r, const bench_arrays *a, enum bench_array which,
                             int64_t tokens)
{
    const loam_problem *p = &a->shape->problem;
    const window w = window_of(r, p, which);
    const double *want = r->arrays.at[which];
    double difference = 0, norm = 0;
    for (int64_t h = 0; h < w.heads; h++)
        for (int64_t t = w.tokens - tokens; t < w.tokens; t++) {
            const int64_t at = bench_row(a, which, p->batch - 1, w.head0 + h, w.token0 + t);
            for (int64_t c = 0; c < w.channels; c++) {
                const double x = want[(h * w.tokens + t) * w.channels + c];
                const double delta = bench_element(a->at[which], bench_array_dtype(p, which), at + c) - x;
                difference += delta * delta;
                norm += x * x;
            }
        }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static double worse(double a, double b) { return isnan(a) || isnan(b) ? INFINITY : fmax(a, b); }

double bench_error(const bench_reference *r, const bench_arrays *a)
{
    const int64_t queries = r->shape.problem.len_q;
    if (r->shape.problem.pass != LOAM_BACKWARD) return worse(0, relative_error(r, a, BENCH_O, queries));
    double error = worse(0, relative_error(r, a, BENCH_GRAD_Q, queries));
    if (a->at[BENCH_GRAD_PROBE]) error = worse(error, relative_error(r, a, BENCH_GRAD_PROBE, queries));
    static const enum bench_array by_key[] = { BENCH_GRAD_K, BENCH_GRAD_V, BENCH_GRAD_W, BENCH_GRAD_BETA };
    for (size_t i = 0; i < sizeof by_key / sizeof *by_key; i++)
        if (a->at[by_key[i]]) error = worse(error, relative_error(r, a, by_key[i], r->keys));
    /* The decays of heads belong to the whole batch. */
    const bool decays = a->at[BENCH_GRAD_LOG_DECAY] &&
                        names_form(r->shape.problem.mechanism).log_decay != LOAM_DECAY_HEAD;
    return decays ? worse(error, relative_error(r, a, BENCH_GRAD_LOG_DECAY, r->keys)) : error;
}
