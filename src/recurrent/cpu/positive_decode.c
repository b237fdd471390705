/* SPDX-License-Identifier: MIT
 * Positive random features, token after token of a head (src/recurrent/positive.h): logarithms as products
 * of the rows of A, B and z as they lie in memory, then the rows of the state. Compiled once for each
 * instruction set. */
#include "src/recurrent/cpu/decode.h"
#include "src/recurrent/positive.h"
#include "src/simd/wide.h"

#include <omp.h>

typedef struct scratch {
    positive x; /* heads alone: there are no arrays */
    recurrent_seq seq;
    int64_t n, d, features, width; /* width: of rows of features */
    double *given, *at, *logs;     /* a row as given, x or y of it, z of that */
    float *row, *c;
    decode_token token;
} scratch;

static int64_t whole64(int64_t n) { return (n + VL64 - 1) / VL64 * VL64; }

static scratch scratch_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    const int64_t group = p->heads_q / p->heads_kv;
    scratch s = { .d = p->dim_qk, .features = p->features, .width = whole_vectors(p->features) };
    s.x = (positive){ .p = p, .a = a, .real = LOAM_F32, .heads = recurrent_state_heads(p) };
    s.x.reads = p->features_shared ? group : 1;
    s.x.sharing = p->features_shared ? 1 : group;
    const size_t d = (size_t)whole64(s.d), width = (size_t)s.width, f64 = sizeof(double);
    s.given = arena_take(pool, d, f64);
    s.at = arena_take(pool, d, f64);
    s.logs = arena_take(pool, width, f64);
    s.row = arena_take(pool, d > width ? d : width, sizeof(float));
    s.c = arena_take(pool, width, sizeof(float));
    decode_token *t = &s.token;
    float **const parts[] = { &t->q, &t->k, &t->decay, &t->decay_error, &t->spare };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i] = arena_take(pool, width, sizeof(float));
    t->w = arena_take(pool, (size_t)whole_vectors(p->dim_v + 1), sizeof(float));
    t->beta = 1;
    return s;
}

/* ------------------------------------------------------------------ logarithms */

/* out[r] = m[r] . x for r < rows, and anything up to whole vectors; rows of m are `stride` floats apart. */
static void products(double *out, const float *m, int64_t stride, int64_t rows, const double *x, int64_t d)
{
    const int rest = (int)(d % VL64);
    for (int64_t r = 0; r < rows; r += VL64) {
        const float *row[VL64];
        vec64 sum[VL64];
#pragma GCC unroll 8
        for (int e = 0; e < VL64; e++)
            row[e] = m + (r + e < rows ? r + e : rows - 1) * stride, sum[e] = v64_set(0);
        for (int64_t c = 0; c < d - rest; c += VL64) {
#pragma GCC unroll 8
            for (int e = 0; e < VL64; e++)
                sum[e] += v64_widen(row[e] + c, VL64) * v64_load(x + c);
        }
        for (int e = 0; rest > 0 && e < VL64; e++)
            sum[e] += v64_widen(row[e] + d - rest, rest) * v64_load(x + d - rest);
        v64_store(out + r, v64_sums(sum));
    }
}

static const float *parameter(const loam_const_view *view, int64_t n)
{
    return (const float *)view->data + n * view->head;
}

/* s->at <- sqrt(scale) A (row - shift) of token t of head h of q or k; s->logs <- z of it. */
static void load_logarithms(scratch *s, bool key, int64_t h, int64_t t)
{
    const loam_args *a = s->x.a;
    const loam_const_view *from = key ? &a->k : &a->q, *A = key ? &a->balance_keys : &a->balance;
    const float *shift = key && a->shift.data ? parameter(&a->shift, s->n) : NULL;
    const double root = sqrt(s->x.p->scale);
    double *to = A->data ? s->given : s->at;
    load_floats(s->row, from->data, s->x.p->dtype, RECURRENT_AT(*from, s->seq.b, h, s->seq.first + t), s->d);
    for (int64_t c = 0; c < s->d; c++)
        to[c] = root * ((double)s->row[c] - (shift ? (double)shift[c] : 0));
    for (int64_t c = s->d; c < whole64(s->d); c++)
        to[c] = 0;
    if (A->data) {
        products(s->at, parameter(A, s->n), A->token, s->d, s->given, s->d);
        for (int64_t c = s->d; c < whole64(s->d); c++)
            s->at[c] = 0;
    }
    products(s->logs, parameter(&a->z, s->n), a->z.token, s->features, s->at, s->d);
}

/* to <- e^s->row, 0 beyond the features. */
static void exponentials(const scratch *s, float *to)
{
    for (int64_t m = 0; m < s->width; m += VL)
        v_store(to + m, v_exp(v_load(s->row + m)));
    features_clear_tail(to, s->features, s->width);
}

