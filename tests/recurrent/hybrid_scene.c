/* SPDX-License-Identifier: MIT */
#include "tests/recurrent/hybrid_scene.h"

#include "cli/device.h"
#include "tests/support/element.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int64_t heads_of_z(const scene *s) { return s->shared ? s->heads_kv : s->heads_q; }

int64_t scene_count(const scene *s, array which)
{
    const int64_t q = s->batch * s->heads_q * s->len, kv = s->batch * s->heads_kv * s->len, z = heads_of_z(s),
                  slots = s->batch * s->heads_kv * (s->sinks + s->window);
    switch (which) {
    case Q:
    case GRAD_Q: return q * s->d;
    case K:
    case GRAD_K: return kv * s->d;
    case V:
    case GRAD_V: return kv * s->dv;
    case O:
    case GRAD_O: return q * s->dv;
    case Z:
    case GRAD_Z: return z * s->features * s->d;
    case ALPHA:
    case GRAD_ALPHA: return z * s->features;
    case SHIFT: return z * s->d;
    case BALANCE:
    case BALANCE_KEYS: return z * s->d * s->d;
    case GAIN:
    case GRAD_GAIN: return s->heads_q;
    case STATE: return s->batch * z * (s->dv + 3) * (s->features + 1);
    case KEYS: return slots * s->d;
    case VALUES: return slots * s->dv;
    case ARRAYS: break;
    }
    return 0;
}

loam_dtype scene_type(const scene *s, array which)
{
    const int real = (which >= Z && which <= GAIN) || (which >= GRAD_Z && which <= STATE);
    return real ? element_real(s->dtype) : s->dtype;
}

/* B^T A = I: A = D, B = D^-1. */
static void draw_balance(scene *s, rng *random)
{
    for (int64_t i = 0; i < heads_of_z(s) * s->d; i++) {
        const double factor = exp(0.3 * rng_normal(random));
        s->x[BALANCE][i * s->d + i % s->d] = element_round(LOAM_F32, factor);
        s->x[BALANCE_KEYS][i * s->d + i % s->d] = 1 / element_round(LOAM_F32, factor);
    }
}

void scene_fill(scene *s, uint64_t seed)
{
    rng random = rng_make(29, seed);
    for (int a = 0; a < ARRAYS; a++)
        s->x[a] = memory_zeroed((size_t)scene_count(s, (array)a), sizeof(double));
    for (int a = Q; a <= GAIN; a++)
        if (a != BALANCE && a != BALANCE_KEYS)
            rng_fill_normal(&random, s->x[a], scene_count(s, (array)a), 0, a == SHIFT || a == GAIN ? 0.5 : 1);
    draw_balance(s, &random);
    for (int a = Q; a <= GAIN; a++)
        for (int64_t i = 0; i < scene_count(s, (array)a); i++)
            s->x[a][i] = element_round(scene_type(s, (array)a), s->x[a][i]);
}

scene scene_make(int64_t len, int64_t sinks, int64_t window, uint64_t seed)
{
    scene s = { .batch = 2, .heads_q = 2, .heads_kv = 2, .len = len, .d = 3, .dv = 2, .features = 5 };
    s.sinks = sinks, s.window = window;
    s.threads = 1, s.dtype = LOAM_F64, s.backend = LOAM_BACKEND_REFERENCE;
    scene_fill(&s, seed);
    return s;
}

void scene_free(scene *s)
{
    for (int a = 0; a < ARRAYS; a++)
        free(s->x[a]);
    free(s->saved);
}

loam_problem scene_problem(const scene *s, loam_pass pass)
{
    loam_problem p = loam_problem_default(LOAM_LINEAR, pass);
    p.feature_map = LOAM_FEATURES_POSITIVE, p.normalise = 1, p.features = s->features;
    p.features_shared = s->shared;
    p.dtype = s->dtype, p.backend = s->backend, p.threads = s->threads;
    p.batch = s->batch, p.heads_q = s->heads_q, p.heads_kv = s->heads_kv;
    p.len_q = p.len_kv = s->len, p.dim_qk = s->d, p.dim_v = s->dv, p.scale = s->scale;
    return p;
}

