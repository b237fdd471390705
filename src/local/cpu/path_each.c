/* SPDX-License-Identifier: MIT
 *
 * PaTH on CPUs for any probe (local/path_each.h), compiled once for each instruction set. The threads share
 * heads and tiles of keys, then, in the kernels of the family, rows. Reflections are applied in float64.
 */
#include "src/local/path_each.h"
#include "src/local/cpu/tile.h"

/* Dot products have LINES partial sums, so that the compiler can use vector instructions. */
enum { LINES = 8 };

static double along(const double *restrict x, const double *restrict y, int64_t d)
{
    double part[LINES] = { 0 }, rest = 0;
    int64_t c = 0;
    for (; c + LINES <= d; c += LINES) {
        for (int line = 0; line < LINES; line++) {
            part[line] += x[c + line] * y[c + line];
        }
    }
    for (; c < d; c++) {
        rest += x[c] * y[c];
    }
    for (int line = 0; line < LINES; line++) {
        rest += part[line];
    }
    return rest;
}

/* x += scale y. */
static void add_scaled(double *restrict x, double scale, const double *restrict y, int64_t d)
{
    for (int64_t c = 0; c < d; c++) {
        x[c] += scale * y[c];
    }
}

static void load_doubles(double *to, const loam_const_view *view, loam_dtype dtype, int64_t b, int64_t h,
                         int64_t token, int64_t d)
{
    for (int64_t c = 0; c < d; c++) {
        to[c] = element_load(view->data, dtype, LOCAL_AT(*view, b, h, token) + c);
    }
}

static void widen(double *restrict to, const float *restrict from, int64_t d)
{
    for (int64_t c = 0; c < d; c++) {
        to[c] = (double)from[c];
    }
}

/* ------------------------------------------------------------------ a sequence, and the rows of a group */

static loam_status begin(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
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
    if (bytes > 0) {
        memset(data, 0, bytes);
    }
    return LOAM_OK;
}

/* Copies one row of one array. */
static void move_row(const each_rows *x, bool in, int64_t outside, int64_t inside)
{
    const size_t bytes = dtype_bytes(x->dtype);
    for (int64_t c = 0; bytes == 2 && c < x->width; c++) {
        float *own = (float *)x->own + inside + c;
        if (in) {
            *own = (float)element_load(x->data, x->dtype, outside + c);
        } else {
            element_store(x->data, x->dtype, outside + c, (double)*own);
        }
    }
    if (bytes > 2) {
        char *own = (char *)x->own + inside * (int64_t)bytes,
             *all = (char *)x->data + outside * (int64_t)bytes;
        memcpy(in ? own : all, in ? all : own, (size_t)x->width * bytes);
    }
}