/* c, and k = e^{a - c} and e^g by it. */
static void load_key(scratch *s, int64_t t)
{
    const loam_args *a = s->x.a;
    const float *alpha = a->log_alpha.data ? parameter(&a->log_alpha, s->n) : NULL;
    load_logarithms(s, true, positive_key_head(&s->x, s->n), t);
    const double half = v64_dot(s->at, s->at, whole64(s->d)) / 2;
    for (int64_t m = 0; m < s->features; m++) {
        const double held = positive_hold(s->logs[m] + ((alpha ? (double)alpha[m] : 0) - half)),
                     up = ceil(held);
        const float c = up > (double)s->c[m] ? (float)up : s->c[m];
        s->token.decay[m] = s->c[m] - c;
        s->row[m] = (float)(held - (double)c);
        s->c[m] = c;
    }
    exponentials(s, s->token.k);
    for (int64_t m = 0; m < s->width; m += VL)
        v_store(s->token.decay + m, v_exp(v_load(s->token.decay + m)));
}

/* q = e^{b + c - max}. */
static void load_query(scratch *s, int64_t h, int64_t t)
{
    double top = -HUGE_VAL;
    load_logarithms(s, false, h, t);
    for (int64_t m = 0; m < s->features; m++) {
        s->logs[m] = positive_hold(s->logs[m]) + (double)s->c[m];
        top = s->logs[m] > top ? s->logs[m] : top;
    }
    for (int64_t m = 0; m < s->features; m++)
        s->row[m] = (float)(s->logs[m] - top);
    exponentials(s, s->token.q);
}

/* ------------------------------------------------------------------ heads */

/* S, s and, in s->c, c before the first token. */
static void begin_state(scratch *s)
{
    const loam_const_view *in = &s->x.a->state_in;
    const loam_view *out = &s->x.a->state_out;
    for (int64_t m = 0; m < s->features; m++)
        s->c[m] = (float)positive_start(&s->x, &s->seq, s->n, m);
    for (int64_t r = 0; r <= s->x.p->dim_v && in->data != out->data; r++) {
        float *to = (float *)out->data + RECURRENT_AT(*out, s->seq.index, s->n, r);
        if (in->data) {
            memcpy(to, (const float *)in->data + RECURRENT_AT(*in, s->seq.index, s->n, r),
                   (size_t)s->features * sizeof *to);
        } else {
            memset(to, 0, (size_t)s->features * sizeof *to);
        }
    }
}

/* The queries after the first one of a token only read. */
static void decode_one(scratch *s, const decode_state *state, int64_t t)
{
    decode_token *token = &s->token;
    load_key(s, t);
    for (int64_t r = 0; r < s->x.reads; r++) {
        const int64_t h = positive_query_head(&s->x, s->n, r);
        load_query(s, h, t);
        decode_load_value(token, s->x.p, s->x.a, &s->seq, positive_key_head(&s->x, s->n), t, state->rows);
        decode_rows(false, state, token, s->features);
        decode_store_value(token, s->x.p, s->x.a, &s->seq, h, t);
        features_clear_tail(token->k, 0, s->width);
        for (int64_t m = 0; m < s->width; m++)
            token->decay[m] = 1;
    }
}

static void decode_item(scratch *s, int64_t item)
{
    const loam_view *out = &s->x.a->state_out;
    s->n = item % s->x.heads;
    s->seq = recurrent_seq_at(s->x.p, s->x.a, item / s->x.heads);
    const decode_state state = { (float *)out->data + RECURRENT_AT(*out, s->seq.index, s->n, 0), out->token,
                                 s->x.p->dim_v + 1, out->token == s->features ? DECODE_AHEAD : 0 };
    begin_state(s);
    for (int64_t t = 0; t < s->seq.len; t++)
        decode_one(s, &state, t);
    for (int64_t m = 0; m < s->features; m++)
        positive_end(&s->x, &s->seq, s->n, m, (double)s->c[m]);
}

static size_t scratch_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    scratch_carve(p, NULL, &pool);
    return pool.used;
}

size_t RECURRENT_JOIN(ISA(positive_decode), work)(const loam_problem *p)
{
    return size_mul(scratch_bytes(p), (size_t)p->threads);
}

loam_status ISA(positive_decode)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const size_t each = scratch_bytes(p);
    const int64_t items = p->batch * recurrent_state_heads(p), run = items / (4 * (int64_t)p->threads) + 1;
#pragma omp parallel num_threads(p->threads)
    {
        char *mine = (char *)a->work + each * (size_t)omp_get_thread_num();
        arena pool = { mine, 0 };
        memset(mine, 0, each);
        scratch s = scratch_carve(p, a, &pool);
#pragma omp for schedule(dynamic, run)
        for (int64_t item = 0; item < items; item++)
            decode_item(&s, item);
    }
    return loam_succeed(error);
}
