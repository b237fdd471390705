/* SPDX-License-Identifier: MIT */
#include "tests/support/data.h"

#include "tests/support/element.h"
#include "tests/support/layout.h"
#include "tests/support/memory.h"
#include "tests/support/random.h"
#include "tests/support/real.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_LENGTHS = 100, STREAM_KIND };

static int64_t draw_length(rng *r, int64_t longest)
{
    return rng_one_in(r, 4) ? 0 : rng_one_in(r, 3) ? longest : rng_int(r, 0, longest);
}

void data_lengths(values *v)
{
    const spec *s = &v->spec;
    rng r = rng_make((uint64_t)s->seed, STREAM_LENGTHS);
    for (int64_t b = 0; b < s->batch; b++) {
        if (s->packed) {
            v->cu_q[b + 1] = v->cu_q[b] + draw_length(&r, s->len_q);
            v->cu_kv[b + 1] = spec_recurrent(s) ? v->cu_q[b + 1] : v->cu_kv[b] + draw_length(&r, s->len_kv);
        }
        if (s->lens) v->lens_kv[b] = draw_length(&r, s->len_kv);
    }
}

static void scale_array(values *v, slot which, double factor)
{
    for (int64_t i = 0; i < slot_size(v, which); i++)
        v->x[which][i] *= factor;
}

static void fill_normal(values *v)
{
    for (int a = 0; a < SLOT_FIRST_OUTPUT; a++) {
        if (!v->x[a]) continue;
        rng r = rng_make((uint64_t)v->spec.seed, (uint64_t)a);
        for (int64_t i = 0; i < slot_size(v, (slot)a); i++) {
            v->x[a][i] = a == SLOT_RIDGE   ? v->spec.ridge * exp(1.4 * (rng_uniform(&r) - 0.5))
                         : a == SLOT_SLOPE ? rng_uniform(&r) / 2
                                           : rng_normal(&r);
        }
    }
}

static double draw_log_decay(rng *r, int hostile)
{
    const double u = rng_uniform(r);
    if (hostile && u < 0.3) return u < 0.1 ? 0 : u < 0.2 ? -1000 : -HUGE_VAL;
    return -exp(8 * rng_uniform(r) - 7);
}

static double draw_beta(rng *r, const spec *s, int hostile)
{
    const double most = s->path || spec_recurrence_of(s).delta ? 2 : 1.5;
    return hostile && rng_one_in(r, 2) ? (double)rng_int(r, 0, (int64_t)most) : most * rng_uniform(r);
}

/* Rows of length 1. */
static void unit_rows(values *v, slot which)
{
    const int64_t d = v->spec.dim_qk;
    for (int64_t row = 0; v->x[which] && row < slot_size(v, which) / d; row++) {
        double *x = v->x[which] + row * d, norm = 0;
        for (int64_t c = 0; c < d; c++)
            norm += x[c] * x[c];
        for (int64_t c = 0; c < d; c++)
            x[c] /= norm > 0 ? sqrt(norm) : 1;
    }
}

/* Delta rules are stable where beta |k|^2 <= 2. */
static void shorten_keys(values *v)
{
    const int64_t d = v->spec.dim_qk;
    for (int64_t row = 0; row < slot_size(v, SLOT_K) / d; row++) {
        double *k = v->x[SLOT_K] + row * d, norm = 0;
        for (int64_t c = 0; c < d; c++)
            norm += k[c] * k[c];
        for (int64_t c = 0; c < d; c++)
            k[c] *= norm > 0 ? 0.98 / sqrt(norm) : 1;
    }
}

/* H becomes positive definite, s positive. */
static void shape_states(values *v)
{
    const shape a = slot_shape(v, SLOT_STATE_IN);
    const int64_t d = a.channels, rest = a.tokens - v->spec.dim_v;
    double *G = memory_zeroed((size_t)(d * (rest > d ? rest : d)), sizeof *G);
    for (int64_t n = 0; rest > 0 && n < a.batch * a.heads; n++) {
        double *H = v->x[SLOT_STATE_IN] + (n * a.tokens + v->spec.dim_v) * d;
        memcpy(G, H, (size_t)(rest * d) * sizeof *G);
        for (int64_t e = 0; e < rest * d; e++) {
            H[e] = rest == d && v->spec.mechanism == LOAM_MESA ? 0 : fabs(G[e]) + 0.5;
            for (int64_t c = 0; v->spec.mechanism == LOAM_MESA && c < d; c++)
                H[e] += G[e / d * d + c] * G[e % d * d + c] / (double)d;
        }
    }
    free(G);
}

