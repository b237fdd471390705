/* SPDX-License-Identifier: MIT
 *
 * A chunk of up to 64 tokens of one head, float32. pre_i is the inclusive prefix sum of the log decays of the
 * chunk, suf_j the exclusive suffix sum, seg_ij the sum over tokens j + 1 .. i:
 *
 *     P_ij = q_i . (k_j e^seg_ij) for j <= i,   A_ij = k_i . (k_j e^seg_ij) for j < i
 *     u_i = beta_i (v_i - [delta rule] (S e^pre_i k_i + sum_{j<i} A_ij u_j))
 *     o_i = S e^pre_i q_i + sum_{j<=i} P_ij u_j,   S <- S e^pre_last + sum_j u_j (e^suf_j k_j)^T
 *
 * Each exponent is computed as a sum of numbers <= 0: none is a difference of sums, and nothing is divided by
 * a decay. With gates per channel the chunk is cut into blocks of 16 tokens: keys of earlier blocks carry the
 * decay up to the start of a block (`tail`), rows of the block carry the decay from there; within a block
 * decays are products over single tokens. */
#ifndef LOAM_RECURRENT_CPU_CHUNK_H
#define LOAM_RECURRENT_CPU_CHUNK_H

#include "src/recurrent/cpu/features.h"
#include "src/simd/transpose.h"

enum { CHUNK = LANES, BLOCK = 16, BLOCKS = CHUNK / BLOCK };

/* Rows and lanes beyond the last token are 0 in q, k and everything computed from them. */
typedef struct chunk {
    const loam_problem *p;
    const loam_args *a;
    const recurrent_form *form;
    recurrent_seq seq;
    int64_t h, first, tokens; /* value head; tokens first .. first + tokens - 1 of the sequence */
    int64_t d, width, panels; /* width: d in whole vectors, the stride of rows; panels of 64 channels of v */
    float *q, *k, *beta;      /* [CHUNK][width], features, q scaled; [CHUNK] */
    float *q_in, *k_in;       /* [CHUNK][width]: q and k times e^pre */
    float *k_lanes;           /* [width][LANES]: k, lanes are tokens */
    float *gate;              /* [CHUNK][width], or [CHUNK]: log decays */
    float *total_decay;       /* [width]: e^pre of the last token */
    float *P, *A;             /* [CHUNK][LANES] */
    float *k_out;             /* [width][LANES]: k e^suf, lanes are tokens */
    float *row, *k_decayed;   /* [width]: scratch; a key with the decay up to the row that reads it */
    float *correction;        /* [CHUNK][LANES]: what forward substitution subtracts */
    float *u, *o;             /* [panels][CHUNK][LANES], [CHUNK][LANES] */
    float *denominator;       /* [CHUNK]: s . x of normalised reads */
    /* One decay per token: e^seg, 0 above the diagonal [CHUNK][LANES]; e^pre and e^suf [CHUNK]. */
    float *pair_decay, *decay_to, *decay_from;
    /* One decay per channel. Within the block of a token: e^gate, e^pre, q and k times that e^pre
     * [CHUNK][width]; e^suf [width][LANES]. */
    float *decay, *block_decay_to, *q_block, *k_block, *block_decay_from;
    float *block_decay, *decay_to_block; /* [BLOCKS][width]: decay of a block, and of all before it */
    float *k_at_block[BLOCKS + 1];       /* [width][LANES]: keys with the decay up to the start of block i */
} chunk;

