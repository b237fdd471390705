/* SPDX-License-Identifier: MIT
 *
 * A chunk of up to 64 tokens of one head, float32. With pre_i, suf_j the sums of log decays to and after a token of the
 * chunk and seg_ij = sum of those of j + 1 .. i:
 *
 *     P_ij = q_i . (k_j e^seg_ij) for j <= i,   A_ij = k_i . (k_j e^seg_ij) for j < i
 *     u_i = beta_i (v_i - [delta rule] (S e^pre_i k_i + sum_{j<i} A_ij u_j))
 *     o_i = S e^pre_i q_i + sum_{j<=i} P_ij u_j,   S <- S e^pre_last + sum_j u_j (e^suf_j k_j)^T
 *
 * Every exponent is a sum of numbers <= 0 and made as one: none is a difference of sums, nothing is divided by a decay.
 * Gates of channels go in blocks of 16 tokens: the keys of earlier blocks carry the decay up to the block (`tail`), the rows
 * of the block that from its start; within a block decays are products of one token's after the other. */
#ifndef LOAM_RECURRENT_CHUNK_H
#define LOAM_RECURRENT_CHUNK_H

#include "src/recurrent/recurrent_features.h"
#include "src/simd/panel.h"

enum { CHUNK = LANES, BLOCK = 16 };

typedef struct chunk {
    const loam_problem *p;
    const loam_args *a;
    const recurrent_form *form;
    recurrent_seq s;
    int64_t h, first, tokens; /* tokens first .. first + tokens - 1 of the sequence */
    int64_t d, width, panels; /* width: d in whole vectors, the stride of rows; panels of 64 channels of v */
    float *q, *k, *beta;      /* [CHUNK][width], features, q scaled; [CHUNK] */
    float *q_in, *k_in;       /* [CHUNK][width]: times e^pre */
    float *k_lanes,
        *tail;    /* [width][LANES], lanes are tokens: k; k times the decay after it, e^suf in the end */
    float *gate;  /* [CHUNK][width], or [CHUNK]: log decays */
    float *total; /* [width]: e^pre of the last token */
    float *P, *A; /* [CHUNK][LANES] */
    float *row;   /* [CHUNK][width]: scratch */
    float *sum, *product; /* [width]: scratch */
    float *u, *o, *known; /* [CHUNK][LANES]: 64 channels of v */
    float *weight;        /* [CHUNK]: s . x of normalised reads */
    float *state;         /* [panels][width][LANES]: S^T, lanes are channels of v */
    float *mass;          /* [width]: s of normalised reads */
} chunk;

static inline void chunk_carve(chunk *x, const loam_problem *p, const loam_args *a, arena *pool)
{
    const size_t f32 = sizeof(float);
    *x = (chunk){ .p = p, .a = a, .form = recurrent_form_of(p->mechanism), .d = p->dim_qk };
    x->width = features_width(p);
    x->panels = (p->dim_v + LANES - 1) / LANES;
    const size_t rows = (size_t)(CHUNK * x->width), lanes = (size_t)(x->width * LANES);
    float **const by_row[] = { &x->q, &x->k, &x->q_in, &x->k_in, &x->gate, &x->row };
    float **const by_lane[] = { &x->k_lanes, &x->tail };
    float **const square[] = { &x->P, &x->A, &x->u, &x->o, &x->known };
    float **const vector[] = { &x->total, &x->sum, &x->product, &x->mass };
    for (size_t i = 0; i < sizeof by_row / sizeof by_row[0]; i++) {
        *by_row[i] = arena_take(pool, rows, f32);
    }
    for (size_t i = 0; i < sizeof by_lane / sizeof by_lane[0]; i++) {
        *by_lane[i] = arena_take(pool, lanes, f32);
    }
    for (size_t i = 0; i < sizeof square / sizeof square[0]; i++) {
        *square[i] = arena_take(pool, CHUNK * LANES, f32);
    }
    for (size_t i = 0; i < sizeof vector / sizeof vector[0]; i++) {
        *vector[i] = arena_take(pool, (size_t)x->width, f32);
    }
    x->beta = arena_take(pool, CHUNK, f32);
    x->weight = arena_take(pool, CHUNK, f32);
    x->state = arena_take(pool, (size_t)x->panels * lanes, f32);
}

