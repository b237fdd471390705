/* SPDX-License-Identifier: MIT
 *
 * Forward of a span, a chunk of up to 32 tokens of one head, float32: the equations and arrays of
 * recurrent/cpu/chunk.h, at the length that needs the fewest operations. Blocks of 16 x 16 tokens above the
 * diagonal are not computed. P and A are [SPAN][SPAN], and A holds -Diag(beta) A. Rows beyond the last token
 * are 0 in q, k, u. */
#ifndef LOAM_RECURRENT_CPU_SPAN_H
#define LOAM_RECURRENT_CPU_SPAN_H

#include "src/recurrent/cpu/chunk.h"
#include "src/simd/table.h"
#include "src/simd/terms.h"

enum { SPAN = 2 * BLOCK };

#define FOR_SPAN(t) for (int64_t t = 0; t < SPAN; t++)

/* ------------------------------------------------------------------ loading */

/* Zeroes rows beyond the tokens. Usually there are none, and a memset of 0 bytes takes a
 * hundred cycles here. */
static inline void span_clear_tail(const chunk *x, float *rows, int64_t width)
{
    if (x->tokens < SPAN)
        memset(rows + x->tokens * width, 0, (size_t)((SPAN - x->tokens) * width) * sizeof *rows);
}

static inline void span_load_gates(const chunk *x)
{
    const loam_const_view *g = &x->a->log_decay;
    const int64_t at = RECURRENT_AT(*g, x->seq.b, x->h, x->seq.first + x->first);
    const float *from = g->data;
    if (x->form->gate == GATE_CHANNEL) {
        for (int64_t t = 0; t < x->tokens; t++) {
            float *row = x->gate + t * x->width;
            memcpy(row, from + at + t * g->token, (size_t)x->d * sizeof *row);
            features_clear_tail(row, x->d, x->width);
        }
        span_clear_tail(x, x->gate, x->width);
        return;
    }
    FOR_SPAN(t)
    {
        x->gate[t] = t >= x->tokens || x->form->gate == GATE_NONE ? 0
                     : x->form->gate == GATE_HEAD                 ? from[x->h * g->head]
                                                                  : from[at + t * g->token];
    }
}

static inline void span_load(chunk *x, int64_t first, int64_t tokens)
{
    const loam_const_view *beta = &x->a->beta;
    const float *betas = beta->data;
    const int64_t at = RECURRENT_AT(*beta, x->seq.b, x->h, x->seq.first + first);
    x->first = first;
    x->tokens = tokens;
    features_load_rows(x->p, &x->a->q, &x->seq, x->h, first, tokens, (float)x->p->scale, x->q);
    features_load_rows(x->p, &x->a->k, &x->seq, x->h, first, tokens, 1, x->k);
    span_clear_tail(x, x->q, x->width);
    span_clear_tail(x, x->k, x->width);
    span_load_gates(x);
    FOR_SPAN(t) { x->beta[t] = t >= tokens ? 0 : x->form->beta ? betas[at + t * beta->token] : 1; }
}

/* The rows that the next span reads and writes, to be prefetched during the products of this span. */
static inline ahead span_ahead(const chunk *x)
{
    const loam_args *a = x->a;
    const int64_t next = x->first + SPAN, rest = x->seq.len - next;
    const int64_t token = x->seq.first + next, b = x->seq.b, size = (int64_t)dtype_bytes(x->p->dtype);
    const int64_t h = recurrent_key_head(x->p, x->h);
    return (ahead){
        .rows = rest <= 0     ? 0
                : rest < SPAN ? rest
                              : SPAN,
        .of = { ahead_of(a->q.data, RECURRENT_AT(a->q, b, h, token), a->q.token, x->d, size),
                ahead_of(a->k.data, RECURRENT_AT(a->k, b, h, token), a->k.token, x->d, size),
                ahead_of(a->v.data, RECURRENT_AT(a->v, b, x->h, token), a->v.token, x->p->dim_v, size),
                ahead_of(a->o.data, RECURRENT_AT(a->o, b, x->h, token), a->o.token, x->p->dim_v, size),
                ahead_of(x->form->gate == GATE_CHANNEL ? a->log_decay.data : NULL,
                         RECURRENT_AT(a->log_decay, b, x->h, token), a->log_decay.token, x->d,
                         sizeof(float)) }
    };
}

/* ------------------------------------------------------------------ products of pairs of tokens */

#if defined __AVX512F__
enum { PAIR_ROWS = 8 };
#else
enum { PAIR_ROWS = 4 };
#endif

