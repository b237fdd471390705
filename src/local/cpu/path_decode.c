/* SPDX-License-Identifier: MIT
 *
 * PaTH decode on CPUs, compiled once for each instruction set. The cache is not changed: query and probe walk
 * the keys from the last to the first and are reflected at each. That reads w besides k and v (half as many
 * bytes again) and is sequential, so threads share rows, not the keys of one row. Reflecting the cached keys
 * instead would write all of them at every step.
 */
#include "src/local/cpu/path_tile.h"
#include "src/local/local.h"

#include <omp.h>

typedef struct walk {
    const loam_problem *p;
    const loam_args *a;
    local_seq s;
    int64_t b, h, h_kv, i, at;
    int64_t first; /* the key that row 0 of k and v holds */
    float query[LOAM_MAX_DIM], probe[LOAM_MAX_DIM], row[LOAM_MAX_DIM];
    float s_of[EDGE], t_of[EDGE];
    double m, omega, tbar;
    double *vbar, *value_shift; /* sums of w v and w t v */
} walk;

static bool probed(const walk *k) { return k->p->mechanism == LOAM_PARALLAX; }

static void reflect(float *restrict x, const float *restrict w, float beta, int64_t d)
{
    const float along = beta * dot(x, w, d);
    for (int64_t c = 0; c < d; c++)
        x[c] -= along * w[c];
}

/* Reflects query and probe by w and beta of key t. */
static void cross(walk *k, int64_t t)
{
    const loam_args *a = k->a;
    const float beta = ((const float *)a->beta.data)[LOCAL_AT(a->beta, k->s.b, k->h_kv, k->s.k0 + t)];
    load_floats(k->row, a->w.data, k->p->dtype, LOCAL_AT(a->w, k->s.b, k->h_kv, k->s.k0 + t), k->p->dim_qk);
    reflect(k->query, k->row, beta, k->p->dim_qk);
    if (probed(k)) reflect(k->probe, k->row, beta, k->p->dim_qk);
}

static float decay_of(const walk *k, int64_t j)
{
    const loam_const_view *view = &k->a->log_decay;
    if (!k->p->decay) return 0;
    const local_decay_pair *sum = (const local_decay_pair *)view->data +
                                  LOCAL_AT(*view, k->s.b, k->h, k->s.k0);
    const local_decay_pair at = sum[k->at * view->token], key = sum[j * view->token];
    return (at.hi - key.hi) + (at.lo - key.lo);
}

/* Scores and products with the probe of keys last - 1 down to j; returns the largest score. */
static float scores(walk *k, int64_t j, int64_t last)
{
    const loam_args *a = k->a;
    float top = -INFINITY;
    for (int64_t t = last - 1; t >= j; t--) {
        load_floats(k->row, a->k.data, k->p->dtype, LOCAL_AT(a->k, k->s.b, k->h_kv, k->s.k0 + t - k->first),
                    k->p->dim_qk);
        const float x = (float)k->p->scale * dot(k->query, k->row, k->p->dim_qk);
        k->s_of[t - j] = fmaxf(fminf(x, SCORE_LIMIT), -SCORE_LIMIT) + decay_of(k, t);
        k->t_of[t - j] = probed(k) ? dot(k->probe, k->row, k->p->dim_qk) : 0;
        top = fmaxf(top, k->s_of[t - j]);
        cross(k, t);
    }
    return top;
}

/* Adds keys j .. last - 1 to the state: sums relative to m, and t relative to tbar, which is then
 * shifted to the mean. */
static void gather(walk *k, int64_t j, int64_t last)
{
    const int64_t dv = k->p->dim_v;
    const double top = (double)scores(k, j, last), m = fmax(top, k->m);
    const double keep = k->omega > 0 ? exp(k->m - m) : 0;
    k->omega *= keep;
    for (int64_t c = 0; c < dv; c++) {
        k->vbar[c] *= keep;
        k->value_shift[c] *= keep;
    }
    double drift = 0;
    for (int64_t t = j; t < last; t++) {
        const double w = exp((double)k->s_of[t - j] - m), rest = (double)k->t_of[t - j] - k->tbar;
        load_floats(k->row, k->a->v.data, k->p->dtype,
                    LOCAL_AT(k->a->v, k->s.b, k->h_kv, k->s.k0 + t - k->first), dv);
        k->omega += w;
        drift += w * rest;
        for (int64_t c = 0; c < dv; c++) {
            k->vbar[c] += w * (double)k->row[c];
            k->value_shift[c] += w * rest * (double)k->row[c];
        }
    }
    k->m = m;
    if (probed(k)) {
        drift /= k->omega;
        k->tbar += drift;
        for (int64_t c = 0; c < dv; c++)
            k->value_shift[c] -= drift * k->vbar[c];
    }
}