/* keep_keys: store the keys at the start of every block, for a backward pass. */
static inline void chunk_carve(chunk *x, const loam_problem *p, const loam_args *a, bool keep_keys,
                               arena *pool)
{
    const size_t f32 = sizeof(float);
    *x = (chunk){ .p = p, .a = a, .form = recurrent_form_of(p->mechanism), .d = p->dim_qk };
    const bool channels = x->form->gate == GATE_CHANNEL;
    x->width = features_width(p);
    x->panels = (p->dim_v + LANES - 1) / LANES;
    const size_t rows = (size_t)(CHUNK * x->width), square = CHUNK * LANES;
    const struct {
        float **at;
        size_t floats;
    } parts[] = {
        { &x->q, rows },
        { &x->k, rows },
        { &x->beta, CHUNK },
        { &x->q_in, rows },
        { &x->k_in, rows },
        { &x->k_lanes, rows },
        { &x->gate, rows },
        { &x->total_decay, (size_t)x->width },
        { &x->P, square },
        { &x->A, square },
        { &x->k_out, rows },
        { &x->row, (size_t)x->width },
        { &x->k_decayed, (size_t)x->width },
        { &x->correction, square },
        { &x->u, (size_t)x->panels * square },
        { &x->o, square },
        { &x->denominator, CHUNK },
        { &x->pair_decay, channels ? 0 : square },
        { &x->decay_to, CHUNK },
        { &x->decay_from, CHUNK },
        { &x->decay, channels ? rows : 0 },
        { &x->block_decay_to, channels ? rows : 0 },
        { &x->q_block, channels ? rows : 0 },
        { &x->k_block, channels ? rows : 0 },
        { &x->block_decay_from, channels ? rows : 0 },
        { &x->block_decay, (size_t)(BLOCKS * x->width) },
        { &x->decay_to_block, (size_t)(BLOCKS * x->width) },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i].at = arena_take(pool, parts[i].floats, f32);
    for (int i = 0; i <= BLOCKS; i++)
        x->k_at_block[i] = keep_keys && channels ? arena_take(pool, rows, f32) : x->k_out;
}

#define FOR_WIDTH(c, x) for (int64_t c = 0; c < (x)->width; c += VL)

static inline int64_t chunk_blocks(const chunk *x) { return (x->tokens + BLOCK - 1) / BLOCK; }

/* The end of the block of tokens that starts at `begin`. */
static inline int64_t chunk_block_end(const chunk *x, int64_t begin)
{
    return begin + BLOCK < x->tokens ? begin + BLOCK : x->tokens;
}

/* Tokens of the sequence from `first` on, at most `most`. */
static inline int64_t chunk_tokens(const chunk *x, int64_t first, int64_t most)
{
    const int64_t rest = x->seq.len - first;
    return rest < most ? rest : most;
}

/* Channels of v in a panel. */
static inline int64_t chunk_panel_channels(const chunk *x, int64_t panel)
{
    const int64_t rest = x->p->dim_v - panel * LANES;
    return rest < LANES ? rest : LANES;
}

/* ------------------------------------------------------------------ rows */

static inline void chunk_scale_row(const chunk *x, float *to, const float *from, float factor)
{
    FOR_WIDTH(c, x) { v_store(to + c, v_load(from + c) * factor); }
}

/* Zeroes rows tokens .. CHUNK - 1 of an array with rows of `width`. */
static inline void chunk_clear_tail(const chunk *x, float *rows, int64_t width)
{
    memset(rows + x->tokens * width, 0, (size_t)((CHUNK - x->tokens) * width) * sizeof *rows);
}

/* ------------------------------------------------------------------ loading */

static inline void chunk_load_gate(const chunk *x, int64_t t)
{
    const loam_const_view *g = &x->a->log_decay;
    const int64_t at = RECURRENT_AT(*g, x->seq.b, x->h, x->seq.first + x->first + t);
    const float *from = g->data;
    switch (x->form->gate) {
    case GATE_NONE: x->gate[t] = 0; break;
    case GATE_HEAD: x->gate[t] = from[x->h * g->head]; break;
    case GATE_TOKEN: x->gate[t] = from[at]; break;
    case GATE_CHANNEL:
        for (int64_t c = 0; c < x->width; c++)
            x->gate[t * x->width + c] = c < x->d ? from[at + c] : 0;
        break;
    }
}

static inline void chunk_load(chunk *x, int64_t first, int64_t tokens)
{
    const loam_const_view *beta = &x->a->beta;
    x->first = first;
    x->tokens = tokens;
    for (int64_t t = 0; t < tokens; t++) {
        const int64_t at = RECURRENT_AT(*beta, x->seq.b, x->h, x->seq.first + first + t);
        features_load(x->p, &x->a->q, &x->seq, x->h, first + t, (float)x->p->scale, x->q + t * x->width);
        features_load(x->p, &x->a->k, &x->seq, x->h, first + t, 1, x->k + t * x->width);
        chunk_load_gate(x, t);
        x->beta[t] = x->form->beta ? ((const float *)beta->data)[at] : 1;
    }
    chunk_clear_tail(x, x->q, x->width);
    chunk_clear_tail(x, x->k, x->width);
    chunk_clear_tail(x, x->beta, 1);
    transpose_tile(x->k_lanes, LANES, x->k, x->width, CHUNK, x->width);
}