#define FOR_WIDTH(c, x) for (int64_t c = 0; c < (x)->width; c += VL)

/* ------------------------------------------------------------------ rows */

static inline void chunk_scale_row(const chunk *x, float *to, const float *from, float factor)
{
    FOR_WIDTH(c, x) { v_store(to + c, v_load(from + c) * factor); }
}

/* ------------------------------------------------------------------ loading */

static inline void chunk_load_gate(const chunk *x, int64_t t)
{
    const loam_const_view *g = &x->a->log_decay;
    const int64_t at = RECURRENT_AT(*g, x->s.b, x->h, x->s.first + x->first + t);
    const float *from = g->data;
    switch (x->form->gate) {
    case GATE_NONE: break;
    case GATE_HEAD: x->gate[t] = from[x->h * g->head]; break;
    case GATE_TOKEN: x->gate[t] = from[at]; break;
    case GATE_CHANNEL:
        for (int64_t c = 0; c < x->width; c++) {
            x->gate[t * x->width + c] = c < x->d ? from[at + c] : 0;
        }
        break;
    }
}

static inline void chunk_load(chunk *x, int64_t first, int64_t tokens)
{
    const loam_const_view *beta = &x->a->beta;
    x->first = first;
    x->tokens = tokens;
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t at = RECURRENT_AT(*beta, x->s.b, x->h, x->s.first + first + t);
        features_load(x->p, &x->a->q, &x->s, x->h, first + t, (float)x->p->scale, x->q + t * x->width);
        features_load(x->p, &x->a->k, &x->s, x->h, first + t, 1, x->k + t * x->width);
        chunk_load_gate(x, t);
        x->beta[t] = x->form->beta ? ((const float *)beta->data)[at] : 1;
    }
    for (int64_t c = 0; c < x->width; c++) {
        for (int64_t t = 0; t < LANES; t++) {
            x->k_lanes[c * LANES + t] = t < tokens ? x->k[t * x->width + c] : 0;
        }
    }
}

/* ------------------------------------------------------------------ pairs: P, A and the decays of the chunk */

/* Row i of P or A: times e^seg, 0 beyond the diagonal. seg is -inf there. */
static inline void chunk_decay_pairs(float *row, const float *seg)
{
    FOR_LANES(lane)
    {
        const vec s = v_load(seg + lane);
        v_store(row + lane, v_select(s > -HUGE_VALF, v_load(row + lane) * v_exp(s), v_set(0)));
    }
}

/* One decay for all channels of a token, or none. */
static inline void chunk_pairs_of_tokens(chunk *x)
{
    float seg[CHUNK], left[CHUNK] = { 0 }, pre = 0, suf = 0, decay = 1;
    panel_product(x->P, x->tokens, x->q, x->width, 1, x->k_lanes, x->d, false);
    if (x->form->delta) {
        panel_product(x->A, x->tokens, x->k, x->width, 1, x->k_lanes, x->d, false);
    }
    for (int64_t j = 0; j < CHUNK; j++) {
        seg[j] = -HUGE_VALF;
    }
    for (int64_t i = 0; i < x->tokens; i++) {
        const float gate = x->form->gate == GATE_NONE ? 0 : x->gate[i];
        pre += gate;
        for (int64_t j = 0; j < i; j++) {
            seg[j] += gate;
        }
        if (x->form->delta) {
            chunk_decay_pairs(x->A + i * LANES, seg);
        }
        seg[i] = 0;
        chunk_decay_pairs(x->P + i * LANES, seg);
        decay = expf(pre);
        chunk_scale_row(x, x->q_in + i * x->width, x->q + i * x->width, decay);
        if (x->form->delta) {
            chunk_scale_row(x, x->k_in + i * x->width, x->k + i * x->width, decay);
        }
    }
    for (int64_t j = x->tokens - 1; j >= 0; j--) {
        left[j] = expf(suf);
        suf += x->form->gate == GATE_NONE ? 0 : x->gate[j];
    }
    FOR_WIDTH(c, x) { v_store(x->total + c, v_set(decay)); }
    for (int64_t c = 0; c < x->d; c++) {
        FOR_LANES(lane)
        {
            const int64_t e = c * LANES + lane;
            v_store(x->tail + e, v_load(x->k_lanes + e) * v_load(left + lane));
        }
    }
}