/* to [PAIR_ROWS][SPAN] <- a [PAIR_ROWS][width] b [d][stride], for 2 or 1 vectors of lanes. */
VEC_INLINE void span_tile_products(const int vecs, float *restrict to, const float *restrict a, int64_t width,
                                   const float *restrict b, int64_t stride, int64_t d)
{
    vec sum[PAIR_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < PAIR_ROWS; r++)
        sum[r][0] = sum[r][1] = v_set(0);
    for (int64_t c = 0; c < d; c++, b += stride) {
        vec y[2];
#pragma GCC unroll 2
        for (int n = 0; n < vecs; n++)
            y[n] = v_load(b + n * VL);
#pragma GCC unroll 8
        for (int r = 0; r < PAIR_ROWS; r++) {
            const vec each = v_set(a[r * width + c]);
#pragma GCC unroll 2
            for (int n = 0; n < vecs; n++)
                sum[r][n] += each * y[n];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < PAIR_ROWS; r++) {
#pragma GCC unroll 2
        for (int n = 0; n < vecs; n++)
            v_store(to + r * SPAN + n * VL, sum[r][n]);
    }
}

/* A block of BLOCK rows at `to`, lanes 0 .. lanes - 1: the products of rows, `width` apart, with keys. */
static inline void span_block_products(float *to, const float *rows, int64_t width, const float *keys,
                                       int64_t stride, int64_t d, int64_t lanes)
{
    for (int64_t r = 0; r < BLOCK; r += PAIR_ROWS) {
        int64_t lane = 0;
        for (; lane + 2 * VL <= lanes; lane += 2 * VL)
            span_tile_products(2, to + r * SPAN + lane, rows + r * width, width, keys + lane, stride, d);
        for (; lane < lanes; lane += VL)
            span_tile_products(1, to + r * SPAN + lane, rows + r * width, width, keys + lane, stride, d);
    }
}

/* ------------------------------------------------------------------ one decay per token, or none */

/* e^seg of pairs within a block. A gate of -inf makes sums across it -inf; sums that begin after it
 * begin at 0. */
static inline void span_decays_within(const chunk *x, int64_t begin)
{
    for (int64_t lane = 0; lane < BLOCK; lane += VL) {
        const vmask at = v_iota() + (int32_t)lane;
        vec seg = v_set(-HUGE_VALF);
        for (int64_t i = 0; i < BLOCK; i++) {
            seg = v_select(at == (int32_t)i, v_set(0), seg + x->gate[begin + i]);
            v_store(x->pair_decay + (begin + i) * SPAN + begin + lane, v_exp(seg));
        }
    }
}

/* pair_decay [SPAN][SPAN], decay_to, decay_from, total_decay. block_to and block_from are the sums within a
 * block, to and after a token. */
static inline void span_decays(chunk *x)
{
    float block_to[SPAN], block_from[SPAN], sum[2] = { 0, 0 }; /* sum: of each block */
    for (int64_t t = 0; t < BLOCK; t++) {
        block_to[t] = sum[0] += x->gate[t];
        block_to[BLOCK + t] = sum[1] += x->gate[BLOCK + t];
    }
    block_from[BLOCK - 1] = block_from[SPAN - 1] = 0;
    for (int64_t t = BLOCK - 1; t > 0; t--) {
        block_from[t - 1] = block_from[t] + x->gate[t];
        block_from[BLOCK + t - 1] = block_from[BLOCK + t] + x->gate[BLOCK + t];
    }
    const float first = expf(sum[0]), second = expf(sum[1]), total = expf(sum[0] + sum[1]);
    FOR_WIDTH(c, x) { v_store(x->total_decay + c, v_set(total)); }
    for (int64_t t = 0; t < SPAN; t += VL) {
        const bool later = t >= BLOCK;
        v_store(block_to + t, v_exp(v_load(block_to + t)));
        v_store(block_from + t, v_exp(v_load(block_from + t)));
        v_store(x->decay_to + t, v_load(block_to + t) * (later ? first : 1));
        v_store(x->decay_from + t, v_load(block_from + t) * (later ? 1 : second));
    }
    span_decays_within(x, 0);
    span_decays_within(x, BLOCK);
    for (int64_t i = BLOCK; i < SPAN; i++)
        for (int64_t lane = 0; lane < BLOCK; lane += VL)
            v_store(x->pair_decay + i * SPAN + lane, v_load(block_from + lane) * block_to[i]);
}

/* Without gates `pair_decay` is 1 up to and on the diagonal. */
static inline void span_no_decays(chunk *x)
{
    FOR_WIDTH(c, x) { v_store(x->total_decay + c, v_set(1)); }
    FOR_SPAN(i)
    {
        for (int64_t lane = 0; lane < SPAN; lane += VL) {
            const vmask at = v_iota() + (int32_t)lane;
            v_store(x->pair_decay + i * SPAN + lane, v_select(at <= (int32_t)i, v_set(1), v_set(0)));
        }
    }
}

/* A block of rows of P or A: times e^seg and the row's factor; 0 above the diagonal. */
static inline void span_decay_pairs(const chunk *x, float *pairs, int64_t begin, const float *factor)
{
    for (int64_t i = begin; i < begin + BLOCK; i++) {
        for (int64_t lane = 0; lane < begin + BLOCK; lane += VL) {
            const vec decay = v_load(x->pair_decay + i * SPAN + lane);
            float *at = pairs + i * SPAN + lane;
            v_store(at, v_select(decay > 0, v_load(at) * (decay * factor[i]), v_set(0)));
        }
    }
}

static inline void span_scale_rows(const chunk *x, float *to, const float *from, const float *factor)
{
    FOR_SPAN(t) { chunk_scale_row(x, to + t * x->width, from + t * x->width, factor[t]); }
}

static inline void span_pair_products_by_token(chunk *x)
{
    const bool gated = x->form->gate != GATE_NONE;
    float one[SPAN], minus[SPAN], k_in_factor[SPAN];
    if (gated)
        span_decays(x);
    else
        span_no_decays(x);
    FOR_SPAN(t)
    {
        one[t] = 1;
        minus[t] = -x->beta[t];
        k_in_factor[t] = gated ? minus[t] * x->decay_to[t] : minus[t];
    }
    transpose_tile(x->k_lanes, SPAN, x->k, x->width, SPAN, x->width);
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        const int64_t at = begin * x->width, lanes = begin + BLOCK;
        span_block_products(x->P + begin * SPAN, x->q + at, x->width, x->k_lanes, SPAN, x->d, lanes);
        span_decay_pairs(x, x->P, begin, one);
        if (x->form->delta) {
            span_block_products(x->A + begin * SPAN, x->k + at, x->width, x->k_lanes, SPAN, x->d, lanes);
            span_decay_pairs(x, x->A, begin, minus);
        }
    }
    if (x->form->delta) span_scale_rows(x, x->k_in, x->k, k_in_factor);
    if (gated) {
        span_scale_rows(x, x->q_in, x->q, x->decay_to);
        span_scale_rows(x, x->k_out, x->k, x->decay_from);
    }
}

