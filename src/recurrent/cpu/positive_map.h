/* SPDX-License-Identifier: MIT
 * Positive random features in float32 for the recurrence that reads them. Blocks of 64 tokens are on their
 * own: each begins with a running maximum c of its own keys, and takes in that of the blocks before it once
 * all have theirs. */
#ifndef LOAM_RECURRENT_CPU_POSITIVE_MAP_H
#define LOAM_RECURRENT_CPU_POSITIVE_MAP_H

#include "src/recurrent/cpu/positive.h"

/* Block `index` of head n of z of sequence b; the float row of M that c has before it. */
typedef struct map_grid {
    int64_t blocks; /* of the longest sequence */
    float *before;
} map_grid;

static inline map_grid map_grid_carve(const positive *x, arena *pool)
{
    map_grid g = { .blocks = (x->p->len_q + POSITIVE_BLOCK - 1) / POSITIVE_BLOCK };
    const size_t heads = size_mul((size_t)x->p->batch, (size_t)x->heads);
    g.before = arena_take(pool, size_mul(size_mul(heads, (size_t)g.blocks), (size_t)x->p->features),
                          sizeof(float));
    return g;
}

static inline float *map_before(const positive *x, const map_grid *g, int64_t b, int64_t n, int64_t index)
{
    return g->before + ((b * x->heads + n) * g->blocks + index) * x->p->features;
}

/* to[m] <- e^x[m]; to may be x. */
static inline void map_exp(float *to, const float *x, int64_t n)
{
    int64_t m = 0;
    for (; m + VL <= n; m += VL)
        v_store(to + m, v_exp(v_load(x + m)));
    if (m < n) {
        float rest[VL] = { 0 };
        memcpy(rest, x + m, (size_t)(n - m) * sizeof(float));
        v_store(rest, v_exp(v_load(rest)));
        memcpy(to + m, rest, (size_t)(n - m) * sizeof(float));
    }
}

/* k = e^{a - c} and, in the place of the gates, c as the block alone has it. */
static inline void map_keys(rows *w, const block *at, int64_t n)
{
    float *c = w->c;
    rows_load_head(w, n);
    rows_load(w, at, true, positive_key_head(w->x, n));
    rows_logarithms(w, at->count, true);
    for (int64_t m = 0; m < w->features; m++)
        c[m] = (float)-POSITIVE_BOUND;
    for (int64_t i = 0; i < at->count; i++) {
        const double *a = w->logs + i * w->padded;
        for (int64_t m = 0; m < w->features; m++) {
            const double held = positive_hold(a[m]), up = ceil(held);
            c[m] = up > (double)c[m] ? (float)up : c[m];
            w->row[m] = (float)(held - (double)c[m]);
        }
        memcpy(rows_features(w, w->x->gate, at, n, i, 0), c, (size_t)w->features * sizeof(float));
        map_exp(rows_features(w, w->x->k, at, n, i, 0), w->row, w->features);
    }
}

/* c before each block, and at the end. */
static inline void map_maxima(rows *w, const map_grid *g, const recurrent_seq *seq, int64_t b, int64_t n)
{
    const positive *x = w->x;
    float *c = w->c;
    for (int64_t m = 0; m < w->features; m++)
        c[m] = (float)positive_start(x, seq, n, m);
    for (int64_t index = 0; index * POSITIVE_BLOCK < seq->len; index++) {
        const int64_t end = (index + 1) * POSITIVE_BLOCK, last = (end < seq->len ? end : seq->len) - 1;
        const float *own = (const float *)x->gate + positive_row(x, seq, n, last, 0) * w->features;
        memcpy(map_before(x, g, b, n, index), c, (size_t)w->features * sizeof(float));
        for (int64_t m = 0; m < w->features; m++)
            c[m] = own[m] > c[m] ? own[m] : c[m];
    }
    for (int64_t m = 0; m < w->features && x->p->pass != LOAM_BACKWARD; m++)
        positive_end(x, seq, n, m, (double)c[m]);
}

