/* SPDX-License-Identifier: MIT */
#include "distill/needs.h"

#include "random/random.h"

#include <cblas.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 1024 };

typedef struct work {
    const activations *a;
    dof_mode mode;
    double lambda;
    uint64_t seed;
    int64_t there, samples; /* queries and keys of a head, and those that are drawn */
} work;

/* Of one thread. */
typedef struct room {
    dof_room dof;
    float *rows;            /* [samples][channels] */
    int32_t *table, *drawn; /* [there], [samples] */
} room;

static int open_room(room *r, const work *w, io_error *error)
{
    const int64_t tokens = w->a->tokens;
    const bool attention = w->mode == DOF_ATTN;
    *r = (room){ .rows = calloc((size_t)w->samples + 1, (size_t)w->a->channels * sizeof *r->rows),
                 .table = calloc((size_t)w->there + 1, sizeof *r->table),
                 .drawn = calloc((size_t)w->samples + 1, sizeof *r->drawn) };
    if (!r->rows || !r->table || !r->drawn)
        return io_fail(error, EXIT_INTERNAL, "out of memory for samples of queries and keys");
    return dof_room_open(&r->dof, attention ? tokens : w->samples, w->a->channels, attention, error);
}

static void close_room(room *r)
{
    dof_room_close(&r->dof);
    free(r->rows);
    free(r->table);
    free(r->drawn);
}

/* NaN where queries and keys give no numbers. */
static double need_of_attention(const work *w, int64_t layer, int64_t head, room *r)
{
    double sum = 0;
    for (int64_t window = 0; window < w->a->windows; window++) {
        const dof_text text = activations_text(w->a, layer, head, window);
        dof_value n;
        sum += dof_attention(&r->dof, &text, w->lambda, &n) ? n.whole : NAN;
    }
    return sum / (double)w->a->windows;
}

/* Of the n-th token, when the first ones of windows do not count. */
static int64_t window_of(const activations *a, int64_t n)
{
    int64_t low = 0, high = a->windows;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (a->begins[middle] - middle <= n)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static double need_of_sample(const work *w, int64_t layer, int64_t head, room *r)
{
    const activations *a = w->a;
    const int64_t d = a->channels;
    double n;
    random_distinct((random_stream){ w->seed, (uint64_t)(layer * a->heads_q + head) }, w->there, w->samples,
                    r->table, r->drawn);
    for (int64_t i = 0; i < w->samples; i++) {
        const int64_t half = w->there / 2, at = r->drawn[i] % half;
        const int64_t window = window_of(a, at), token = 1 + at - (a->begins[window] - window);
        const dof_text text = activations_text(a, layer, head, window);
        const float *from = r->drawn[i] < half ? text.q + token * text.q_row : text.k + token * text.k_row;
        memcpy(r->rows + i * d, from, (size_t)d * sizeof *from);
    }
    dof_sample(&r->dof, r->rows, w->samples, sqrt(a->scale[layer]));
    return dof_kernel(&r->dof, w->mode, w->lambda, w->samples, &n, NULL) ? n : NAN;
}

static int check_numbers(const activations *a, const double *heads, io_error *error)
{
    for (int64_t n = 0; n < a->layers * a->heads_q; n++)
        if (isnan(heads[n]))
            return io_fail(error, EXIT_INPUT,
                           "layer %" PRId64 ", head %" PRId64 ": its queries and keys give no numbers",
                           n / a->heads_q, n % a->heads_q);
    return 0;
}

static int check_count(const work *w, io_error *error)
{
    if (w->there >= 2 && w->there <= INT32_MAX) return 0;
    return io_fail(error, EXIT_USAGE,
                   "%" PRId64 " windows of at most %" PRId64
                   " tokens: expected 2 to 2^31 queries and keys but the first",
                   w->a->windows, w->a->tokens);
}

int activations_needs(const activations *a, dof_mode mode, double lambda, uint64_t seed, int threads,
                      double *heads, io_error *error)
{
    const int64_t count = a->layers * a->heads_q,
                  there = mode == DOF_ATTN ? 2 : 2 * (a->begins[a->windows] - a->windows);
    const work w = { a, mode, lambda, seed, there, there < SAMPLES ? there : SAMPLES };
    int status = check_count(&w, error);
    room *const rooms = calloc((size_t)threads, sizeof *rooms);
    if (!status && !rooms) status = io_fail(error, EXIT_INTERNAL, "out of memory for degrees of freedom");
    for (int i = 0; !status && i < threads; i++)
        status = open_room(&rooms[i], &w, error);
    /* Heads are shared out here, so that bits do not depend on threads. */
    openblas_set_num_threads(1);
    if (!status) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
        for (int64_t n = 0; n < count; n++) {
            room *const r = &rooms[omp_get_thread_num()];
            heads[n] = mode == DOF_ATTN ? need_of_attention(&w, n / a->heads_q, n % a->heads_q, r)
                                        : need_of_sample(&w, n / a->heads_q, n % a->heads_q, r);
        }
        status = check_numbers(a, heads, error);
    }
    for (int i = 0; rooms && i < threads; i++)
        close_room(&rooms[i]);
    free(rooms);
    return status;
}

void needs_largest(const double *heads, int64_t count, int64_t each, double *out)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = heads[i * each];
        for (int64_t n = 1; n < each; n++)
            out[i] = fmax(out[i], heads[i * each + n]);
    }
}