/* q e^pre and k e^suf. */
static inline const float *span_reads(const chunk *x) { return x->form->gate == GATE_NONE ? x->q : x->q_in; }
static inline const float *span_writes(const chunk *x)
{
    return x->form->gate == GATE_NONE ? x->k : x->k_out;
}

/* ------------------------------------------------------------------ one decay per channel */

/* For the rows of block i: gate <- e^gate; q_in, k_in and tail <- q, k e^pre and k e^suf, with
 * sums within the block. */
static inline void span_block_decays(const chunk *x, int64_t i)
{
    const int64_t width = x->width, begin = i * BLOCK * width, end = begin + BLOCK * width;
    FOR_WIDTH(c, x)
    {
        vec all = v_set(1), sum = v_set(0);
        for (int64_t e = begin + c; e < end; e += width) {
            const vec gate = v_load(x->gate + e), decay = v_exp(gate);
            sum += gate;
            all *= decay;
            v_store(x->gate + e, decay);
            v_store(x->q_in + e, v_load(x->q + e) * all);
            v_store(x->k_in + e, v_load(x->k + e) * all);
        }
        v_store(x->block_decay + i * width + c, v_exp(sum));
        all = v_set(1);
        for (int64_t e = end - width + c; e >= begin; e -= width) {
            v_store(x->k_out + e, v_load(x->k + e) * all);
            all *= v_load(x->gate + e);
        }
    }
}

/* Per lane partial sums of q . k (or k . k) of row i with keys begin .. i, whose decays are multiplied
 * from i down. */