/* ------------------------------------------------------------------ pairs: P, A and the decays
 * of the chunk */

/* pair_decay, decay_to, decay_from, total_decay. A gate of -inf makes all sums across it -inf, and their
 * exponential 0; sums that begin after it begin at 0. */
static inline void chunk_token_decays(chunk *x)
{
    float seg[CHUNK], pre = 0, suf = 0;
    const bool none = x->form->gate == GATE_NONE;
    for (int64_t j = 0; j < CHUNK; j++) {
        seg[j] = -HUGE_VALF;
        x->decay_to[j] = x->decay_from[j] = 0;
    }
    for (int64_t i = 0; i < x->tokens; i++) {
        float *row = x->pair_decay + i * LANES;
        pre += x->gate[i];
        for (int64_t j = 0; !none && j < i; j++)
            seg[j] += x->gate[i];
        seg[i] = 0;
        FOR_LANES(lane)
        {
            const vec s = v_load(seg + lane);
            v_store(row + lane, none ? v_select(s > -1, v_set(1), v_set(0)) : v_exp(s));
        }
        x->decay_to[i] = expf(pre);
    }
    for (int64_t j = x->tokens - 1; j >= 0; j--) {
        x->decay_from[j] = expf(suf);
        suf += x->gate[j];
    }
    FOR_WIDTH(c, x) { v_store(x->total_decay + c, v_set(x->decay_to[x->tokens - 1])); }
}

/* Multiplies rows of P or A by e^seg, which is 0 above the diagonal. */
static inline void chunk_decay_pairs(const chunk *x, float *pairs)
{
    for (int64_t e = 0; e < x->tokens * LANES; e += VL) {
        const vec s = v_load(x->pair_decay + e);
        v_store(pairs + e, v_select(s > 0, v_load(pairs + e) * s, v_set(0)));
    }
}

/* P and A with one decay per token, or none. */
static inline void chunk_pair_products_by_token(chunk *x)
{
    chunk_token_decays(x);
    panel_product(x->P, x->tokens, x->q, x->width, 1, x->k_lanes, x->d, false);
    chunk_decay_pairs(x, x->P);
    if (x->form->delta) {
        panel_product(x->A, x->tokens, x->k, x->width, 1, x->k_lanes, x->d, false);
        chunk_decay_pairs(x, x->A);
    }
    for (int64_t i = 0; i < x->tokens; i++) {
        chunk_scale_row(x, x->q_in + i * x->width, x->q + i * x->width, x->decay_to[i]);
        if (x->form->delta) {
            x->A[i * LANES + i] = 0;
            chunk_scale_row(x, x->k_in + i * x->width, x->k + i * x->width, x->decay_to[i]);
        }
    }
    for (int64_t c = 0; c < x->d; c++) {
        FOR_LANES(lane)
        {
            const int64_t e = c * LANES + lane;
            v_store(x->k_out + e, v_load(x->k_lanes + e) * v_load(x->decay_from + lane));
        }
    }
}

/* Pairs within tokens begin .. end - 1, one decay per channel. */
static inline void chunk_diagonal_block(chunk *x, int64_t begin, int64_t end)
{
    for (int64_t j = begin; j < end; j++) {
        FOR_WIDTH(c, x) { v_store(x->k_decayed + c, v_load(x->k + j * x->width + c)); }
        x->P[j * LANES + j] = features_dot(x->q + j * x->width, x->k_decayed, x->width);
        for (int64_t i = j + 1; i < end; i++) {
            const float *decay = x->decay + i * x->width;
            FOR_WIDTH(c, x) { v_store(x->k_decayed + c, v_load(x->k_decayed + c) * v_load(decay + c)); }
            x->P[i * LANES + j] = features_dot(x->q + i * x->width, x->k_decayed, x->width);
            if (x->form->delta)
                x->A[i * LANES + j] = features_dot(x->k + i * x->width, x->k_decayed, x->width);
        }
    }
}

/* The decays within block i, and q and k with the decay from its start. `scratch` [BLOCK][width] holds the
 * decay to the block's end, which is transposed into `block_decay_from`. */
