/* SPDX-License-Identifier: MIT
 *
 * PaTH on CPUs for any probe (local/path_batch.h), compiled once for each instruction set. The threads share
 * heads and tiles of keys, then, in the kernels of the family, rows. Reflections are applied in float64.
 * Forward and decode alone: backward gains nothing over the reference, which does it.
 */
#include "src/local/path_batch.h"
#include "src/local/cpu/tile.h"

/* Dot products have LINES partial sums, so that the compiler can use vector instructions. */
enum { LINES = 8 };

static double along(const double *restrict x, const double *restrict y, int64_t d)
{
    double part[LINES] = { 0 }, rest = 0;
    int64_t c = 0;
    for (; c + LINES <= d; c += LINES)
        for (int line = 0; line < LINES; line++)
            part[line] += x[c + line] * y[c + line];
    for (; c < d; c++)
        rest += x[c] * y[c];
    for (int line = 0; line < LINES; line++)
        rest += part[line];
    return rest;
}

/* x += scale y. */
static void add_scaled(double *restrict x, double scale, const double *restrict y, int64_t d)
{
    for (int64_t c = 0; c < d; c++)
        x[c] += scale * y[c];
}

static void load_doubles(double *to, const loam_const_view *view, loam_dtype dtype, int64_t b, int64_t h,
                         int64_t token, int64_t d)
{
    for (int64_t c = 0; c < d; c++)
        to[c] = element_load(view->data, dtype, LOCAL_AT(*view, b, h, token) + c);
}

/* ------------------------------------------------------------------ a sequence, and the rows of a group */

static loam_status begin(const loam_problem *p, const loam_args *a, const batch_arrays *w, int64_t b,
                         loam_error *error)
{
    const local_seq s = local_seq_at(p, a, b);
    const int64_t end = s.nk < w->end ? s.nk : w->end;
    (void)error;
#pragma omp parallel for collapse(2) num_threads(p->threads) schedule(static)
    for (int64_t h = 0; h < p->heads_kv; h++) {
        for (int64_t j = w->first; j < end; j++) {
            load_floats(w->values + (h * p->len_kv + j) * p->dim_v, a->v.data, p->dtype,
                        LOCAL_AT(a->v, s.b, h, s.k0 + j - w->first), p->dim_v);
        }
    }
    for (int64_t h = 0; p->decay && h < p->heads_q; h++) {
        const local_decay_pair *sums = (const local_decay_pair *)a->log_decay.data +
                                       LOCAL_AT(a->log_decay, s.b, h, s.k0);
        memcpy(w->decay + h * p->len_kv, sums, (size_t)s.nk * sizeof *sums);
    }
    return LOAM_OK;
}

static loam_status clear(const loam_args *a, void *data, size_t bytes, loam_error *error)
{
    (void)a, (void)error;
    if (bytes > 0) memset(data, 0, bytes);
    return LOAM_OK;
}

/* Copies one row of one array. */
static void move_row(const batch_rows *x, bool in, int64_t outside, int64_t inside)
{
    const size_t bytes = dtype_bytes(x->dtype);
    for (int64_t c = 0; bytes == 2 && c < x->width; c++) {
        float *own = (float *)x->own + inside + c;
        if (in)
            *own = (float)element_load(x->data, x->dtype, outside + c);
        else
            element_store(x->data, x->dtype, outside + c, (double)*own);
    }
    if (bytes > 2) {
        char *own = (char *)x->own + inside * (int64_t)bytes,
             *all = (char *)x->data + outside * (int64_t)bytes;
        memcpy(in ? own : all, in ? all : own, (size_t)x->width * bytes);
    }
}

static loam_status move(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                        const batch_moves *moves, bool in, const batch_steps *steps, loam_error *error)
{
    const local_seq s = local_seq_at(p, a, steps->b);
    (void)error;
#pragma omp parallel for num_threads(p->threads) schedule(static)
    for (int64_t row = 0; row < steps->count * p->heads_q; row++) {
        const int64_t n = row / p->heads_q, h = row % p->heads_q;
        const batch_step step = batch_step_at(&w->shape, &s, steps->first + n);
        const bool there = step.query >= 0;
        if (in && h == 0) w->lens[n] = there && step.position >= 0 ? step.position + 1 : 0;
        for (int i = 0; i < moves->count; i++) {
            const batch_rows *x = &moves->rows[i];
            if (there) {
                move_row(x, in, s.b * x->batch + h * x->head + (s.q0 + step.query) * x->token,
                         row * x->width);
            } else if (in) {
                memset((float *)x->own + row * x->width, 0, (size_t)x->width * sizeof(float));
            }
        }
    }
    return LOAM_OK;
}

/* ------------------------------------------------------------------ keys turn */

/* w and beta of step n of a group; load_reflections fills those of steps with a position. */
static double *reflection_of(const loam_problem *p, const batch_arrays *w, int64_t h, int64_t n)
{
    return w->turns + (h * w->shape.group + n) * (p->dim_qk + 1);
}