VEC_INLINE void span_diagonal_parts(const int vecs, const chunk *x, const float *row, int64_t i,
                                    int64_t begin, int64_t c, bool add, float *part)
{
    vec from[4];
#pragma GCC unroll 4
    for (int n = 0; n < vecs; n++)
        from[n] = v_load(row + i * x->width + c + n * VL);
    for (int64_t j = i; j >= begin; j--) {
        const int64_t at = j * x->width + c;
        vec sum = v_set(0);
#pragma GCC unroll 4
        for (int n = 0; n < vecs; n++) {
            sum += from[n] * v_load(x->k + at + n * VL);
            from[n] *= v_load(x->gate + at + n * VL);
        }
        float *to = part + (j - begin) * VL;
        v_store(to, add ? v_load(to) + sum : sum);
    }
}

/* pairs [BLOCK][SPAN] of a block's own tokens: products of rows and keys, times the factor of the row. */
static inline void span_diagonal_block(const chunk *x, float *pairs, const float *row, int64_t begin,
                                       const float *factor)
{
    float part[BLOCK * VL];
    memset(part, 0, sizeof part);
    for (int64_t i = begin; i < begin + BLOCK; i++) {
        int64_t c = 0;
        for (; c + 4 * VL <= x->width; c += 4 * VL)
            span_diagonal_parts(4, x, row, i, begin, c, c > 0, part);
        for (; c < x->width; c += VL)
            span_diagonal_parts(1, x, row, i, begin, c, c > 0, part);
        for (int64_t lane = 0; lane < BLOCK; lane += VL) {
            vec sums[VL];
            const vmask at = v_iota() + (int32_t)(begin + lane);
#pragma GCC unroll 16
            for (int e = 0; e < (int)VL; e++)
                sums[e] = v_load(part + (lane + e) * VL);
            const vec all = v_sums(sums) * factor[i];
            v_store(pairs + i * SPAN + begin + lane, v_select(at <= (int32_t)i, all, v_set(0)));
        }
    }
}

static inline void span_pair_products_by_channel(chunk *x)
{
    const int64_t width = x->width, half = BLOCK * width;
    const float *first = x->block_decay, *second = x->block_decay + width;
    float one[SPAN], minus[SPAN];
    FOR_SPAN(t)
    {
        one[t] = 1;
        minus[t] = -x->beta[t];
    }
    for (int64_t i = 0; i * BLOCK < SPAN; i++) {
        span_block_decays(x, i);
        span_diagonal_block(x, x->P, x->q, i * BLOCK, one);
        if (x->form->delta) span_diagonal_block(x, x->A, x->k, i * BLOCK, minus);
    }
    transpose_tile(x->k_lanes, BLOCK, x->k_out, width, BLOCK, width);
    span_block_products(x->P + BLOCK * SPAN, x->q_in + half, width, x->k_lanes, BLOCK, x->d, BLOCK);
    if (x->form->delta) {
        span_block_products(x->A + BLOCK * SPAN, x->k_in + half, width, x->k_lanes, BLOCK, x->d, BLOCK);
        for (int64_t i = BLOCK; i < SPAN; i++) {
            for (int64_t lane = 0; lane < BLOCK; lane += VL) {
                float *at = x->A + i * SPAN + lane;
                v_store(at, v_load(at) * minus[i]);
            }
        }
        span_scale_rows(x, x->k_in, x->k_in, minus);
    }
    FOR_WIDTH(c, x)
    {
        const vec before = v_load(first + c), after = v_load(second + c);
        v_store(x->total_decay + c, before * after);
        for (int64_t e = c; e < half; e += width) {
            v_store(x->k_out + e, v_load(x->k_out + e) * after);
            v_store(x->q_in + half + e, v_load(x->q_in + half + e) * before);
            v_store(x->k_in + half + e, v_load(x->k_in + half + e) * before);
        }
    }
}

static inline void span_pair_products(chunk *x)
{
    x->form->gate == GATE_CHANNEL ? span_pair_products_by_channel(x) : span_pair_products_by_token(x);
}

/* ------------------------------------------------------------------ 64 channels of v */

/* Forward substitution within a block, in registers: u_i += sum_{j<i} A_ij u_j, where A
 * holds -Diag(beta) A. */
