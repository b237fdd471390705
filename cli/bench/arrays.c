/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "cli/bench/arrays.h"

#include "cli/bench/count.h"
#include "cli/bench/files.h"
#include "cli/names.h"
#include "io/half.h"
#include "random/random.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { FILL_CHUNK = 4096 };

/* ---------------------------------------------------------------- sizes */

bool bench_recurrent(const loam_problem *p)
{
    const loam_mechanism_info form = names_form(p->mechanism);
    return names_is_recurrent(&form);
}

int64_t bench_heads_out(const loam_problem *p) { return bench_recurrent(p) ? p->heads_v : p->heads_q; }

static loam_decay_axes decay_axes(const loam_problem *p)
{
    return p->decay ? LOAM_DECAY_TOKEN : names_form(p->mechanism).log_decay;
}

static bool has_beta(const loam_problem *p) { return p->path || names_form(p->mechanism).beta; }

static bool wanted(const loam_problem *p, enum bench_array which)
{
    const loam_mechanism_info form = names_form(p->mechanism);
    const bool backward = p->pass == LOAM_BACKWARD, solved = form.ridge_axes;
    switch (which) {
    case BENCH_PROBE: return form.probe;
    case BENCH_GRAD_PROBE: return backward && form.probe;
    case BENCH_W: return p->path;
    case BENCH_GRAD_W: return backward && p->path;
    case BENCH_LOG_DECAY: return decay_axes(p) != LOAM_DECAY_NONE;
    case BENCH_GRAD_LOG_DECAY: return backward && decay_axes(p) != LOAM_DECAY_NONE;
    case BENCH_BETA: return has_beta(p);
    case BENCH_GRAD_BETA: return backward && has_beta(p);
    case BENCH_Z: return bench_features(p) > 0;
    case BENCH_GRAD_Z: return backward && bench_features(p) > 0;
    case BENCH_STATE_IN:
    case BENCH_STATE_OUT: return bench_recurrent(p) && p->pass == LOAM_DECODE;
    case BENCH_GRAD_O:
    case BENCH_GRAD_Q:
    case BENCH_GRAD_K:
    case BENCH_GRAD_V: return backward;
    case BENCH_SLOPE: return p->slope;
    case BENCH_SINK: return p->sink;
    case BENCH_GRAD_RIDGE: return backward && solved;
    case BENCH_INFO: return solved;
    default: return true;
    }
}

static bench_layout decay_layout(const loam_problem *p)
{
    if (!bench_recurrent(p)) return (bench_layout){ p->heads_q, p->len_kv, 1 };
    const bool head = decay_axes(p) == LOAM_DECAY_HEAD, channel = decay_axes(p) == LOAM_DECAY_CHANNEL;
    return (bench_layout){ p->heads_v, head ? 1 : p->len_q, channel ? p->dim_qk : 1 };
}

bench_layout bench_layout_of(const loam_problem *p, enum bench_array which)
{
    const int64_t values = bench_recurrent(p) ? p->heads_v : p->heads_kv, features = bench_features(p);
    if (!wanted(p, which)) return (bench_layout){ 0, 0, 0 };
    switch (which) {
    case BENCH_K:
    case BENCH_GRAD_K:
    case BENCH_W:
    case BENCH_GRAD_W: return (bench_layout){ p->heads_kv, p->len_kv, p->dim_qk };
    case BENCH_V:
    case BENCH_GRAD_V: return (bench_layout){ values, p->len_kv, p->dim_v };
    case BENCH_O:
    case BENCH_GRAD_O: return (bench_layout){ bench_heads_out(p), p->len_q, p->dim_v };
    case BENCH_LOG_DECAY:
    case BENCH_GRAD_LOG_DECAY: return decay_layout(p);
    case BENCH_BETA:
    case BENCH_GRAD_BETA: return (bench_layout){ values, p->len_kv, 1 };
    case BENCH_Z:
    case BENCH_GRAD_Z: return (bench_layout){ p->heads_q, features, p->dim_qk };
    case BENCH_STATE_IN:
    case BENCH_STATE_OUT:
        return (bench_layout){ values,
                               p->dim_v + p->normalise + (bench_solves(p) ? p->dim_qk : 0) + (features > 0),
                               features > 0 ? features : p->dim_qk };
    default: return (bench_layout){ p->heads_q, p->len_q, p->dim_qk };
    }
}