/* Pairs within tokens begin .. end - 1; `row` holds e^gate of them. */
static inline void chunk_diagonal_block(chunk *x, int64_t begin, int64_t end)
{
    for (int64_t j = begin; j < end; j++) {
        FOR_WIDTH(c, x) { v_store(x->product + c, v_load(x->k + j * x->width + c)); }
        x->P[j * LANES + j] = features_dot(x->q + j * x->width, x->product, x->width);
        for (int64_t i = j + 1; i < end; i++) {
            const float *decay = x->row + i * x->width;
            FOR_WIDTH(c, x) { v_store(x->product + c, v_load(x->product + c) * v_load(decay + c)); }
            x->P[i * LANES + j] = features_dot(x->q + i * x->width, x->product, x->width);
            if (x->form->delta) {
                x->A[i * LANES + j] = features_dot(x->k + i * x->width, x->product, x->width);
            }
        }
    }
}

/* q_in, k_in <- q, k times the decay from the beginning of the block; sum <- the log decay of the whole block. */
static inline void chunk_block_rows(chunk *x, int64_t begin, int64_t end)
{
    FOR_WIDTH(c, x) { v_store(x->sum + c, v_set(0)); }
    for (int64_t t = begin; t < end; t++) {
        const int64_t at = t * x->width;
        FOR_WIDTH(c, x)
        {
            const vec gate = v_load(x->gate + at + c), sum = v_load(x->sum + c) + gate, decay = v_exp(sum);
            v_store(x->sum + c, sum);
            v_store(x->row + at + c, v_exp(gate));
            v_store(x->q_in + at + c, v_load(x->q + at + c) * decay);
            v_store(x->k_in + at + c, v_load(x->k + at + c) * decay);
        }
    }
}

/* tail <- decayed by the whole block; its own keys join, each with the decay after it. */
static inline void chunk_block_tail(chunk *x, int64_t begin, int64_t end)
{
    FOR_WIDTH(c, x) { v_store(x->product + c, v_exp(v_load(x->sum + c))); }
    for (int64_t c = 0; c < x->d; c++) {
        const float decay = x->product[c];
        float *tail = x->tail + c * LANES, after = 0;
        for (int64_t t = 0; t < begin; t++) {
            tail[t] *= decay;
        }
        for (int64_t t = end - 1; t >= begin; t--) {
            tail[t] = after;
            after += x->gate[t * x->width + c];
        }
        for (int64_t lane = begin; lane < begin + BLOCK; lane += VL) { /* beyond the last token k is 0 */
            v_store(tail + lane, v_exp(v_load(tail + lane)) * v_load(x->k_lanes + c * LANES + lane));
        }
    }
}

/* A decay for each channel. */
static inline void chunk_pairs_of_channels(chunk *x)
{
    panel_fill(x->tail, x->width, 0);
    panel_fill(x->P, x->tokens, 0);
    panel_fill(x->A, x->tokens, 0);
    FOR_WIDTH(c, x) { v_store(x->total + c, v_set(1)); }
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        const int64_t end = begin + BLOCK < x->tokens ? begin + BLOCK : x->tokens, rows = end - begin;
        const int64_t at = begin * x->width;
        chunk_block_rows(x, begin, end);
        if (begin > 0) {
            panel_product(x->P + begin * LANES, rows, x->q_in + at, x->width, 1, x->tail, x->d, false);
            if (x->form->delta) {
                panel_product(x->A + begin * LANES, rows, x->k_in + at, x->width, 1, x->tail, x->d, false);
            }
        }
        chunk_diagonal_block(x, begin, end);
        chunk_block_tail(x, begin, end);
        for (int64_t t = begin; t < end; t++) { /* from the beginning of the block to that of the chunk */
            FOR_WIDTH(c, x)
            {
                const int64_t e = t * x->width + c;
                v_store(x->q_in + e, v_load(x->q_in + e) * v_load(x->total + c));
                v_store(x->k_in + e, v_load(x->k_in + e) * v_load(x->total + c));
            }
        }
        FOR_WIDTH(c, x) { v_store(x->total + c, v_load(x->total + c) * v_load(x->product + c)); }
    }
}