static inline void span_solve_block(const float *restrict A, float *restrict u)
{
    enum { ROWS = VL < 16 ? 8 : 16 };
    for (int64_t begin = 0; begin < BLOCK; begin += ROWS) {
        FOR_LANES(lane)
        {
            vec row[ROWS];
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; i++)
                row[i] = v_load(u + (begin + i) * LANES + lane);
            for (int64_t j = 0; j < begin; j++) {
                const vec solved = v_load(u + j * LANES + lane);
#pragma GCC unroll 16
                for (int i = 0; i < ROWS; i++)
                    row[i] += A[(begin + i) * SPAN + j] * solved;
            }
#pragma GCC unroll 16
            for (int j = 0; j < ROWS; j++) {
#pragma GCC unroll 16
                for (int i = j + 1; i < ROWS; i++)
                    row[i] += A[(begin + i) * SPAN + begin + j] * row[j];
            }
#pragma GCC unroll 16
            for (int i = 0; i < ROWS; i++)
                v_store(u + (begin + i) * LANES + lane, row[i]);
        }
    }
}

/* u <- beta v; 0 beyond the tokens and beyond the last channel. */
static inline void span_load_values(const chunk *x, float *u, int64_t panel)
{
    const int64_t from = panel * LANES, n = chunk_panel_channels(x, panel);
    const loam_const_view *v = &x->a->v;
    int64_t at = RECURRENT_AT(*v, x->seq.b, x->h, x->seq.first + x->first) + from;
    const bool direct = x->p->dtype == LOAM_F32 && n == LANES;
    for (int64_t t = 0; t < x->tokens; t++, at += v->token) {
        float *row = u + t * LANES;
        const float *value = direct ? (const float *)v->data + at : row;
        if (!direct) {
            load_floats(row, v->data, x->p->dtype, at, n);
            features_clear_tail(row, n, LANES);
        }
        FOR_LANES(lane) { v_store(row + lane, v_load(value + lane) * x->beta[t]); }
    }
    span_clear_tail(x, u, LANES);
}

/* u of a panel of 64 channels, from the state before the span. */
static inline void span_write(const chunk *x, const float *state, int64_t panel, ahead *next)
{
    float *u = chunk_panel(x->u, panel);
    span_load_values(x, u, panel);
    for (int64_t begin = 0; x->form->delta && begin < x->tokens; begin += BLOCK) {
        float *block = u + begin * LANES;
        const term corrections[] = { { x->k_in + begin * x->width, x->width, 1, state, x->d },
                                     { x->A + begin * SPAN, SPAN, 1, u, begin } };
        terms_sum((terms_rows){ block, LANES, block, NULL }, BLOCK, 2, corrections, next);
        span_solve_block(x->A + begin * SPAN + begin, block);
    }
}

/* o of a panel, from the state before the span; 0 where the denominator of a normalised read is 0. */
static inline void span_read(const chunk *x, const float *state, int64_t panel, ahead *next)
{
    const loam_view *o = &x->a->o;
    const int64_t from = panel * LANES, n = chunk_panel_channels(x, panel);
    const int64_t out = RECURRENT_AT(*o, x->seq.b, x->h, x->seq.first + x->first) + from;
    const bool direct = x->p->dtype == LOAM_F32 && n == LANES && !x->p->normalise;
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        const int64_t end = chunk_block_end(x, begin);
        const term terms[] = { { span_reads(x) + begin * x->width, x->width, 1, state, x->d },
                               { x->P + begin * SPAN, SPAN, 1, chunk_panel(x->u, panel), end } };
        const terms_rows rows = { direct ? (float *)o->data + out + begin * o->token : x->o + begin * LANES,
                                  direct ? o->token : LANES, NULL, NULL };
        terms_sum(rows, end - begin, 2, terms, next);
    }
    for (int64_t t = 0; !direct && t < x->tokens; t++) {
        float *row = x->o + t * LANES;
        for (int64_t c = 0; x->p->normalise && c < n; c++)
            row[c] = x->denominator[t] == 0 ? 0 : row[c] / x->denominator[t];
        store_floats(o->data, x->p->dtype, out + t * o->token, row, n);
    }
}

/* Updates the state of a panel, [width][LANES], to the end of the span. */
static inline void span_advance(const chunk *x, float *state, int64_t panel, ahead *next)
{
    const term keys = { span_writes(x), 1, x->width, chunk_panel(x->u, panel), x->tokens };
    const float *total = x->form->gate == GATE_NONE ? NULL : x->total_decay;
    terms_sum((terms_rows){ state, LANES, state, total }, x->d, 1, &keys, next);
}

static inline void span_advance_normaliser(const chunk *x, float *normaliser)
{
    FOR_WIDTH(c, x)
    {
        vec sum = v_load(normaliser + c) * v_load(x->total_decay + c);
        for (int64_t t = 0; t < x->tokens; t++)
            sum += v_load(span_writes(x) + t * x->width + c) * x->beta[t];
        v_store(normaliser + c, sum);
    }
}

#endif