static inline void chunk_block_decays(chunk *x, int64_t i, int64_t end)
{
    const int64_t begin = i * BLOCK;
    float *scratch = x->q_in + begin * x->width; /* q_in is written later */
    FOR_WIDTH(c, x)
    {
        vec sum = v_set(0);
        for (int64_t t = begin; t < end; t++) {
            const int64_t e = t * x->width + c;
            const vec gate = v_load(x->gate + e);
            sum += gate;
            const vec decay_to = v_exp(sum);
            v_store(x->decay + e, v_exp(gate));
            v_store(x->block_decay_to + e, decay_to);
            v_store(x->q_block + e, v_load(x->q + e) * decay_to);
            v_store(x->k_block + e, v_load(x->k + e) * decay_to);
        }
        v_store(x->block_decay + i * x->width + c, v_exp(sum));
        sum = v_set(0);
        for (int64_t t = begin + BLOCK - 1; t >= begin; t--) {
            const int64_t e = t * x->width + c;
            v_store(scratch + (t - begin) * x->width + c, t < end ? v_exp(sum) : v_set(0));
            sum += t < end ? v_load(x->gate + e) : v_set(0);
        }
    }
    transpose_tile(x->block_decay_from + begin, LANES, scratch, x->width, BLOCK, x->width);
}

/* k_at_block[i + 1]: the keys before block i decay by the decay of the block, and the keys of block
 * i are added. */
static inline void chunk_block_keys(chunk *x, int64_t i)
{
    const int64_t begin = i * BLOCK;
    for (int64_t c = 0; c < x->d; c++) {
        const float decay = x->block_decay[i * x->width + c];
        const float *from = x->k_at_block[i] + c * LANES, *k = x->k_lanes + c * LANES,
                    *decay_from = x->block_decay_from + c * LANES;
        float *to = x->k_at_block[i + 1] + c * LANES;
        FOR_LANES(lane)
        {
            v_store(to + lane, lane < begin           ? v_load(from + lane) * decay
                               : lane < begin + BLOCK ? v_load(k + lane) * v_load(decay_from + lane)
                                                      : v_set(0));
        }
    }
}

/* P and A with one decay per channel. */
static inline void chunk_pair_products_by_channel(chunk *x)
{
    panel_fill(x->P, x->tokens, 0);
    panel_fill(x->A, x->tokens, 0);
    FOR_WIDTH(c, x) { v_store(x->total_decay + c, v_set(1)); }
    for (int64_t i = 0; i < chunk_blocks(x); i++) {
        const int64_t begin = i * BLOCK, end = chunk_block_end(x, begin);
        const int64_t at = begin * x->width;
        chunk_block_decays(x, i, end);
        if (begin > 0) {
            lanes_product(x->P + begin * LANES, end - begin, x->q_block + at, x->width, 1, x->k_at_block[i],
                          x->d, begin, false);
            if (x->form->delta) {
                lanes_product(x->A + begin * LANES, end - begin, x->k_block + at, x->width, 1,
                              x->k_at_block[i], x->d, begin, false);
            }
        }
        chunk_diagonal_block(x, begin, end);
        chunk_block_keys(x, i);
        FOR_WIDTH(c, x)
        {
            const vec start = v_load(x->total_decay + c);
            v_store(x->decay_to_block + i * x->width + c, start);
            v_store(x->total_decay + c, start * v_load(x->block_decay + i * x->width + c));
            for (int64_t e = at + c; e < end * x->width; e += x->width) {
                v_store(x->q_in + e, v_load(x->q_block + e) * start);
                v_store(x->k_in + e, v_load(x->k_block + e) * start);
            }
        }
    }
    x->k_out = x->k_at_block[chunk_blocks(x)];
}

static inline void chunk_pair_products(chunk *x)
{
    x->form->gate == GATE_CHANNEL ? chunk_pair_products_by_channel(x) : chunk_pair_products_by_token(x);
}

/* ------------------------------------------------------------------ 64 channels of v */

/* factor_t v_t of 64 channels of the tokens; 0 beyond the tokens and beyond the last channel. */
static inline void chunk_load_values(const chunk *x, const loam_const_view *v, const float *factor,
                                     int64_t panel, float *rows)
{
    const int64_t from = panel * LANES, n = chunk_panel_channels(x, panel);
    for (int64_t t = 0; t < x->tokens; t++) {
        float *row = rows + t * LANES;
        load_floats(row, v->data, x->p->dtype,
                    RECURRENT_AT(*v, x->seq.b, x->h, x->seq.first + x->first + t) + from, n);
        features_clear_tail(row, n, LANES);
        FOR_LANES(lane) { v_store(row + lane, v_load(row + lane) * factor[t]); }
    }
    chunk_clear_tail(x, rows, LANES);
}