/* ------------------------------------------------------------------ runs */

void *scene_room(size_t bytes)
{
    return aligned_alloc(LOAM_ALIGN, bytes / LOAM_ALIGN * LOAM_ALIGN + LOAM_ALIGN);
}

static void *to_device(void *host, size_t bytes)
{
    void *memory = NULL;
    assert_null(device_alloc(&memory, bytes + 1));
    assert_null(device_upload(memory, host, bytes));
    free(host);
    return memory;
}

static size_t bytes_of(const scene *s, int a)
{
    return (size_t)scene_count(s, (array)a) * element_bytes(scene_type(s, (array)a));
}

scene_memory scene_send(const scene *s)
{
    scene_memory m = { .device = s->backend == LOAM_BACKEND_CUDA };
    for (int a = 0; a < ARRAYS; a++) {
        m.memory[a] = scene_room(bytes_of(s, a));
        for (int64_t i = 0; i < scene_count(s, (array)a); i++)
            element_set(m.memory[a], scene_type(s, (array)a), i, s->x[a][i]);
        if (m.device) m.memory[a] = to_device(m.memory[a], bytes_of(s, a));
    }
    return m;
}

void scene_fetch(scene *s, scene_memory *m)
{
    if (m->device) assert_null(device_wait());
    for (int a = 0; a < ARRAYS; a++) {
        void *host = m->memory[a];
        if (m->device) {
            host = scene_room(bytes_of(s, a));
            assert_null(device_download(host, m->memory[a], bytes_of(s, a)));
            device_free(m->memory[a]);
        }
        for (int64_t i = 0; a >= O && i < scene_count(s, (array)a); i++)
            s->x[a][i] = element_get(host, scene_type(s, (array)a), i);
        free(host);
    }
}

/* Rows of `channels` of an array over tokens: those of the part. */
static loam_view rows(const scene *s, const part *p, const scene_memory *m, array which, int64_t heads,
                      int64_t channels)
{
    const int64_t sequence = heads * s->len * channels, skip = p->batch > 1 ? p->at[1] - p->at[0] : 0;
    char *data = m->memory[which];
    data += (size_t)(p->first * sequence + p->at[0] * channels) * element_bytes(scene_type(s, which));
    return (loam_view){ data, sequence + skip * channels, s->len * channels, channels };
}

loam_const_view scene_const(loam_view v) { return (loam_const_view){ v.data, v.batch, v.head, v.token }; }

static loam_view block(const scene *s, const part *p, const scene_memory *m, array which, int64_t heads,
                       int64_t tokens, int64_t channels)
{
    loam_view v = loam_dense_out(m->memory[which], heads, tokens, channels);
    v.data = (char *)v.data + (size_t)(p->first * v.batch) * element_bytes(scene_type(s, which));
    return v;
}

static loam_const_view parameter(const scene_memory *m, array which, int64_t tokens, int64_t channels)
{
    return (loam_const_view){ m->memory[which], 0, tokens * channels, channels };
}