static loam_status move(const loam_problem *p, const loam_args *a, const each_arrays *w,
                        const each_moves *moves, bool in, const each_steps *steps, loam_error *error)
{
    const local_seq s = local_seq_at(p, a, steps->b);
    (void)error;
#pragma omp parallel for num_threads(p->threads) schedule(static)
    for (int64_t row = 0; row < steps->count * p->heads_q; row++) {
        const int64_t n = row / p->heads_q, h = row % p->heads_q;
        const each_step step = each_step_at(&w->shape, &s, steps->first + n);
        const bool there = step.query >= 0;
        if (in && h == 0) {
            w->lens[n] = there && step.position >= 0 ? step.position + 1 : 0;
        }
        for (int i = 0; i < moves->count; i++) {
            const each_rows *x = &moves->rows[i];
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

/* w and beta of step n of a group; load_turns fills those of steps with a position. */
static double *turn_of(const loam_problem *p, const each_arrays *w, int64_t h, int64_t n)
{
    return w->turns + (h * w->shape.group + n) * (p->dim_qk + 1);
}

static void load_turns(const loam_problem *p, const loam_args *a, const each_arrays *w, const local_seq *s,
                       int64_t t0, int64_t count)
{
#pragma omp parallel for collapse(2) num_threads(p->threads) schedule(static)
    for (int64_t h = 0; h < p->heads_kv; h++) {
        for (int64_t n = 0; n < count; n++) {
            double *turn = turn_of(p, w, h, n);
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
static void turn_key(const loam_problem *p, const loam_args *a, const each_arrays *w, const local_seq *s,
                     int64_t h, int64_t j, int64_t t0, int64_t count, const double *from, double *to,
                     float *copies)
{
    const int64_t d = p->dim_qk, at = (h * p->len_kv + j) * d, step = p->heads_kv * p->len_kv * d;
    double *key = to + at;
    if (j >= t0) {
        load_doubles(key, &a->k, p->dtype, s->b, h, s->k0 + j - w->first, d);
    } else if (from != to) {
        memcpy(key, from + at, (size_t)d * sizeof *key);
    }
    for (int64_t n = j < t0 ? 0 : j - t0; n < count; n++) {
        const double *turn = turn_of(p, w, h, n);
        if (t0 + n > j) {
            add_scaled(key, -turn[d] * along(turn, key, d), turn, d);
        }
        for (int64_t c = 0; copies && c < d; c++) {
            copies[n * step + at + c] = (float)key[c];
        }
    }
}

/* The same for all keys; count is at most the steps of a group. */
static void turn_some(const loam_problem *p, const loam_args *a, const each_arrays *w, const local_seq *s,
                      int64_t t0, int64_t count, const double *from, double *to, float *copies)
{
    const int64_t last = t0 + count < s->nk ? t0 + count : s->nk, end = last < w->end ? last : w->end;
    load_turns(p, a, w, s, t0, count);
#pragma omp parallel for collapse(2) num_threads(p->threads) schedule(dynamic, 1)
    for (int64_t h = 0; h < p->heads_kv; h++) {
        for (int64_t tile = w->first / EACH_KEYS; tile < (end + EACH_KEYS - 1) / EACH_KEYS; tile++) {
            const int64_t first = tile * EACH_KEYS, most = first + EACH_KEYS;
            for (int64_t j = first > w->first ? first : w->first; j < end && j < most; j++) {
                turn_key(p, a, w, s, h, j, t0, count, from, to, copies);
            }
        }
    }
}

static loam_status turn(const loam_problem *p, const loam_args *a, const each_arrays *w,
                        const each_steps *steps, int64_t from, int64_t to, bool copies, loam_error *error)
{
    const local_seq s = local_seq_at(p, a, steps->b);
    const int64_t t0 = each_step_at(&w->shape, &s, steps->first).position;
    const double *start = w->frames + from * w->frame;
    double *end = w->frames + to * w->frame;
    (void)error;
    for (int64_t n = 0; n < steps->count; n += w->shape.group) {
        const int64_t left = steps->count - n, count = left < w->shape.group ? left : w->shape.group;
        turn_some(p, a, w, &s, t0 + n, count, n > 0 ? end : start, end, copies ? w->keys : NULL);
    }
    return LOAM_OK;
}

/* ------------------------------------------------------------------ and their gradients turn back */

/* The adjoint of k' = k - beta w (w . k), with G the gradient of k':
 * dbeta -= (w . k)(w . G), dw -= beta ((w . G) k + (w . k) G), G <- G - beta w (w . G). */
static void turn_back_key(const double *turn, const double *key, double *grad, double *part, int64_t d)
{
    const double along_key = along(turn, key, d), along_grad = along(turn, grad, d), beta = turn[d];
    part[d] -= along_key * along_grad;
    add_scaled(part, -beta * along_grad, key, d);
    add_scaled(part, -beta * along_key, grad, d);
    add_scaled(grad, -beta * along_grad, turn, d);
}

/* Rounds a frame like the copies of the steps, so that the result does not depend on the size of groups. */
static void round_to_float(double *to, const double *from, int64_t d)
{
    for (int64_t c = 0; c < d; c++) {
        to[c] = (float)from[c];
    }
}

static void turn_back_tile(const loam_problem *p, const each_arrays *w, const local_seq *s,
                           const each_steps *steps, int64_t h, int64_t tile, int64_t tiles,
                           const double *frame)
{
    const int64_t d = p->dim_qk, step = p->heads_kv * p->len_kv * d, first = tile * EACH_KEYS;
    const int64_t t0 = each_step_at(&w->shape, s, steps->first).position;
    double key[LOAM_MAX_DIM];
    for (int64_t n = steps->count - 1; n >= 0 && t0 + n >= first; n--) {
        const int64_t t = t0 + n;
        const bool row = steps->rows && each_step_at(&w->shape, s, steps->first + n).query >= 0;
        double *part = w->parts + ((h * tiles + tile) * w->shape.group + n) * (d + 1);
        memset(part, 0, (size_t)(d + 1) * sizeof *part);
        for (int64_t j = first; j < first + EACH_KEYS && j <= t; j++) {
            const int64_t at = (h * p->len_kv + j) * d;
            double *grad = w->sum_k + at;
            for (int64_t c = 0; row && c < d; c++) {
                grad[c] += (double)w->grad_k[n * step + at + c];
            }
            if (j < t) {
                if (n > 0) {
                    widen(key, w->keys + (n - 1) * step + at, d);
                } else {
                    round_to_float(key, frame + at, d);
                }
                turn_back_key(turn_of(p, w, h, n), key, grad, part, d);
            }
        }
    }
}

/* Writes dw and dbeta at position t of step n: the partial sums of all keys before it. */
static void put_reflection(const loam_problem *p, const loam_args *a, const each_arrays *w,
                           const local_seq *s, int64_t h, int64_t n, int64_t t, int64_t tiles)
{
    const int64_t d = p->dim_qk;
    for (int64_t c = 0; c <= d; c++) {
        double sum = 0;
        for (int64_t tile = 0; tile * EACH_KEYS < t; tile++) {
            sum += w->parts[((h * tiles + tile) * w->shape.group + n) * (d + 1) + c];
        }
        if (c < d && a->grad_w.data) {
            element_store(a->grad_w.data, p->dtype, LOCAL_AT(a->grad_w, s->b, h, s->k0 + t) + c, sum);
        } else if (c == d && a->grad_beta.data) {
            element_store(a->grad_beta.data, LOAM_F32, LOCAL_AT(a->grad_beta, s->b, h, s->k0 + t), sum);
        }
    }
}

static loam_status turn_back(const loam_problem *p, const loam_args *a, const each_arrays *w,
                             const each_steps *steps, int64_t frame, loam_error *error)
{
    const local_seq s = local_seq_at(p, a, steps->b);
    const int64_t t0 = each_step_at(&w->shape, &s, steps->first).position, end = t0 + steps->count,
                  tiles = end > 0 ? (end + EACH_KEYS - 1) / EACH_KEYS : 0;
    (void)error;
    load_turns(p, a, w, &s, t0, steps->count);
#pragma omp parallel num_threads(p->threads)
    {
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t h = 0; h < p->heads_kv; h++) {
            for (int64_t tile = 0; tile < tiles; tile++) {
                turn_back_tile(p, w, &s, steps, h, tile, tiles, w->frames + frame * w->frame);
            }
        }
#pragma omp for collapse(2) schedule(static)
        for (int64_t h = 0; h < p->heads_kv; h++) {
            for (int64_t n = 0; n < steps->count; n++) {
                if (t0 + n >= 0) {
                    put_reflection(p, a, w, &s, h, n, t0 + n, tiles);
                }
            }
        }
    }
    return LOAM_OK;
}

/* ------------------------------------------------------------------ sums over rows, and their end */

static loam_status add(const loam_args *a, double *sum, const float *parts, int64_t heads, int64_t stored,
                       int64_t keys, int64_t width, int64_t count, loam_error *error)
{
    (void)a, (void)error;
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t n = count - 1; n >= 0; n--) {
            const float *part = parts + (n * heads + h) * stored * width;
            for (int64_t e = 0; e < keys * width; e++) {
                sum[h * stored * width + e] += (double)part[e];
            }
        }
    }
    return LOAM_OK;
}

static void put_row(const loam_view *view, loam_dtype dtype, int64_t b, int64_t h, int64_t token,
                    int64_t width, const double *sum)
{
    for (int64_t c = 0; view->data && c < width; c++) {
        element_store(view->data, dtype, LOCAL_AT(*view, b, h, token) + c, sum ? sum[c] : 0);
    }
}

/* Keys that are not in use belong to no step: their gradients are 0. */
static loam_status finish(const loam_problem *p, const loam_args *a, const each_arrays *w, int64_t b,
                          loam_error *error)
{
    const local_seq s = local_seq_at(p, a, b);
    (void)error;
    for (int64_t h = 0; h < p->heads_q; h++) {
        for (int64_t j = 0; j < local_stored_keys(p, &s); j++) {
            const int64_t at = h * p->len_kv + j, token = s.k0 + j;
            const bool used = j < s.nk;
            if (p->decay) {
                put_row(&a->grad_log_decay, LOAM_F32, s.b, h, token, 1, used ? w->sum_columns + at : NULL);
            }
            if (h < p->heads_kv) {
                put_row(&a->grad_k, p->dtype, s.b, h, token, p->dim_qk,
                        used ? w->sum_k + at * p->dim_qk : NULL);
                put_row(&a->grad_v, p->dtype, s.b, h, token, p->dim_v,
                        used ? w->sum_v + at * p->dim_v : NULL);
            }
            if (h < p->heads_kv && !used) {
                put_row(&a->grad_w, p->dtype, s.b, h, token, p->dim_qk, NULL);
                put_row(&a->grad_beta, LOAM_F32, s.b, h, token, 1, NULL);
            }
        }
    }
    return LOAM_OK;
}

static loam_status reduce(const loam_problem *p, const loam_args *a, const each_arrays *w, loam_error *error)
{
    (void)error;
    local_row_sums_reduce(p, a, &w->sums);
    return LOAM_OK;
}

/* ------------------------------------------------------------------ the kernels of the family */

/* Forward uses the decode kernels, which are made for one query at a time, unless more than their
 * outputs is wanted. */
static size_t work(const loam_problem *own)
{
    const size_t one = own->pass == LOAM_BACKWARD ? 0 : LOCAL_JOIN(ISA(local_decode), work)(own);
    const size_t whole = own->pass == LOAM_FORWARD    ? LOCAL_JOIN(ISA(local_forward), work)(own)
                         : own->pass == LOAM_BACKWARD ? LOCAL_JOIN(ISA(local_backward), work)(own)
                                                      : 0;
    return one > whole ? one : whole;
}

static loam_status forward(const each_arrays *w, const loam_args *own, loam_error *error)
{
    return own->saved || own->weights.data ? ISA(local_forward)(&w->own, own, error)
                                           : ISA(local_decode)(&w->own, own, error);
}

static loam_status backward(const each_arrays *w, const loam_args *own, local_row_sums *sums,
                            loam_error *error)
{
    (void)error;
    ISA(local_backward_rows)(&w->own, own, sums);
    return LOAM_OK;
}

static const each_backend cpu = {
    .group_bytes = (size_t)64 << 20,
    .work = work,
    .begin = begin,
    .clear = clear,
    .move = move,
    .turn = turn,
    .forward = forward,
    .backward = backward,
    .add = add,
    .turn_back = turn_back,
    .finish = finish,
    .reduce = reduce,
};

size_t LOCAL_JOIN(ISA(local_path_each_forward), work)(const loam_problem *p)
{
    return local_path_each_work(&cpu, p);
}
size_t LOCAL_JOIN(ISA(local_path_each_backward), work)(const loam_problem *p)
{
    return local_path_each_work(&cpu, p);
}
size_t LOCAL_JOIN(ISA(local_path_each_decode), work)(const loam_problem *p)
{
    return local_path_each_work(&cpu, p);
}

loam_status ISA(local_path_each_forward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return local_path_each_forward(&cpu, p, a, error);
}

loam_status ISA(local_path_each_backward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return local_path_each_backward(&cpu, p, a, error);
}

loam_status ISA(local_path_each_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return local_path_each_forward(&cpu, p, a, error);
}

loam_status ISA(local_path_each_partial)(const loam_problem *p, const loam_args *a, int64_t first,
                                         int64_t count, double *states, loam_error *error)
{
    return local_path_each_partial(&cpu, ISA(local_partial), p, a, first, count, states, error);
}