/* u_i -= beta_i known_i for rows begin .. end - 1. */
static inline void chunk_subtract_correction(const chunk *x, float *u, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        FOR_LANES(lane)
        {
            const int64_t e = i * LANES + lane;
            v_store(u + e, v_load(u + e) - v_load(x->correction + e) * x->beta[i]);
        }
    }
}

/* Solves (I + Diag(beta) A) u = beta v - beta S k_in by forward substitution in blocks of rows; u
 * holds beta v on entry. */
static inline void chunk_forward_substitution(const chunk *x, const float *state, float *u)
{
    panel_product(x->correction, x->tokens, x->k_in, x->width, 1, state, x->d, false);
    chunk_subtract_correction(x, u, 0, x->tokens);
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        const int64_t end = chunk_block_end(x, begin);
        if (begin > 0) {
            panel_product(x->correction + begin * LANES, end - begin, x->A + begin * LANES, LANES, 1, u,
                          begin, false);
            chunk_subtract_correction(x, u, begin, end);
        }
        for (int64_t i = begin + 1; i < end; i++) {
            panel_product(x->correction + i * LANES, 1, x->A + i * LANES + begin, LANES, 1, u + begin * LANES,
                          i - begin, false);
            chunk_subtract_correction(x, u, i, i + 1);
        }
    }
}

static inline float *chunk_panel(float *panels, int64_t panel) { return panels + panel * CHUNK * LANES; }

/* u of a panel of 64 channels, from the state before the chunk. */
static inline void chunk_write(const chunk *x, const float *state, int64_t panel)
{
    float *u = chunk_panel(x->u, panel);
    chunk_load_values(x, &x->a->v, x->beta, panel, u);
    if (x->form->delta) chunk_forward_substitution(x, state, u);
}

/* The denominators of normalised reads: as for a channel of v that is 1 everywhere. reads: q e^pre;
 * normaliser [width]: the state of that channel; rows of P are `stride` apart. */
static inline void chunk_denominators(const chunk *x, const float *reads, const float *normaliser,
                                      int64_t stride)
{
    for (int64_t i = 0; i < x->tokens; i++) {
        x->denominator[i] = features_dot(reads + i * x->width, normaliser, x->width);
        for (int64_t j = 0; j <= i; j++)
            x->denominator[i] += x->P[i * stride + j] * x->beta[j];
    }
}

/* ------------------------------------------------------------------ the state of a head
 *
 * S^T by panels of 64 channels of v, [panels][width][LANES], lanes are channels; then s [width]. */

static inline int64_t chunk_state_floats(const chunk *x) { return (x->panels * LANES + 1) * x->width; }

static inline float *chunk_state_panel(const chunk *x, float *state, int64_t panel)
{
    return state + panel * x->width * LANES;
}

static inline float *chunk_normaliser(const chunk *x, float *state)
{
    return state + x->panels * x->width * LANES;
}

/* The address of channel c of row r of a state. */
static inline float *chunk_state_at(const chunk *x, float *state, int64_t r, int64_t c)
{
    return r < x->p->dim_v ? &state[(r / LANES * x->width + c) * LANES + r % LANES]
                           : &chunk_normaliser(x, state)[c];
}

static inline void chunk_load_state(const chunk *x, const loam_const_view *in, float *state)
{
    memset(state, 0, (size_t)chunk_state_floats(x) * sizeof *state);
    for (int64_t r = 0; in->data && r < recurrent_state_rows(x->p); r++) {
        const float *row = (const float *)in->data + RECURRENT_AT(*in, x->seq.index, x->h, r);
        for (int64_t c = 0; c < x->d; c++)
            *chunk_state_at(x, state, r, c) = row[c];
    }
}

static inline void chunk_store_state(const chunk *x, const loam_view *out, float *state)
{
    for (int64_t r = 0; out->data && r < recurrent_state_rows(x->p); r++) {
        float *row = (float *)out->data + RECURRENT_AT(*out, x->seq.index, x->h, r);
        for (int64_t c = 0; c < x->d; c++)
            row[c] = *chunk_state_at(x, state, r, c);
    }
}

#endif