/* The state (loam.h) of the keys that the row sees among first .. first + count - 1. */
static void row_state(walk *k, int64_t count, double *state)
{
    const loam_problem *p = k->p;
    const int64_t end = k->first + count, last = k->at + 1 < end ? k->at + 1 : end, dv = p->dim_v;
    local_state_clear(p, state);
    if (last <= k->first) return;
    load_floats(k->query, k->a->q.data, p->dtype, LOCAL_AT(k->a->q, k->s.b, k->h, k->s.q0 + k->i), p->dim_qk);
    if (probed(k)) {
        load_floats(k->probe, k->a->probe.data, p->dtype, LOCAL_AT(k->a->probe, k->s.b, k->h, k->s.q0 + k->i),
                    p->dim_qk);
    }
    k->m = -INFINITY;
    k->omega = k->tbar = 0;
    memset(k->vbar, 0, (size_t)dv * sizeof *k->vbar);
    memset(k->value_shift, 0, (size_t)dv * sizeof *k->value_shift);
    for (int64_t t = k->at; t >= last; t--)
        cross(k, t);
    for (int64_t top = last; top > k->first; top -= EDGE)
        gather(k, top - EDGE > k->first ? top - EDGE : k->first, top);
    double *out = state;
    *out++ = k->m;
    *out++ = k->omega;
    if (probed(k)) *out++ = k->tbar;
    for (int64_t c = 0; c < dv; c++) {
        out[c] = k->vbar[c] / k->omega;
        if (probed(k)) out[dv + c] = k->value_shift[c];
    }
}

/* Scratch of a thread: a state, sums of values, and scratch of local_state_finish. */
typedef struct decode_work {
    double *state, *vbar, *value_shift, *scratch;
} decode_work;

static decode_work decode_work_carve(const loam_problem *p, arena *pool)
{
    decode_work w;
    w.state = arena_take(pool, local_state_doubles(p), sizeof(double));
    w.vbar = arena_take(pool, (size_t)p->dim_v, sizeof(double));
    w.value_shift = arena_take(pool, (size_t)p->dim_v, sizeof(double));
    w.scratch = arena_take(pool, local_state_scratch(p), sizeof(double));
    return w;
}

size_t LOCAL_JOIN(ISA(local_path_decode), work)(const loam_problem *p)
{
    arena pool = { 0 };
    decode_work_carve(p, &pool);
    return size_mul(pool.used, (size_t)p->threads);
}

/* states: array for the partial states; NULL: finish them and write the outputs. */
static void decode(const loam_problem *p, const loam_args *a, int64_t first, int64_t count, double *states)
{
    const size_t each = LOCAL_JOIN(ISA(local_path_decode), work)(p) / (size_t)p->threads;
    const int64_t doubles = (int64_t)local_state_doubles(p);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + each * (size_t)omp_get_thread_num(), 0 };
        const decode_work w = decode_work_carve(p, &pool);
        walk k = { .p = p, .a = a, .first = first, .vbar = w.vbar, .value_shift = w.value_shift };
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t b = 0; b < p->batch; b++) {
            for (int64_t h = 0; h < p->heads_q; h++) {
                for (int64_t i = 0; i < p->len_q; i++) {
                    k.s = local_seq_at(p, a, b);
                    k.h = h, k.h_kv = local_kv_head(p, h), k.i = i, k.at = i + k.s.nk - k.s.nq;
                    double *state = states ? states + local_row(p, &k.s, h, i) * doubles : w.state;
                    row_state(&k, count, state);
                    if (!states) local_state_finish(p, a, &k.s, h, i, state, w.scratch);
                }
            }
        }
    }
}

loam_status ISA(local_path_partial)(const loam_problem *p, const loam_args *a, int64_t first, int64_t count,
                                    double *states, loam_error *error)
{
    decode(p, a, first, count, states);
    return loam_succeed(error);
}

loam_status ISA(local_path_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    decode(p, a, 0, p->len_kv, NULL);
    return loam_succeed(error);
}