loam_dtype bench_array_dtype(const loam_problem *p, enum bench_array which)
{
    const bool real = (which >= BENCH_LOG_DECAY && which <= BENCH_STATE_OUT) ||
                      which == BENCH_GRAD_LOG_DECAY || which == BENCH_GRAD_BETA || which >= BENCH_GRAD_Z;
    return real ? p->dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32 : p->dtype;
}

/* One of a head, whatever the batch. */
static bool per_head(const loam_problem *p, enum bench_array which)
{
    const bool decay = which == BENCH_LOG_DECAY || which == BENCH_GRAD_LOG_DECAY;
    return decay && decay_axes(p) == LOAM_DECAY_HEAD;
}

static double array_bytes(const loam_problem *p, enum bench_array which)
{
    if (!wanted(p, which)) return 0;
    const double element = (double)bench_dtype_bytes(bench_array_dtype(p, which));
    if (which == BENCH_SLOPE || which == BENCH_SINK) return (double)p->heads_q * element;
    if (which == BENCH_GRAD_RIDGE) return element;
    if (which == BENCH_INFO)
        return (double)p->batch * (double)bench_heads_out(p) * (double)p->len_q *
               (double)sizeof(loam_row_info);
    const bench_layout l = bench_layout_of(p, which);
    const bool once = per_head(p, which) || which == BENCH_Z || which == BENCH_GRAD_Z;
    return (once ? 1 : (double)p->batch) * (double)l.heads * (double)l.tokens * (double)l.channels * element;
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

/* Head and token of a row, counted as it lies in memory. */
typedef struct place {
    int64_t head, token;
} place;

static place place_of(const bench_shape *shape, bench_layout l, int64_t row)
{
    return shape->tokens_first ? (place){ row % l.heads, row / l.heads % l.tokens }
                               : (place){ row / l.tokens % l.heads, row % l.tokens };
}

/* Queries or keys of shape->data, row by row in memory; the last query lies where the last key does. */
static void fill_formed(void *data, const bench_shape *shape, enum bench_array which, uint64_t seed,
                        int threads)
{
    const loam_problem *p = &shape->problem;
    const bench_layout l = bench_layout_of(p, which);
    const int64_t rows = p->batch * l.heads * l.tokens, shift = which == BENCH_Q ? p->len_kv - p->len_q : 0;
    const int64_t group = p->heads_q / p->heads_kv;
    const random_stream from = { seed, (uint64_t)which }, shared = { seed, BENCH_ARRAYS };
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const place at = place_of(shape, l, row);
        const int64_t head_kv = which == BENCH_Q ? at.head / group : at.head;
        double x[LOAM_MAX_DIM], common[LOAM_MAX_DIM];
        random_normals(from, (uint64_t)(row * l.channels), l.channels, x);
        random_normals(shared, (uint64_t)(head_kv * l.channels), l.channels, common);
        bench_data_form(shape->data, which == BENCH_K, x, common, l.channels, at.token + shift);
        for (int64_t c = 0; c < l.channels; c++)
            store(data, p->dtype, row * l.channels + c, x[c]);
    }
}

static void fill_from_files(void *data, const bench_shape *shape, enum bench_array which,
                            const bench_files *files, int threads)
{
    const loam_problem *p = &shape->problem;
    const bench_layout l = bench_layout_of(p, which);
    const int64_t rows = p->batch * l.heads * l.tokens, bytes = l.channels * bench_dtype_bytes(p->dtype);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const place at = place_of(shape, l, row);
        bench_files_row(files, p, (int)which, at.head, at.token, (char *)data + row * bytes);
    }
}

/* Slopes 1/2, 1/4, ... of ALiBi, sinks 0: costs do not depend on them. */
static void fill_heads(void *data, loam_dtype real, int64_t heads, bool slope)
{
    for (int64_t h = 0; h < heads; h++)
        store(data, real, h, slope ? exp2(-8.0 * (double)(h + 1) / (double)heads) : 0);
}