loam_args scene_args(const scene *s, const part *p, const scene_memory *m)
{
    const int64_t d = s->d, dv = s->dv, q = s->heads_q, kv = s->heads_kv, features = s->features;
    loam_args a = { .q = scene_const(rows(s, p, m, Q, q, d)),
                    .k = scene_const(rows(s, p, m, K, kv, d)),
                    .v = scene_const(rows(s, p, m, V, kv, dv)),
                    .z = parameter(m, Z, features, d),
                    .o = rows(s, p, m, O, q, dv),
                    .grad_o = scene_const(rows(s, p, m, GRAD_O, q, dv)),
                    .grad_q = rows(s, p, m, GRAD_Q, q, d),
                    .grad_k = rows(s, p, m, GRAD_K, kv, d),
                    .grad_v = rows(s, p, m, GRAD_V, kv, dv),
                    .grad_z = { m->memory[GRAD_Z], 0, features * d, d } };
    if (s->alpha) {
        a.log_alpha = parameter(m, ALPHA, 1, features);
        a.grad_log_alpha = (loam_view){ m->memory[GRAD_ALPHA], 0, features, features };
    }
    if (s->shift) a.shift = parameter(m, SHIFT, 1, d);
    if (s->balance)
        a.balance = parameter(m, BALANCE, d, d), a.balance_keys = parameter(m, BALANCE_KEYS, d, d);
    loam_args_keep(&a, p->pass);
    if (p->carried || p->pass == LOAM_DECODE)
        a.state_out = block(s, p, m, STATE, heads_of_z(s), dv + 3, features + 1);
    if (p->pass == LOAM_DECODE) a.state_in = scene_const(a.state_out);
    return a;
}

loam_hybrid_args scene_hybrid_args(const scene *s, const part *p, const scene_memory *m)
{
    loam_hybrid_args h = { .gain = m->memory[GAIN] };
    if (p->pass == LOAM_BACKWARD) h.grad_gain = m->memory[GRAD_GAIN];
    if (p->carried || p->pass == LOAM_DECODE) {
        h.keys = block(s, p, m, KEYS, s->heads_kv, s->sinks + s->window, s->d);
        h.values = block(s, p, m, VALUES, s->heads_kv, s->sinks + s->window, s->dv);
    }
    return h;
}

/* `bytes` of NaN where a pass runs; the saved array stays there from pass to pass. */
static void *work_of(const scene *s, size_t bytes)
{
    void *work = scene_room(bytes);
    memset(work, 0xff, bytes);
    return s->backend == LOAM_BACKEND_CUDA ? to_device(work, bytes) : work;
}

static void let_go(const scene *s, void *memory)
{
    if (s->backend == LOAM_BACKEND_CUDA)
        device_free(memory);
    else
        free(memory);
}

void scene_run_part(scene *s, const part *p)
{
    loam_problem problem = scene_problem(s, p->pass);
    loam_hybrid *i;
    loam_error error;
    problem.batch = p->batch, problem.len_q = problem.len_kv = p->count;
    if (loam_hybrid_create(&i, &problem, s->sinks, s->window, &error)) fail_msg("%s", error.text);
    scene_memory m = scene_send(s);
    loam_args a = scene_args(s, p, &m);
    loam_hybrid_args h = scene_hybrid_args(s, p, &m);
    a.work = work_of(s, loam_hybrid_work_bytes(i));
    if (p->pass != LOAM_DECODE && !s->saved) s->saved = work_of(s, loam_hybrid_saved_bytes(i));
    if (p->pass != LOAM_DECODE) a.saved = s->saved;
    void *seen = scene_room(sizeof p->at);
    memcpy(seen, p->at, sizeof p->at);
    if (m.device) seen = to_device(seen, sizeof p->at);
    if (p->pass == LOAM_DECODE) h.seen = seen;
    if (loam_hybrid_run(i, &a, &h, &error)) fail_msg("%s", error.text);
    scene_fetch(s, &m);
    let_go(s, a.work);
    let_go(s, seen);
    loam_hybrid_destroy(i);
}

/* Everything of a pass, which leaves nothing but what backward needs. */
void scene_run(scene *s, loam_pass pass)
{
    const part all = { .pass = pass, .batch = s->batch, .count = s->len };
    scene_run_part(s, &all);
}

void scene_drop_saved(scene *s)
{
    if (s->saved) let_go(s, s->saved);
    s->saved = NULL;
}

void scene_run_both(scene *s)
{
    scene_run(s, LOAM_FORWARD);
    scene_run(s, LOAM_BACKWARD);
    scene_drop_saved(s);
}