/* Chunks that forget nothing take another way: two of 64 tokens in every four. */
static void keep_chunks(values *v)
{
    const int64_t tokens = slot_shape(v, SLOT_LOG_DECAY).tokens;
    for (int64_t i = 0; i < slot_size(v, SLOT_LOG_DECAY); i++)
        if (i % tokens / 128 % 2 == 0) v->x[SLOT_LOG_DECAY][i] = 0;
}

static void fill_gates(values *v)
{
    const spec *s = &v->spec;
    const int hostile = s->data == DATA_STEEP;
    const double pace = s->seed % 2 ? 1 : 0.02; /* half of the cases remember for long */
    for (int a = SLOT_LOG_DECAY; a <= SLOT_BETA; a++) {
        rng r = rng_make((uint64_t)s->seed, (uint64_t)a);
        for (int64_t i = 0; v->x[a] && i < slot_size(v, (slot)a); i++)
            v->x[a][i] = a == SLOT_BETA ? draw_beta(&r, s, hostile) : pace * draw_log_decay(&r, hostile);
    }
    /* keys all alike and never forgotten leave differences
     * of states that 16-bit parts of these do not hold */
    if (s->mechanism == LOAM_MESA && s->seed / 2 % 2 && !(s->data == DATA_EQUAL && s->dtype == LOAM_BF16))
        keep_chunks(v);
}

/* Of each head A = I + u w^T and B = (A^-1)^T = I - w u^T / (1 + u . w), with u and w of length 1/2. The last
 * row of a state has whole numbers. */
static void fill_positive(values *v)
{
    const shape a = slot_shape(v, SLOT_BALANCE), state = slot_shape(v, SLOT_STATE_IN);
    const int64_t d = v->spec.dim_qk;
    for (int64_t n = 0; v->x[SLOT_BALANCE] && n < a.heads; n++) {
        double *A = v->x[SLOT_BALANCE] + n * d * d, *B = v->x[SLOT_BALANCE_KEYS] + n * d * d;
        double u[LOAM_MAX_DIM], w[LOAM_MAX_DIM], uu = 0, ww = 0, uw = 0;
        for (int64_t c = 0; c < d; c++)
            u[c] = A[c], w[c] = B[c], uu += u[c] * u[c], ww += w[c] * w[c], uw += u[c] * w[c];
        const double size = 4 * sqrt(uu * ww);
        for (int64_t e = 0; e < d * d; e++) {
            A[e] = (e / d == e % d) + u[e / d] * w[e % d] / size;
            B[e] = (e / d == e % d) - w[e / d] * u[e % d] / (size + uw);
        }
    }
    for (int64_t n = 0; v->spec.state && n < state.batch * state.heads; n++) {
        double *c = v->x[SLOT_STATE_IN] + ((n + 1) * state.tokens - 1) * state.channels;
        for (int64_t m = 0; m < state.channels; m++)
            c[m] = floor(4 * c[m]) - 10;
    }
}

static void fill_recurrent(values *v)
{
    const spec *s = &v->spec;
    if (spec_recurrence_of(s).delta || s->mechanism == LOAM_MESA) shorten_keys(v);
    if (s->state) shape_states(v);
    if (spec_positive(s)) fill_positive(v);
}

/* Key t of every head becomes key t modulo `period`. */
static void repeat_keys(values *v, int64_t period)
{
    const shape a = slot_shape(v, SLOT_K);
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.heads; h++) {
            for (int64_t t = period; t < a.tokens; t++) {
                memcpy(slot_at(v, SLOT_K, b, h, t), slot_at(v, SLOT_K, b, h, t % period),
                       (size_t)a.channels * sizeof(double));
            }
        }
    }
}

/* q = noise * q + pull * (some key), the same key for all queries (`only` >= 0) or key number t. */
static void pull_queries(values *v, double noise, double pull, int64_t only)
{
    const shape a = slot_shape(v, SLOT_Q), keys = slot_shape(v, SLOT_K);
    const int64_t group = v->spec.heads_q / v->spec.heads_kv;
    for (int64_t row = 0; keys.tokens && row < a.batch * a.heads * a.tokens; row++) {
        const int64_t t = row % a.tokens, h = row / a.tokens % a.heads, b = row / a.tokens / a.heads;
        double *q = slot_at(v, SLOT_Q, b, h, t);
        const double *k = slot_at(v, SLOT_K, b, h / group, (only >= 0 ? only : t) % keys.tokens);
        for (int64_t c = 0; c < a.channels; c++)
            q[c] = noise * q[c] + pull * k[c];
    }
}