/* Keys and gates relative to all tokens before; w->c <- c of each token. */
static inline void map_join(const rows *w, const block *at, int64_t n, const float *before)
{
    for (int64_t i = 0; i < at->count; i++) {
        float *k = rows_features(w, w->x->k, at, n, i, 0), *gate = rows_features(w, w->x->gate, at, n, i, 0);
        float *c = w->c + i * w->padded;
        const float *last = i > 0 ? c - w->padded : before;
        for (int64_t m = 0; m < w->features; m++) {
            const float own = gate[m];
            c[m] = own > last[m] ? own : last[m];
            w->row[m] = own - c[m];
            gate[m] = last[m] - c[m];
        }
        map_exp(w->row, w->row, w->features);
        for (int64_t m = 0; m < w->features; m++)
            k[m] *= w->row[m];
        for (int64_t r = 1; r < w->x->reads; r++) {
            memset(rows_features(w, w->x->k, at, n, i, r), 0, (size_t)w->features * sizeof(float));
            memset(rows_features(w, w->x->gate, at, n, i, r), 0, (size_t)w->features * sizeof(float));
        }
    }
}

/* q = e^{b + c - max}. */
static inline void map_queries(const rows *w, const block *at, int64_t n, int64_t r)
{
    rows_load(w, at, false, positive_query_head(w->x, n, r));
    rows_logarithms(w, at->count, false);
    for (int64_t i = 0; i < at->count; i++) {
        double *b = w->logs + i * w->padded, top = -HUGE_VAL;
        const float *c = w->c + i * w->padded;
        for (int64_t m = 0; m < w->features; m++) {
            b[m] = positive_hold(b[m]) + (double)c[m];
            top = b[m] > top ? b[m] : top;
        }
        for (int64_t m = 0; m < w->features; m++)
            w->row[m] = (float)(b[m] - top);
        map_exp(rows_features(w, w->x->q, at, n, i, r), w->row, w->features);
    }
}

static inline block block_at(const recurrent_seq *seq, int64_t index)
{
    const int64_t first = index * POSITIVE_BLOCK, left = seq->len - first;
    return (block){ seq, first, left < 0 ? 0 : left < POSITIVE_BLOCK ? left : POSITIVE_BLOCK };
}

/* Block `item` of all, those of a head one after the other: a thread then loads a head of z once. */
typedef struct place {
    int64_t head, b, index;
} place;

static inline place place_of(const positive *x, const map_grid *g, int64_t item)
{
    const int64_t blocks = x->p->batch * g->blocks;
    return (place){ item / blocks, item % blocks / g->blocks, item % g->blocks };
}

/* By all threads of the team. */
static inline void map_all(rows *w, const map_grid *g)
{
    const positive *x = w->x;
    const int64_t heads = x->p->batch * x->heads, items = heads * g->blocks;
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; item++) {
        const place to = place_of(x, g, item);
        const recurrent_seq seq = recurrent_seq_at(x->p, x->a, to.b);
        const block at = block_at(&seq, to.index);
        if (at.count > 0) map_keys(w, &at, to.head);
    }
#pragma omp for schedule(static)
    for (int64_t item = 0; item < heads; item++) {
        const recurrent_seq seq = recurrent_seq_at(x->p, x->a, item / x->heads);
        map_maxima(w, g, &seq, item / x->heads, item % x->heads);
    }
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; item++) {
        const place to = place_of(x, g, item);
        const recurrent_seq seq = recurrent_seq_at(x->p, x->a, to.b);
        const block at = block_at(&seq, to.index);
        if (at.count == 0) continue;
        rows_load_head(w, to.head);
        map_join(w, &at, to.head, map_before(x, g, to.b, to.head, to.index));
        for (int64_t r = 0; r < x->reads; r++)
            map_queries(w, &at, to.head, r);
    }
}

#endif