/* Gates that keep some tens of tokens, betas around 1/2, rows w of length 1. */
static void form_gates(bench_arrays *a, enum bench_array which)
{
    const loam_problem *p = &a->shape->problem;
    const loam_dtype dtype = bench_array_dtype(p, which);
    const bench_layout l = bench_layout_of(p, which);
    const int64_t count = (int64_t)array_bytes(p, which) / bench_dtype_bytes(dtype);
    void *data = a->at[which];
    if (which == BENCH_LOG_DECAY)
        for (int64_t i = 0; i < count; i++)
            store(data, dtype, i,
                  per_head(p, which) ? log1p(-exp2(-5 - (double)i))
                                     : -exp(bench_element(data, dtype, i) - 3.5));
    else if (which == BENCH_BETA)
        for (int64_t i = 0; i < count; i++)
            store(data, dtype, i, 1 / (1 + exp(-bench_element(data, dtype, i))));
    else if (which == BENCH_W)
        for (int64_t row = 0; row < count / l.channels; row++) {
            double square = 0;
            for (int64_t c = row * l.channels; c < (row + 1) * l.channels; c++)
                square += bench_element(data, dtype, c) * bench_element(data, dtype, c);
            for (int64_t c = row * l.channels; c < (row + 1) * l.channels; c++)
                store(data, dtype, c, bench_element(data, dtype, c) / sqrt(square));
        }
}

/* H, elements `at` on, as 64 tokens leave it, from twice as many keys as channels, so that no direction is
 * empty. */
static void form_h(const bench_arrays *a, int64_t head, int64_t at, uint64_t seed)
{
    const int64_t d = a->shape->problem.dim_qk, keys = 2 * d;
    const loam_dtype real = bench_array_dtype(&a->shape->problem, BENCH_STATE_IN);
    void *state = a->at[BENCH_STATE_IN];
    for (int64_t e = 0; e < d * d; e++)
        store(state, real, at + e, 0);
    for (int64_t key = 0; key < keys; key++) {
        double k[LOAM_MAX_DIM], square = 0;
        random_normals((random_stream){ seed, BENCH_ARRAYS + 1 }, (uint64_t)((head * keys + key) * d), d, k);
        for (int64_t c = 0; c < d; c++)
            square += k[c] * k[c];
        const double weight = 64 / (double)keys / (a->shape->data == BENCH_UNIT ? square : 1);
        for (int64_t e = 0; e < d * d; e++)
            store(state, real, at + e, bench_element(state, real, at + e) + weight * k[e / d] * k[e % d]);
    }
}

/* H of MesaNet, the same in all sequences; s positive, and what positive features are relative to 0. */
static void form_state(const bench_arrays *a, uint64_t seed)
{
    const loam_problem *p = &a->shape->problem;
    const bench_layout l = bench_layout_of(p, BENCH_STATE_IN);
    const loam_dtype real = bench_array_dtype(p, BENCH_STATE_IN);
    const int64_t d = l.channels, heads = p->batch * l.heads, bytes = bench_dtype_bytes(real);
    for (int64_t head = 0; head < heads && bench_solves(p); head++) {
        const int64_t first = (head % l.heads * l.tokens + p->dim_v) * d,
                      at = (head * l.tokens + p->dim_v) * d;
        char *state = a->at[BENCH_STATE_IN];
        if (head < l.heads)
            form_h(a, head, at, seed);
        else
            memcpy(state + at * bytes, state + first * bytes, (size_t)(d * d * bytes));
    }
    for (int64_t head = 0; head < heads && p->normalise; head++)
        for (int64_t c = 0; c < d; c++)
            store(a->at[BENCH_STATE_IN], real, (head * l.tokens + p->dim_v) * d + c, 64);
    for (int64_t head = 0; head < heads && bench_features(p); head++)
        for (int64_t c = 0; c < d; c++)
            store(a->at[BENCH_STATE_IN], real, ((head + 1) * l.tokens - 1) * d + c, 0);
}

/* ---------------------------------------------------------------- views */

static bool follows_layout(enum bench_array which)
{
    return which <= BENCH_GRAD_O || (which >= BENCH_O && which <= BENCH_GRAD_W);
}