void scene_run_forward(scene *s)
{
    scene_run(s, LOAM_FORWARD);
    scene_drop_saved(s);
}

/* ------------------------------------------------------------------ the equation */

static double scale_of(const scene *s) { return s->scale != 0 ? s->scale : 1 / sqrt((double)s->d); }

/* sqrt(scale) A (row - shift), of head n of z. */
static void map_row(const scene *s, array matrix, int64_t n, const double *row, const double *shift,
                    double *to)
{
    for (int64_t c = 0; c < s->d; c++) {
        to[c] = 0;
        for (int64_t e = 0; e < s->d; e++) {
            const double A = s->balance ? s->x[matrix][(n * s->d + c) * s->d + e] : c == e;
            to[c] += sqrt(scale_of(s)) * A * (row[e] - (shift ? shift[e] : 0));
        }
    }
}

double scene_dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

double scene_far_score(const scene *s, int64_t n, const double *q, const double *k)
{
    double x[64], y[64], all[512], top = -HUGE_VAL, sum = 0;
    const double *shift = s->shift ? s->x[SHIFT] + n * s->d : NULL;
    map_row(s, BALANCE, n, q, NULL, x);
    map_row(s, BALANCE_KEYS, n, k, shift, y);
    for (int64_t m = 0; m < s->features; m++) {
        const double *z = s->x[Z] + (n * s->features + m) * s->d;
        all[m] = scene_dot(z, x, s->d) - scene_dot(x, x, s->d) / 2 + scene_dot(z, y, s->d) -
                 scene_dot(y, y, s->d) / 2 + (s->alpha ? s->x[ALPHA][n * s->features + m] : 0);
        top = fmax(top, all[m]);
    }
    for (int64_t m = 0; m < s->features; m++)
        sum += exp(all[m] - top);
    return top + log(sum / (double)s->features) + (shift ? scale_of(s) * scene_dot(q, shift, s->d) : 0);
}

/* Row t of query head h of sequence b; `exact`: without features. */
static void expected_row(const scene *s, int64_t b, int64_t h, int64_t t, int exact, double *want)
{
    double w[1024], top = -HUGE_VAL, sum = 0;
    const int64_t g = h / (s->heads_q / s->heads_kv), n = s->shared ? g : h;
    const double *q = s->x[Q] + ((b * s->heads_q + h) * s->len + t) * s->d;
    for (int64_t j = 0; j <= t; j++) {
        const double *k = s->x[K] + ((b * s->heads_kv + g) * s->len + j) * s->d;
        const int near = exact || j < s->sinks || t - j < s->window;
        w[j] = near ? scale_of(s) * scene_dot(q, k, s->d) : s->x[GAIN][h] + scene_far_score(s, n, q, k);
        top = fmax(top, w[j]);
    }
    memset(want, 0, (size_t)s->dv * sizeof *want);
    for (int64_t j = 0; j <= t; j++) {
        const double p = exp(w[j] - top);
        for (int64_t c = 0; c < s->dv; c++)
            want[c] += p * s->x[V][((b * s->heads_kv + g) * s->len + j) * s->dv + c];
        sum += p;
    }
    for (int64_t c = 0; c < s->dv; c++)
        want[c] /= sum;
}

/* The largest difference from the equation. */
double scene_miss(const scene *s, int exact)
{
    double want[64], most = 0;
    for (int64_t row = 0; row < s->batch * s->heads_q * s->len; row++) {
        expected_row(s, row / s->len / s->heads_q, row / s->len % s->heads_q, row % s->len, exact, want);
        for (int64_t c = 0; c < s->dv; c++) {
            const double off = fabs(s->x[O][row * s->dv + c] - want[c]);
            most = off <= most ? most : off; /* NaN is most */
            if (isnan(off)) return HUGE_VAL;
        }
    }
    return most;
}
