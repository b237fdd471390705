/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench_arrays.h"

#include "cli/bench_count.h"
#include "cli/random.h"
#include "io/half.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { FILL_CHUNK = 4096 };

typedef struct layout {
    int64_t heads, tokens, channels;
} layout;

/* ---------------------------------------------------------------- sizes */

static bool of_queries(enum bench_array which)
{
    return which != BENCH_K && which != BENCH_V && which != BENCH_GRAD_K && which != BENCH_GRAD_V;
}

static bool of_values(enum bench_array which)
{
    return which == BENCH_V || which == BENCH_GRAD_V || which == BENCH_O || which == BENCH_GRAD_O;
}

static layout layout_of(const loam_problem *p, enum bench_array which)
{
    const bool queries = of_queries(which);
    return (layout){ queries ? p->heads_q : p->heads_kv, queries ? p->len_q : p->len_kv,
                     of_values(which) ? p->dim_v : p->dim_qk };
}

static bool wanted(const loam_problem *p, enum bench_array which)
{
    const bool backward = p->pass == LOAM_BACKWARD;
    switch (which) {
    case BENCH_PROBE: return p->mechanism == LOAM_PARALLAX;
    case BENCH_GRAD_PROBE: return backward && p->mechanism == LOAM_PARALLAX;
    case BENCH_GRAD_O:
    case BENCH_GRAD_Q:
    case BENCH_GRAD_K:
    case BENCH_GRAD_V: return backward;
    case BENCH_SLOPE: return p->slope;
    case BENCH_SINK: return p->sink;
    case BENCH_GRAD_RIDGE: return backward && p->mechanism == LOAM_LLA;
    case BENCH_INFO: return p->mechanism == LOAM_LLA;
    default: return true;
    }
}

static double array_bytes(const loam_problem *p, enum bench_array which)
{
    if (!wanted(p, which)) return 0;
    const double real = (double)bench_real_bytes(p->dtype), heads = (double)p->heads_q;
    if (which == BENCH_SLOPE || which == BENCH_SINK) return heads * real;
    if (which == BENCH_GRAD_RIDGE) return real;
    if (which == BENCH_INFO)
        return (double)p->batch * heads * (double)p->len_q * (double)sizeof(loam_row_info);
    const layout l = layout_of(p, which);
    return (double)p->batch * (double)l.heads * (double)l.tokens * (double)l.channels *
           (double)bench_dtype_bytes(p->dtype);
}

double bench_arrays_bytes(const bench_shape *shape)
{
    double bytes = 0;
    for (int which = 0; which < BENCH_ARRAYS; which++)
        bytes += array_bytes(&shape->problem, (enum bench_array)which);
    return bytes;
}

size_t bench_array_bytes(const bench_arrays *a, enum bench_array which)
{
    return (size_t)array_bytes(&a->shape->problem, which);
}

void *bench_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX - LOAM_ALIGN) return NULL;
    return aligned_alloc(LOAM_ALIGN, bytes / LOAM_ALIGN * LOAM_ALIGN + LOAM_ALIGN);
}

/* ---------------------------------------------------------------- elements */

double bench_element(const void *data, loam_dtype dtype, int64_t index)
{
    switch (dtype) {
    case LOAM_F32: return (double)((const float *)data)[index];
    case LOAM_BF16: return bf16_to_double(((const uint16_t *)data)[index]);
    case LOAM_F16: return f16_to_double(((const uint16_t *)data)[index]);
    case LOAM_F64: break;
    }
    return ((const double *)data)[index];
}

static void store(void *data, loam_dtype dtype, int64_t index, double value)
{
    switch (dtype) {
    case LOAM_F32: ((float *)data)[index] = (float)value; break;
    case LOAM_BF16: ((uint16_t *)data)[index] = bf16_from_double(value); break;
    case LOAM_F16: ((uint16_t *)data)[index] = f16_from_double(value); break;
    case LOAM_F64: ((double *)data)[index] = value; break;
    }
}

static void fill_normal(void *data, loam_dtype dtype, int64_t count, random_stream from, int threads)
{
    const int64_t chunks = (count + FILL_CHUNK - 1) / FILL_CHUNK;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        double normal[FILL_CHUNK];
        const int64_t first = chunk * FILL_CHUNK, left = count - first,
                      n = left < FILL_CHUNK ? left : FILL_CHUNK;
        random_normals(from, (uint64_t)first, n, normal);
        for (int64_t i = 0; i < n; i++)
            store(data, dtype, first + i, normal[i]);
    }
}

/* Queries or keys of shape->data, row by row in memory; the last query lies where the last key does. */
static void fill_formed(void *data, const bench_shape *shape, enum bench_array which, uint64_t seed,
                        int threads)
{
    const loam_problem *p = &shape->problem;
    const layout l = layout_of(p, which);
    const int64_t rows = p->batch * l.heads * l.tokens, shift = which == BENCH_Q ? p->len_kv - p->len_q : 0;
    const int64_t group = p->heads_q / p->heads_kv;
    const random_stream from = { seed, (uint64_t)which }, shared = { seed, BENCH_ARRAYS };
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t token = shape->tokens_first ? row / l.heads % l.tokens : row % l.tokens;
        const int64_t head = shape->tokens_first ? row % l.heads : row / l.tokens % l.heads;
        const int64_t head_kv = which == BENCH_Q ? head / group : head;
        double x[LOAM_MAX_DIM], common[LOAM_MAX_DIM];
        random_normals(from, (uint64_t)(row * l.channels), l.channels, x);
        random_normals(shared, (uint64_t)(head_kv * l.channels), l.channels, common);
        bench_data_form(shape->data, which == BENCH_K, x, common, l.channels, token + shift);
        for (int64_t c = 0; c < l.channels; c++)
            store(data, p->dtype, row * l.channels + c, x[c]);
    }
}