static inline void chunk_pairs(chunk *x)
{
    x->form->gate == GATE_CHANNEL ? chunk_pairs_of_channels(x) : chunk_pairs_of_tokens(x);
}

/* ------------------------------------------------------------------ 64 channels of v */

/* u_i -= beta_i known_i for rows begin .. end - 1 */
static inline void chunk_take_back(chunk *x, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        FOR_LANES(lane)
        {
            const int64_t e = i * LANES + lane;
            v_store(x->u + e, v_load(x->u + e) - v_load(x->known + e) * x->beta[i]);
        }
    }
}

/* (I + Diag(beta) A) u = beta v - beta S k_in, by blocks of rows. */
static inline void chunk_delta(chunk *x, const float *state)
{
    panel_product(x->known, x->tokens, x->k_in, x->width, 1, state, x->d, false);
    chunk_take_back(x, 0, x->tokens);
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        const int64_t end = begin + BLOCK < x->tokens ? begin + BLOCK : x->tokens;
        if (begin > 0) {
            panel_product(x->known + begin * LANES, end - begin, x->A + begin * LANES, LANES, 1, x->u, begin,
                          false);
            chunk_take_back(x, begin, end);
        }
        for (int64_t i = begin + 1; i < end; i++) {
            panel_product(x->known + i * LANES, 1, x->A + i * LANES + begin, LANES, 1, x->u + begin * LANES,
                          i - begin, false);
            chunk_take_back(x, i, i + 1);
        }
    }
}

static inline void chunk_load_values(chunk *x, int64_t panel)
{
    const loam_const_view *v = &x->a->v;
    const int64_t from = panel * LANES, rest = x->p->dim_v - from, n = rest < LANES ? rest : LANES;
    for (int64_t t = 0; t < x->tokens; t++) {
        float *u = x->u + t * LANES;
        load_floats(u, v->data, x->p->dtype, RECURRENT_AT(*v, x->s.b, x->h, x->s.first + x->first + t) + from,
                    n);
        for (int64_t c = 0; c < LANES; c++) {
            u[c] = c < n ? u[c] * x->beta[t] : 0;
        }
    }
}

/* A weight of 0 has no mean. */
static inline void chunk_store_values(chunk *x, int64_t panel)
{
    const loam_view *o = &x->a->o;
    const int64_t from = panel * LANES, rest = x->p->dim_v - from, n = rest < LANES ? rest : LANES;
    for (int64_t t = 0; t < x->tokens; t++) {
        float *row = x->o + t * LANES;
        for (int64_t c = 0; x->p->normalise && c < n; c++) {
            row[c] = x->weight[t] == 0 ? 0 : row[c] / x->weight[t];
        }
        store_floats(o->data, x->p->dtype, RECURRENT_AT(*o, x->s.b, x->h, x->s.first + x->first + t) + from,
                     row, n);
    }
}

static inline void chunk_values(chunk *x, int64_t panel)
{
    float *state = x->state + panel * x->width * LANES;
    chunk_load_values(x, panel);
    if (x->form->delta) {
        chunk_delta(x, state);
    }
    panel_product(x->o, x->tokens, x->q_in, x->width, 1, state, x->d, false);
    panel_product(x->o, x->tokens, x->P, LANES, 1, x->u, x->tokens, true);
    chunk_store_values(x, panel);
    for (int64_t c = 0; c < x->d; c++) {
        FOR_LANES(lane) { v_store(state + c * LANES + lane, v_load(state + c * LANES + lane) * x->total[c]); }
    }
    panel_product(state, x->d, x->tail, LANES, 1, x->u, x->tokens, true);
}

/* The weights of normalised reads and their state: as if v had a channel of ones. */
static inline void chunk_weights(chunk *x)
{
    for (int64_t i = 0; i < x->tokens; i++) {
        x->weight[i] = features_dot(x->q_in + i * x->width, x->mass, x->width);
        for (int64_t j = 0; j <= i; j++) {
            x->weight[i] += x->P[i * LANES + j] * x->beta[j];
        }
    }
    for (int64_t c = 0; c < x->d; c++) {
        x->mass[c] *= x->total[c];
        for (int64_t t = 0; t < x->tokens; t++) {
            x->mass[c] += x->tail[c * LANES + t] * x->beta[t];
        }
    }
}

#endif