static loam_view view_of(const bench_arrays *a, enum bench_array which)
{
    const bench_layout l = bench_layout_of(&a->shape->problem, which);
    if (which == BENCH_Z || which == BENCH_GRAD_Z)
        return (loam_view){ a->at[which], 0, l.tokens * l.channels, l.channels };
    if (per_head(&a->shape->problem, which)) return (loam_view){ a->at[which], 0, 1, 0 };
    if (!a->shape->tokens_first || !follows_layout(which))
        return loam_dense_out(a->at[which], l.heads, l.tokens, l.channels);
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

loam_args bench_args(const bench_arrays *a)
{
    return (loam_args){ .q = input_of(a, BENCH_Q),
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
                        .grad_ridge = { a->at[BENCH_GRAD_RIDGE], 0, 0, 0 },
                        .log_decay = input_of(a, BENCH_LOG_DECAY),
                        .beta = input_of(a, BENCH_BETA),
                        .state_in = input_of(a, BENCH_STATE_IN),
                        .state_out = view_of(a, BENCH_STATE_OUT),
                        .grad_log_decay = view_of(a, BENCH_GRAD_LOG_DECAY),
                        .grad_beta = view_of(a, BENCH_GRAD_BETA),
                        .z = input_of(a, BENCH_Z),
                        .grad_z = view_of(a, BENCH_GRAD_Z),
                        .w = input_of(a, BENCH_W),
                        .grad_w = view_of(a, BENCH_GRAD_W) };
}

/* ---------------------------------------------------------------- making */

int bench_fail(const bench_shape *shape, const loam_error *reason, io_error *error)
{
    return io_fail(error, reason->status == LOAM_EMEMORY ? EXIT_INTERNAL : EXIT_INPUT, "%s:%d: %s: %s",
                   shape->source, shape->line, shape->name, reason->text);
}

static int fill(bench_arrays *a, const bench_files *files, uint64_t seed, int threads, io_error *error)
{
    const loam_problem *p = &a->shape->problem;
    for (int which = 0; which < BENCH_ARRAYS; which++) {
        const size_t bytes = (size_t)array_bytes(p, (enum bench_array)which);
        const loam_dtype dtype = bench_array_dtype(p, (enum bench_array)which);
        if (bytes == 0) continue;
        a->at[which] = bench_alloc(bytes);
        if (!a->at[which])
            return io_fail(error, EXIT_INTERNAL, "%s: out of memory for an array of %zu bytes",
                           a->shape->name, bytes);
        const bool random = which <= BENCH_STATE_IN, heads = which == BENCH_SLOPE || which == BENCH_SINK;
        if (a->shape->data == BENCH_FILES && which <= BENCH_V)
            fill_from_files(a->at[which], a->shape, (enum bench_array)which, files, threads);
        else if (a->shape->data != BENCH_NORMAL && (which == BENCH_Q || which == BENCH_K))
            fill_formed(a->at[which], a->shape, (enum bench_array)which, seed, threads);
        else if (random)
            fill_normal(a->at[which], dtype, (int64_t)bytes / bench_dtype_bytes(dtype),
                        (random_stream){ seed, (uint64_t)which }, threads);
        else if (heads)
            fill_heads(a->at[which], dtype, p->heads_q, which == BENCH_SLOPE);
        else
            memset(a->at[which], 0, bytes);
        form_gates(a, (enum bench_array)which);
    }
    if (a->at[BENCH_STATE_IN]) form_state(a, seed);
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
    const size_t saved = loam_plan_saved_bytes(plan);
    a->saved = saved ? bench_alloc(saved) : NULL;
    void *work = bench_alloc(loam_plan_work_bytes(plan));
    int status = 0;
    if ((saved && !a->saved) || !work) {
        status = io_fail(error, EXIT_INTERNAL, "%s: out of memory for the forward", a->shape->name);
    } else {
        a->args = bench_args(a);
        loam_args args = a->args;
        args.work = work;
        loam_args_keep(&args, LOAM_FORWARD);
        args.info = loam_dense_out(a->at[BENCH_INFO], bench_heads_out(&problem), problem.len_q, 1);
        if (loam_run(plan, &args, &reason)) status = bench_fail(a->shape, &reason, error);
    }
    free(work);
    loam_plan_destroy(plan);
    return status;
}

int bench_arrays_fill(bench_arrays *a, const bench_shape *shape, uint64_t seed, int threads, io_error *error)
{
    bench_files files;
    *a = (bench_arrays){ .shape = shape };
    int status = bench_files_read(&files, shape, error);
    if (!status) status = fill(a, &files, seed, threads, error);
    bench_files_free(&files);
    if (!status) a->args = bench_args(a);
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