static void shift(values *v, slot which, double by)
{
    for (int64_t i = 0; i < slot_size(v, which); i++)
        v->x[which][i] += i % v->spec.dim_qk % 2 ? by : -by;
}

/* Key heads, counted over the batch, are of layers 20 and 3 in turn, each pair of them 256 tokens further on
 * than the one before. The last query lies where the last key does. */
static void take_real(values *v, slot which, const real_layer *layers)
{
    const spec *s = &v->spec;
    const shape a = slot_shape(v, which);
    const int64_t group = which == SLOT_Q ? s->heads_q / s->heads_kv : 1;
    for (int64_t row = 0; row < a.batch * a.heads * a.tokens; row++) {
        const int64_t t = row % a.tokens, h = row / a.tokens % a.heads, b = row / a.tokens / a.heads;
        const int64_t number = b * (a.heads / group) + h / group;
        const int64_t keys = s->lens ? v->lens_kv[b] : s->len_kv;
        const int64_t shift = which == SLOT_Q && !s->packed ? keys - s->len_q : 0;
        real_row(&layers[number % 2], which, h % group, t + shift + number / 2 * 256, a.channels,
                 slot_at(v, which, b, h, t));
    }
}

static void fill_real(values *v)
{
    real_layer layers[2] = { real_read(20), real_read(3) };
    for (int which = SLOT_Q; which <= SLOT_V; which++)
        take_real(v, (slot)which, layers);
    real_free(&layers[0]);
    real_free(&layers[1]);
}

static void apply_kind(values *v)
{
    const int half = v->spec.dtype == LOAM_F16;
    const double root = sqrt((double)v->spec.dim_qk);
    switch ((data_kind)v->spec.data) {
    case DATA_STEEP: scale_array(v, SLOT_Q, 25); break;
    case DATA_EQUAL: repeat_keys(v, 1); break;
    case DATA_REPEATED: repeat_keys(v, 3); break;
    case DATA_DOMINANT:
        pull_queries(v, v->spec.score == LOAM_RBF ? 0.1 : 1, v->spec.score == LOAM_RBF ? 1 : 20 / root, 0);
        break;
    case DATA_FAR:
        shift(v, SLOT_K, 40);
        if (v->spec.score == LOAM_RBF) shift(v, SLOT_Q, 40);
        break;
    case DATA_TINY:
        scale_array(v, SLOT_K, half ? 0.1 : 1e-3);
        scale_array(v, SLOT_V, half ? 0.1 : 1e-6);
        break;
    case DATA_LARGE: scale_array(v, SLOT_V, half ? 8 : 1e4); break;
    case DATA_HUGE: scale_array(v, SLOT_V, 1024); break;
    case DATA_SELF: pull_queries(v, 0, 1, -1); break;
    case DATA_REAL: fill_real(v); break;
    default: break;
    }
}

/* What is stored once is the same at all places. */
static void store_once(values *v, slot which)
{
    const layout l = layout_make(v, which);
    const shape a = l.shape;
    for (int64_t row = 0; row < a.batch * a.heads * a.tokens; row++) {
        const int64_t t = row % a.tokens, h = row / a.tokens % a.heads, b = row / a.tokens / a.heads;
        const double *from = slot_at(v, which, l.batch ? b : 0, l.head ? h : 0, l.token ? t : 0);
        double *to = slot_at(v, which, b, h, t);
        if (to != from) memcpy(to, from, (size_t)a.channels * sizeof(double));
    }
}

void data_fill(values *v)
{
    fill_normal(v);
    apply_kind(v);
    fill_gates(v);
    unit_rows(v, SLOT_W);
    if (spec_recurrent(&v->spec)) fill_recurrent(v);
    for (int a = 0; a < SLOT_FIRST_OUTPUT; a++) {
        if (v->x[a]) {
            store_once(v, (slot)a);
            for (int64_t i = 0; i < slot_size(v, (slot)a); i++)
                v->x[a][i] = element_round(slot_dtype(&v->spec, (slot)a), v->x[a][i]);
        }
    }
}