/* Slopes 1/2, 1/4, ... of ALiBi, sinks 0: costs do not depend on them. */
static void fill_heads(void *data, loam_dtype dtype, int64_t heads, bool slope)
{
    const loam_dtype real = dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32;
    for (int64_t h = 0; h < heads; h++)
        store(data, real, h, slope ? exp2(-8.0 * (double)(h + 1) / (double)heads) : 0);
}

/* ---------------------------------------------------------------- views */

static loam_view view_of(const bench_arrays *a, enum bench_array which)
{
    const layout l = layout_of(&a->shape->problem, which);
    if (!a->shape->tokens_first) return loam_dense_out(a->at[which], l.heads, l.tokens, l.channels);
    return (loam_view){ a->at[which], l.tokens * l.heads * l.channels, l.channels, l.heads * l.channels };
}

static loam_const_view input_of(const bench_arrays *a, enum bench_array which)
{
    const loam_view view = view_of(a, which);
    return (loam_const_view){ view.data, view.batch, view.head, view.token };
}

int64_t bench_row(const bench_arrays *a, enum bench_array which, int64_t b, int64_t h, int64_t token)
{
    const loam_view view = view_of(a, which);
    return b * view.batch + h * view.head + token * view.token;
}

static void set_args(bench_arrays *a)
{
    a->args = (loam_args){ .q = input_of(a, BENCH_Q),
                           .k = input_of(a, BENCH_K),
                           .v = input_of(a, BENCH_V),
                           .probe = input_of(a, BENCH_PROBE),
                           .slope = a->at[BENCH_SLOPE],
                           .sink = a->at[BENCH_SINK],
                           .o = view_of(a, BENCH_O),
                           .saved = a->saved,
                           .grad_o = input_of(a, BENCH_GRAD_O),
                           .grad_q = view_of(a, BENCH_GRAD_Q),
                           .grad_k = view_of(a, BENCH_GRAD_K),
                           .grad_v = view_of(a, BENCH_GRAD_V),
                           .grad_probe = view_of(a, BENCH_GRAD_PROBE),
                           .grad_ridge = { a->at[BENCH_GRAD_RIDGE], 0, 0, 0 } };
}

/* ---------------------------------------------------------------- making */

int bench_fail(const bench_shape *shape, const loam_error *reason, io_error *error)
{
    return io_fail(error, reason->status == LOAM_EMEMORY ? EXIT_INTERNAL : EXIT_INPUT, "%s:%d: %s: %s",
                   shape->source, shape->line, shape->name, reason->text);
}

static int fill(bench_arrays *a, uint64_t seed, int threads, io_error *error)
{
    const loam_problem *p = &a->shape->problem;
    for (int which = 0; which < BENCH_ARRAYS; which++) {
        const size_t bytes = (size_t)array_bytes(p, (enum bench_array)which);
        if (bytes == 0) continue;
        a->at[which] = bench_alloc(bytes);
        if (!a->at[which])
            return io_fail(error, EXIT_INTERNAL, "%s: out of memory for an array of %zu bytes",
                           a->shape->name, bytes);
        const bool random = which <= BENCH_GRAD_O, heads = which == BENCH_SLOPE || which == BENCH_SINK;
        if (a->shape->data != BENCH_NORMAL && (which == BENCH_Q || which == BENCH_K))
            fill_formed(a->at[which], a->shape, (enum bench_array)which, seed, threads);
        else if (random)
            fill_normal(a->at[which], p->dtype, (int64_t)bytes / bench_dtype_bytes(p->dtype),
                        (random_stream){ seed, (uint64_t)which }, threads);
        else if (heads)
            fill_heads(a->at[which], p->dtype, p->heads_q, which == BENCH_SLOPE);
        else
            memset(a->at[which], 0, bytes);
    }
    return 0;
}

/* The forward of a shape with `saved`, by the row that a plan chooses: leaves saved, o and info. */
static int run_forward(bench_arrays *a, int threads, io_error *error)
{
    loam_problem problem = a->shape->problem;
    problem.pass = LOAM_FORWARD;
    problem.threads = threads;
    loam_plan *plan;
    loam_error reason;
    if (loam_plan_create(&plan, &problem, &reason)) return bench_fail(a->shape, &reason, error);
    a->saved = bench_alloc(loam_plan_saved_bytes(plan));
    void *work = bench_alloc(loam_plan_work_bytes(plan));
    int status = 0;
    if (!a->saved || !work) {
        status = io_fail(error, EXIT_INTERNAL, "%s: out of memory for the forward", a->shape->name);
    } else {
        set_args(a);
        loam_args args = a->args;
        args.work = work;
        args.info = loam_dense_out(a->at[BENCH_INFO], problem.heads_q, problem.len_q, 1);
        if (loam_run(plan, &args, &reason)) status = bench_fail(a->shape, &reason, error);
    }
    free(work);
    loam_plan_destroy(plan);
    return status;
}

int bench_arrays_fill(bench_arrays *a, const bench_shape *shape, uint64_t seed, int threads, io_error *error)
{
    *a = (bench_arrays){ .shape = shape };
    const int status = fill(a, seed, threads, error);
    if (!status) set_args(a);
    return status;
}

int bench_arrays_make(bench_arrays *a, const bench_shape *shape, uint64_t seed, int threads, io_error *error)
{
    const int status = bench_arrays_fill(a, shape, seed, threads, error);
    return status || !shape->saved ? status : run_forward(a, threads, error);
}

void bench_arrays_free(bench_arrays *a)
{
    for (int which = 0; which < BENCH_ARRAYS; which++)
        free(a->at[which]);
    free(a->saved);
    *a = (bench_arrays){ 0 };
}