static void load_reflections(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                             const local_seq *s, int64_t t0, int64_t count)
{
#pragma omp parallel for collapse(2) num_threads(p->threads) schedule(static)
    for (int64_t h = 0; h < p->heads_kv; h++) {
        for (int64_t n = 0; n < count; n++) {
            double *turn = reflection_of(p, w, h, n);
            if (t0 + n >= 0) {
                load_doubles(turn, &a->w, p->dtype, s->b, h, s->k0 + t0 + n, p->dim_qk);
                turn[p->dim_qk] = element_load(a->beta.data, LOAM_F32,
                                               LOCAL_AT(a->beta, s->b, h, s->k0 + t0 + n));
            }
        }
    }
}

/* Applies the reflections of `count` positions from t0 on to key j of a head, from one frame to another
 * or in place. */
static void reflect_key(const loam_problem *p, const loam_args *a, const batch_arrays *w, const local_seq *s,
                        int64_t h, int64_t j, int64_t t0, int64_t count, const double *from, double *to,
                        float *copies)
{
    const int64_t d = p->dim_qk, at = (h * p->len_kv + j) * d, step = p->heads_kv * p->len_kv * d;
    double *key = to + at;
    if (j >= t0)
        load_doubles(key, &a->k, p->dtype, s->b, h, s->k0 + j - w->first, d);
    else if (from != to)
        memcpy(key, from + at, (size_t)d * sizeof *key);
    for (int64_t n = j < t0 ? 0 : j - t0; n < count; n++) {
        const double *turn = reflection_of(p, w, h, n);
        if (t0 + n > j) add_scaled(key, -turn[d] * along(turn, key, d), turn, d);
        for (int64_t c = 0; copies && c < d; c++)
            copies[n * step + at + c] = (float)key[c];
    }
}

/* The same for all keys; count is at most the steps of a group. */
static void reflect_some(const loam_problem *p, const loam_args *a, const batch_arrays *w, const local_seq *s,
                         int64_t t0, int64_t count, const double *from, double *to, float *copies)
{
    const int64_t last = t0 + count < s->nk ? t0 + count : s->nk, end = last < w->end ? last : w->end;
    load_reflections(p, a, w, s, t0, count);
#pragma omp parallel for collapse(2) num_threads(p->threads) schedule(dynamic, 1)
    for (int64_t h = 0; h < p->heads_kv; h++) {
        for (int64_t tile = w->first / BATCH_KEYS; tile < (end + BATCH_KEYS - 1) / BATCH_KEYS; tile++) {
            const int64_t first = tile * BATCH_KEYS, most = first + BATCH_KEYS;
            for (int64_t j = first > w->first ? first : w->first; j < end && j < most; j++)
                reflect_key(p, a, w, s, h, j, t0, count, from, to, copies);
        }
    }
}

static loam_status turn(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                        const batch_steps *steps, int64_t from, int64_t to, bool copies, loam_error *error)
{
    const local_seq s = local_seq_at(p, a, steps->b);
    const int64_t t0 = batch_step_at(&w->shape, &s, steps->first).position;
    const double *start = w->frames + from * w->frame;
    double *end = w->frames + to * w->frame;
    (void)error;
    for (int64_t n = 0; n < steps->count; n += w->shape.group) {
        const int64_t left = steps->count - n, count = left < w->shape.group ? left : w->shape.group;
        reflect_some(p, a, w, &s, t0 + n, count, n > 0 ? end : start, end, copies ? w->keys : NULL);
    }
    return LOAM_OK;
}

/* ------------------------------------------------------------------ the kernels of the family */

/* Forward uses the decode kernels, which are made for one query at a time, unless more than their
 * outputs is wanted. */
static size_t work(const loam_problem *own)
{
    const size_t one = LOCAL_JOIN(ISA(local_decode), work)(own);
    const size_t whole = own->pass == LOAM_FORWARD ? LOCAL_JOIN(ISA(local_forward), work)(own) : 0;
    return one > whole ? one : whole;
}

static loam_status forward(const batch_arrays *w, const loam_args *own, loam_error *error)
{
    return own->saved || own->weights.data ? ISA(local_forward)(&w->own, own, error)
                                           : ISA(local_decode)(&w->own, own, error);
}

static const batch_backend cpu = {
    .group_bytes = (size_t)64 << 20,
    .work = work,
    .begin = begin,
    .clear = clear,
    .move = move,
    .turn = turn,
    .forward = forward,
};

size_t LOCAL_JOIN(ISA(local_path_batch_forward), work)(const loam_problem *p)
{
    return local_path_batch_work(&cpu, p);
}
size_t LOCAL_JOIN(ISA(local_path_batch_decode), work)(const loam_problem *p)
{
    return local_path_batch_work(&cpu, p);
}

loam_status ISA(local_path_batch_forward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return local_path_batch_forward(&cpu, p, a, error);
}

loam_status ISA(local_path_batch_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return local_path_batch_forward(&cpu, p, a, error);
}

loam_status ISA(local_path_batch_partial)(const loam_problem *p, const loam_args *a, int64_t first,
                                          int64_t count, double *states, loam_error *error)
{
    return local_path_batch_partial(&cpu, ISA(local_partial), p, a, first, count, states, error);
}
