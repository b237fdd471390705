/* SPDX-License-Identifier: MIT
 *
 * What the CPU kernels of the local family share: the head, tiles of keys and queries as float, the lanes of
 * a block of queries, and the score.
 *
 * Keys are held relative to the first key of the sequence (the origin): k' = k - origin. So neither scores
 * nor covariances lose precision when all keys lie far from zero. Every later query may see the first key, so
 * causal results stay independent of later keys.
 *
 * With AVX512_BF16 (PAIR_DOTS, src/simd/pairs.h) bfloat16 operands enter products as they lie in memory:
 * exactly, without conversion. Such keys are raw, not relative to the origin; query_constant, common_products
 * and subtract_common correct the products. While the origin is small, that costs only the last bits of
 * float32.
 */
#ifndef LOAM_LOCAL_CPU_TILE_H
#define LOAM_LOCAL_CPU_TILE_H

#include "src/local/decay.h"
#include "src/local/score.h"
#include "src/simd/convert.h"
#include "src/simd/pairs.h"

#define LOCAL_JOIN2(a, b) a##_##b
#define LOCAL_JOIN(a, b) LOCAL_JOIN2(a, b)
/* The name of a kernel in this instruction set: ISA(local_forward) is local_forward_avx2. */
#define ISA(name) LOCAL_JOIN(name, LOAM_ISA_SUFFIX)

enum { TILE_KEYS = PAIR_TOKENS }; /* keys in a tile; queries in a tile where lanes are keys */

typedef struct head {
    const loam_problem *p;
    const loam_args *a;
    local_seq s;
    int64_t h, h_kv;
    float origin[LOAM_MAX_DIM]; /* the first key; 0 where there is none */
    bool raw;                   /* products with keys use the keys as they are in memory */
} head;

/* Keys are used raw up to this largest coordinate of the origin: q . origin then has few more digits than
 * q . k'. */
#define RAW_ORIGIN 64.0f

static inline void head_begin(head *hd, const loam_problem *p, const loam_args *a, const local_seq *s,
                              int64_t h)
{
    hd->p = p, hd->a = a, hd->s = *s, hd->h = h, hd->h_kv = local_kv_head(p, h);
    memset(hd->origin, 0, sizeof hd->origin);
    if (s->nk > 0)
        load_floats(hd->origin, a->k.data, p->dtype, LOCAL_AT(a->k, s->b, hd->h_kv, s->k0), p->dim_qk);
    hd->raw = PAIR_DOTS && p->score == LOAM_DOT;
    for (int64_t c = 0; c < p->dim_qk; c++)
        hd->raw = hd->raw && fabsf(hd->origin[c]) <= RAW_ORIGIN;
}

/* The blocks of all heads as one queue for the threads, block 0 of each head the longest. Where threads are
 * few for the blocks of a head, one head comes after the other, so that its keys and values stay in the
 * cache; else the longest blocks of all heads come first, so that all threads finish together. */
typedef struct block_queue {
    int64_t blocks, heads, batch; /* blocks and heads of an entry of the batch */
    bool by_head;
} block_queue;

typedef struct block_place {
    int64_t block, b, h;
} block_place;

static inline block_queue block_queue_of(const loam_problem *p, int64_t tokens, int64_t heads)
{
    const int64_t blocks = (tokens + LANES - 1) / LANES;
    return (block_queue){ blocks, heads, p->batch, 4 * (int64_t)p->threads <= blocks };
}

static inline int64_t block_queue_length(const block_queue *q) { return q->blocks * q->heads * q->batch; }

static inline block_place block_queue_at(const block_queue *q, int64_t n)
{
    const int64_t all = q->heads * q->batch, which = q->by_head ? n / q->blocks : n % all;
    return (block_place){ q->by_head ? n % q->blocks : n / all, which / q->heads, which % q->heads };
}

/* ------------------------------------------------------------------ tiles: [tokens][channels] floats */

static inline void load_rows(float *restrict tile, const loam_const_view *view, loam_dtype dtype, int64_t b,
                             int64_t h, int64_t token, int64_t tokens, int64_t channels)
{
    for (int64_t r = 0; r < tokens; r++)
        load_floats(tile + r * channels, view->data, dtype, LOCAL_AT(*view, b, h, token + r), channels);
}

static inline void subtract_origin(float *restrict tile, const head *hd, int64_t tokens)
{
    const int64_t d = hd->p->dim_qk;
    for (int64_t r = 0; r < tokens; r++)
        for (int64_t c = 0; c < d; c++)
            tile[r * d + c] -= hd->origin[c];
}

/* Keys j .. j + n - 1 relative to the origin. */
static inline void load_keys(float *restrict tile, const head *hd, int64_t j, int64_t n)
{
    const loam_const_view *k = &hd->a->k;
    const int64_t d = hd->p->dim_qk;
    if (hd->p->dtype != LOAM_F32) {
        load_rows(tile, k, hd->p->dtype, hd->s.b, hd->h_kv, hd->s.k0 + j, n, d);
        subtract_origin(tile, hd, n);
        return;
    }
    for (int64_t r = 0; r < n; r++) {
        const float *row = (const float *)k->data + LOCAL_AT(*k, hd->s.b, hd->h_kv, hd->s.k0 + j + r);
        for (int64_t c = 0; c < d; c++)
            tile[r * d + c] = row[c] - hd->origin[c];
    }
}

static inline void load_values(float *restrict tile, const head *hd, int64_t j, int64_t n)
{
    load_rows(tile, &hd->a->v, hd->p->dtype, hd->s.b, hd->h_kv, hd->s.k0 + j, n, hd->p->dim_v);
}

typedef struct float_rows {
    const float *at;
    int64_t stride;
} float_rows;

/* The values as float: in place where they are contiguous floats, else a copy in `tile`. */
static inline float_rows value_rows(float *restrict tile, const head *hd, int64_t j, int64_t n)
{
    const loam_const_view *v = &hd->a->v;
    const int64_t dv = hd->p->dim_v;
    if (hd->p->dtype == LOAM_F32 && v->token == dv)
        return (float_rows){ (const float *)v->data + LOCAL_AT(*v, hd->s.b, hd->h_kv, hd->s.k0 + j), dv };
    load_values(tile, hd, j, n);
    return (float_rows){ tile, dv };
}

/* Queries as the score uses them: relative to the origin for RBF. */
static inline void load_queries(float *restrict tile, const head *hd, int64_t i, int64_t n)
{
    load_rows(tile, &hd->a->q, hd->p->dtype, hd->s.b, hd->h, hd->s.q0 + i, n, hd->p->dim_qk);
    if (hd->p->score == LOAM_RBF) subtract_origin(tile, hd, n);
}

static inline float dot(const float *restrict x, const float *restrict y, int64_t n)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* The part of x_ij that depends on the query alone: q . origin, or -|q'|^2 / 2. */
static inline float query_constant(const head *hd, const float *query)
{
    return hd->p->score == LOAM_DOT ? dot(query, hd->origin, hd->p->dim_qk)
                                    : -0.5f * dot(query, query, hd->p->dim_qk);
}

/* out[r] = |k'_r|^2 */
static inline void key_norms(float *restrict out, const float *restrict keys, int64_t n, int64_t d)
{
    for (int64_t r = 0; r < n; r++)
        out[r] = dot(keys + r * d, keys + r * d, d);
}

/* ------------------------------------------------------------------ tiles of bfloat16, where PAIR_DOTS */

/* Rows in memory, for products over channels; a padded copy where a product reads more than there is. */
typedef struct raw_rows {
    const uint16_t *at;
    int64_t stride;
} raw_rows;

/* Elements of the copy of a tile, if any. */
static inline size_t raw_copy_size(int64_t channels)
{
    const bool copied = PAIR_DOTS && (channels % PAIR_CHANNELS != 0 || PAIR_ROWS > 1);
    return copied ? TILE_KEYS * (size_t)pair_whole(channels, PAIR_CHANNELS) : 0;
}

static inline raw_rows raw_rows_of(const loam_const_view *view, int64_t b, int64_t h, int64_t token,
                                   int64_t tokens, int64_t channels, uint16_t *restrict copy)
{
    const uint16_t *from = (const uint16_t *)view->data + LOCAL_AT(*view, b, h, token);
    const int64_t width = pair_whole(channels, PAIR_CHANNELS);
    if (channels == width && tokens % PAIR_ROWS == 0) return (raw_rows){ from, view->token };
    for (int64_t r = 0; r < tokens; r++) {
        memcpy(copy + r * width, from + r * view->token, (size_t)channels * sizeof *from);
        memset(copy + r * width + channels, 0, (size_t)(width - channels) * sizeof *from);
    }
    return (raw_rows){ copy, width };
}

/* out [n][LANES] = rows times a panel of pairs of channels, on the first `width` lanes */
static inline void raw_product(float *restrict out, raw_rows rows, int64_t n, const int32_t *restrict panel,
                               int64_t channels, int64_t width)
{
    pair_row_product(out, n, rows.at, rows.stride, panel, channels, width);
}

/* Elements of a tile for sums over tokens. */
static inline size_t token_pairs_size(int64_t channels)
{
    return PAIR_DOTS ? TILE_KEYS * (size_t)pair_whole(channels, PAIR_ROWS) : 0;
}

static inline void load_token_pairs(uint16_t *restrict out, const loam_const_view *view, int64_t b, int64_t h,
                                    int64_t token, int64_t tokens, int64_t channels)
{
    pair_tokens(out, (const uint16_t *)view->data + LOCAL_AT(*view, b, h, token), view->token, tokens,
                channels);
}

/* The values of all heads for sums over tokens, where TILE_DOTS: to turn a tile by itself for each block of
 * queries would cost as much as its product, so where heads have several they are turned ahead. Tile
 * j / TILE_KEYS of a sequence begins at its key j. */
typedef struct token_tiles {
    uint16_t *at; /* [heads_kv][tiles][channels, whole PAIR_ROWS][TILE_KEYS] */
    int64_t tiles, step;
} token_tiles;

static inline bool token_tiles_ahead(const loam_problem *p) { return TILE_DOTS && p->len_q > LANES; }

static inline token_tiles token_tiles_carve(const loam_problem *p, arena *pool)
{
    const int64_t of_seq = (p->len_kv + TILE_KEYS - 1) / TILE_KEYS;
    token_tiles t = { NULL, sequence_packed(p) ? p->total_kv / TILE_KEYS + p->batch : p->batch * of_seq,
                      (int64_t)token_pairs_size(p->dim_v) };
    t.at = arena_take(
        pool,
        token_tiles_ahead(p) ? size_mul(size_mul((size_t)p->heads_kv, (size_t)t.tiles), (size_t)t.step) : 0,
        sizeof(uint16_t));
    return t;
}

/* The tile of key 0 of the sequence at batch index b. */
static inline uint16_t *token_tiles_of(const token_tiles *t, const loam_problem *p, const local_seq *s,
                                       int64_t b, int64_t h_kv)
{
    const int64_t of_seq = (p->len_kv + TILE_KEYS - 1) / TILE_KEYS;
    const int64_t tile = sequence_packed(p) ? s->k0 / TILE_KEYS + b : b * of_seq;
    return t->at + (h_kv * t->tiles + tile) * t->step;
}

/* Fills the tiles that some query sees. Called by every thread of a parallel region. */
static inline void token_tiles_fill(const token_tiles *t, const loam_problem *p, const loam_args *a)
{
    const int64_t of_seq = (p->len_kv + TILE_KEYS - 1) / TILE_KEYS, all = p->batch * p->heads_kv * of_seq;
#pragma omp for schedule(dynamic, 8)
    for (int64_t n = 0; n < all; n++) {
        const int64_t b = n / of_seq / p->heads_kv, h = n / of_seq % p->heads_kv, j = n % of_seq * TILE_KEYS;
        const local_seq s = local_seq_at(p, a, b);
        int64_t first = 0, last = 0, unused;
        if (s.nq > 0) {
            local_visible(p, &s, 0, &first, &unused);
            local_visible(p, &s, s.nq - 1, &unused, &last);
        }
        if (j + TILE_KEYS > first && j < last) {
            load_token_pairs(token_tiles_of(t, p, &s, b, h) + j / TILE_KEYS * t->step, &a->v, s.b, h,
                             s.k0 + j, s.nk - j < TILE_KEYS ? s.nk - j : TILE_KEYS, p->dim_v);
        }
    }
}

/* Elements of a panel of pairs. */
static inline size_t pair_panel_size(int64_t rows)
{
    return PAIR_DOTS ? (size_t)(pair_whole(rows, PAIR_CHANNELS) / 2) * LANES : 0;
}

/* ------------------------------------------------------------------ panels: [channels][LANES] */

/* panel[c][r] = tile[r][c]; lanes beyond n are 0 */
static inline void transpose(float *restrict panel, const float *restrict tile, int64_t n, int64_t channels)
{
    for (int64_t c = 0; c < channels; c++)
        for (int64_t r = 0; r < LANES; r++)
            panel[c * LANES + r] = r < n ? tile[r * channels + c] : 0;
}

/* Stores one lane of a panel as contiguous elements. */
static inline void store_lane(const loam_view *view, loam_dtype dtype, int64_t b, int64_t h, int64_t token,
                              const float *panel, int64_t lane, int64_t channels)
{
    float row[LOAM_MAX_DIM];
    for (int64_t c = 0; c < channels; c++)
        row[c] = panel[c * LANES + lane];
    store_floats(view->data, dtype, LOCAL_AT(*view, b, h, token), row, channels);
}

/* ------------------------------------------------------------------ biases of keys */

static inline void load_bias(float *restrict out, const head *hd, int64_t j, int64_t n)
{
    const loam_const_view *view = &hd->a->key_bias;
    for (int64_t r = 0; r < n; r++) {
        out[r] = hd->p->key_bias
                     ? ((const float *)view->data)[LOCAL_AT(*view, hd->s.b, hd->h, hd->s.k0 + j + r)]
                     : 0;
    }
}

/* G (local/decay.h) of keys j .. j + n - 1; 0 without a decay. */
static inline void load_decay(float *restrict hi, float *restrict lo, const head *hd, int64_t j, int64_t n)
{
    const loam_const_view *view = &hd->a->log_decay;
    for (int64_t r = 0; r < n; r++) {
        local_decay_pair pair = { 0, 0 };
        if (hd->p->decay)
            pair = ((const local_decay_pair *)view->data)[LOCAL_AT(*view, hd->s.b, hd->h, hd->s.k0 + j + r)];
        hi[r] = pair.hi, lo[r] = pair.lo;
    }
}

/* ------------------------------------------------------------------ lanes that are queries */

typedef struct lanes {
    int64_t i0, count;            /* queries i0 .. i0 + count - 1 */
    int64_t first, last;          /* keys first .. last - 1: the union of what the lanes see */
    int32_t lo[LANES], hi[LANES]; /* the keys [lo, hi) of each lane; lo = hi = 0 beyond count */
    int64_t all_from, all_to;     /* keys that every lane sees */
    int64_t width;                /* whole vectors: no other lanes need to be computed */
    float at[LANES];              /* the position i + n_kv - n_q */
    float decay[2][LANES];        /* hi and lo of G at that position */
    /* constant: query_constant, the same addend in x_ij of all keys of a row. Scores and lse leave out
     * dropped = scale constant; a map needs the whole of x, so that dropped is 0 with one. x0: what is
     * added to the product with a key to give x. */
    float constant[LANES];
    float dropped[LANES];
    float x0[LANES];
} lanes;

/* Fills l and the query panel; tile [TILE_KEYS][dim_qk] is scratch. */
static inline void lanes_begin(lanes *l, const head *hd, int64_t i0, float *restrict query,
                               float *restrict tile)
{
    const int64_t left = hd->s.nq - i0;
    l->i0 = i0, l->count = left < LANES ? left : LANES, l->first = INT64_MAX, l->last = 0;
    l->all_from = 0, l->all_to = INT64_MAX, l->width = LANES;
    load_queries(tile, hd, i0, l->count);
    transpose(query, tile, l->count, hd->p->dim_qk);
    for (int64_t r = 0; r < LANES; r++) {
        int64_t lo = 0, hi = 0;
        if (r < l->count) local_visible(hd->p, &hd->s, i0 + r, &lo, &hi);
        if (lo < hi) {
            l->first = lo < l->first ? lo : l->first;
            l->last = hi > l->last ? hi : l->last;
        }
        l->all_from = lo > l->all_from ? lo : l->all_from;
        l->all_to = hi < l->all_to ? hi : l->all_to;
        l->lo[r] = (int32_t)lo, l->hi[r] = (int32_t)hi;
        l->at[r] = (float)(i0 + r + hd->s.nk - hd->s.nq);
        l->decay[0][r] = l->decay[1][r] = 0;
        load_decay(&l->decay[0][r], &l->decay[1][r], hd, local_position(&hd->s, i0 + r),
                   r < l->count && hd->s.nk > 0);
        const bool mapped = local_mapped(hd->p);
        l->constant[r] = r < l->count ? query_constant(hd, tile + r * hd->p->dim_qk) : 0;
        l->x0[r] = (mapped ? l->constant[r] : 0) - (hd->raw ? l->constant[r] : 0);
        l->dropped[r] = mapped ? 0 : (float)hd->p->scale * l->constant[r];
    }
    if (l->first > l->last) l->first = l->last;
    /* Tiles are those of token_tiles; pairs of keys are the same wherever a sum over them begins. */
    if (PAIR_DOTS) l->first -= l->first % (TILE_DOTS ? TILE_KEYS : PAIR_CHANNELS);
}

/* ------------------------------------------------------------------ the score */

typedef struct scoring {
    bool rbf, mapped, sloped, biased, decayed; /* biased: by keys or decays */
    float scale, cap, slope;
} scoring;

static inline scoring scoring_of(const head *hd)
{
    const loam_problem *p = hd->p;
    return (scoring){ .rbf = p->score == LOAM_RBF,
                      .mapped = local_mapped(p),
                      .sloped = p->slope != 0,
                      .biased = p->key_bias || p->decay,
                      .decayed = p->decay != 0,
                      .scale = (float)p->scale,
                      .cap = (float)p->soft_cap,
                      .slope = p->slope ? ((const float *)hd->a->slope)[hd->h] : 0 };
}

/* The map of a scaled score; *factor is its derivative. */
VEC_INLINE vec map_score(const scoring *sc, vec z, vec *factor)
{
    const vec t = v_tanh(z * (1 / sc->cap));
    *factor = 1.0f - t * t;
    return sc->cap * t;
}

/* s from x (local/score.h); *factor is d s / d (scale x). */
VEC_INLINE vec score_of(const scoring *sc, vec x, vec distance, vec bias, vec *factor)
{
    vec s = v_clamp(x * sc->scale, SCORE_LIMIT);
    *factor = v_set(1);
    if (sc->mapped) s = map_score(sc, s, factor);
    if (sc->sloped) s -= sc->slope * distance;
    return sc->biased ? s + bias : s;
}

/* G_query - G_key (local/decay.h), from hi and lo of both. */
VEC_INLINE vec decay_between(vec query_hi, vec query_lo, vec key_hi, vec key_lo)
{
    return (query_hi - key_hi) + (query_lo - key_lo);
}

/* A tile of keys and what the score needs of each key. */
typedef struct key_tile {
    int64_t j, n;
    float *keys;           /* [TILE_KEYS][dim_qk] */
    float norm[TILE_KEYS]; /* |k'|^2; for RBF and LLA */
    float bias[TILE_KEYS], decay[2][TILE_KEYS];
    uint16_t *copy; /* raw_copy_size(dim_qk) */
    raw_rows raw;
} key_tile;

static inline void key_tile_begin(key_tile *t, const head *hd, int64_t j, int64_t last)
{
    t->j = j, t->n = last - j < TILE_KEYS ? last - j : TILE_KEYS;
    load_bias(t->bias, hd, j, t->n);
    load_decay(t->decay[0], t->decay[1], hd, j, t->n);
    if (hd->raw)
        t->raw = raw_rows_of(&hd->a->k, hd->s.b, hd->h_kv, hd->s.k0 + j, t->n, hd->p->dim_qk, t->copy);
}

static inline void key_tile_load(key_tile *t, const head *hd, int64_t j, int64_t last)
{
    key_tile_begin(t, hd, j, last);
    load_keys(t->keys, hd, j, t->n);
    if (hd->p->score == LOAM_RBF || hd->p->mechanism == LOAM_LLA)
        key_norms(t->norm, t->keys, t->n, hd->p->dim_qk);
}

/* Loads only what key_products needs. */
static inline void score_tile_load(key_tile *t, const head *hd, int64_t j, int64_t last)
{
    if (hd->raw)
        key_tile_begin(t, hd, j, last);
    else
        key_tile_load(t, hd, j, last);
}

/* out = the products of the keys (raw or relative to the origin, as x->raw says) with a panel that is also
 * given as pairs, on the first `width` lanes. */
static inline void key_products(float *restrict out, const head *hd, const key_tile *t,
                                const float *restrict panel, const int32_t *restrict pairs, int64_t width)
{
    const int64_t d = hd->p->dim_qk;
    if (hd->raw)
        raw_product(out, t->raw, t->n, pairs, d, width);
    else
        lanes_product(out, t->n, t->keys, d, 1, panel, d, width, false);
}

/* x_ij, without the dropped constant, of key r of a tile for the lanes at `lane`, from the product q . k'. */
VEC_INLINE vec score_argument(const scoring *sc, const lanes *l, const key_tile *t, int64_t r, int lane,
                              vec product)
{
    const vec x = product + v_load(l->x0 + lane);
    return v_clamp(sc->rbf ? x - 0.5f * t->norm[r] : x, SCORE_LIMIT);
}

VEC_INLINE vec score_distance(const lanes *l, int64_t j, int lane)
{
    return v_abs(v_load(l->at + lane) - (float)j);
}

/* s_ij, or -inf where the lane does not see the key (causal, window and tail masks). */
VEC_INLINE vec score_masked(const scoring *sc, const lanes *l, const key_tile *t, int64_t r, int lane, vec x,
                            vec *factor)
{
    const int32_t j = (int32_t)(t->j + r);
    const vmask seen = (v_load_int(l->lo + lane) <= j) & (v_load_int(l->hi + lane) > j);
    vec bias = v_set(t->bias[r]);
    if (sc->decayed) {
        bias += decay_between(v_load(l->decay[0] + lane), v_load(l->decay[1] + lane), v_set(t->decay[0][r]),
                              v_set(t->decay[1][r]));
    }
    const vec s = score_of(sc, x, score_distance(l, t->j + r, lane), bias, factor);
    return v_select(seen, s, v_set(-INFINITY));
}

/* Tiles that every lane sees whole, with scores that are scaled products only, need no masks and no case
 * distinctions. Functions with an argument `unmasked` are inlined once with true and once with false; both
 * give the same bits. */
static inline bool tile_is_unmasked(const scoring *sc, const lanes *l, const key_tile *t)
{
    return !sc->rbf && !sc->mapped && !sc->sloped && !sc->biased && l->all_from <= t->j &&
           t->j + t->n <= l->all_to;
}

/* s_ij from the product of the query with the key, k' or raw k. */
VEC_INLINE vec score_from(bool unmasked, const scoring *sc, const lanes *l, const key_tile *t, int64_t r,
                          int lane, vec product, vec *x, vec *factor)
{
    if (unmasked) {
        *x = v_clamp(product + v_load(l->x0 + lane), SCORE_LIMIT);
        *factor = v_set(1);
        return v_clamp(*x * sc->scale, SCORE_LIMIT);
    }
    *x = score_argument(sc, l, t, r, lane, product);
    return score_masked(sc, l, t, r, lane, *x, factor);
}

VEC_INLINE void scores_of_tile(bool unmasked, float *restrict tile, const scoring *sc, const lanes *l,
                               const key_tile *t, float *restrict best)
{
    FOR_LANES_OF(lane, l->width)
    {
        vec top = v_load(best + lane);
        for (int64_t r = 0; r < t->n; r++) {
            float *at = tile + r * LANES + lane;
            vec x, factor;
            const vec s = score_from(unmasked, sc, l, t, r, lane, v_load(at), &x, &factor);
            top = v_max(s, top);
            v_store(at, s);
        }
        v_store(best + lane, top);
    }
}

/* tile [n][LANES]: products with keys become scores. best[lane] <- max(best[lane], scores of the tile). */
static inline void scores_in_place(float *restrict tile, const scoring *sc, const lanes *l, const key_tile *t,
                                   float *restrict best)
{
    if (tile_is_unmasked(sc, l, t))
        scores_of_tile(true, tile, sc, l, t, best);
    else
        scores_of_tile(false, tile, sc, l, t, best);
}

/* p = exp(s - lse). Large s and lse have large rounding errors; the clamp keeps p <= 1. */
VEC_INLINE vec weight_of(vec s, vec lse) { return v_exp(v_min(v_set(0), s - lse)); }

/* Where keys are raw: converts sums of raw keys into sums of keys relative to the origin, sum
 * [dim_qk][LANES] -= weights origin. weights: for each lane the sum of the factors of the keys. */
static inline void subtract_common(float *restrict sum, const head *hd, const float *restrict weights)
{
    for (int64_t c = 0; hd->raw && c < hd->p->dim_qk; c++) {
        FOR_LANES(lane)
        {
            float *at = sum + c * LANES + lane;
            v_store(at, v_load(at) - v_load(weights + lane) * hd->origin[c]);
        }
    }
}

/* out[lane] = panel . origin: the excess of products with raw keys. */
static inline void common_products(float *restrict out, const head *hd, const float *restrict panel)
{
    FOR_LANES(lane)
    {
        vec sum = v_set(0);
        for (int64_t c = 0; c < hd->p->dim_qk; c++)
            sum += v_load(panel + c * LANES + lane) * hd->origin[c];
        v_store(out + lane, sum);
    }
}

/* sum += w (product - centre) over a tile of `rows` keys. */
static inline void centre_products(const float *restrict w, const float *restrict product,
                                   const float *restrict centre, float *restrict sum, int64_t rows)
{
    FOR_LANES(lane)
    {
        vec total = v_load(sum + lane);
        for (int64_t r = 0; r < rows; r++) {
            total += v_load(w + r * LANES + lane) *
                     (v_load(product + r * LANES + lane) - v_load(centre + lane));
        }
        v_store(sum + lane, total);
    }
}

/* out[lane] = sum_j w_j |kappa_j|^2, from differences: |k|^2 - |kbar|^2 would cancel where all keys are
 * equal, and the trace unit of the ridge needs that small sum to its own relative precision. weights:
 * [last - first][LANES]. */
static inline void sum_spread(float *restrict out, const head *hd, const lanes *l, key_tile *tile,
                              const float *restrict weights, const float *restrict kbar)
{
    const int64_t d = hd->p->dim_qk;
    memset(out, 0, LANES * sizeof(float));
    for (int64_t j = l->first; j < l->last; j += TILE_KEYS) {
        key_tile_load(tile, hd, j, l->last);
        for (int64_t r = 0; r < tile->n; r++) {
            FOR_LANES(lane)
            {
                vec sum = v_set(0);
                for (int64_t c = 0; c < d; c++) {
                    const vec kappa = tile->keys[r * d + c] - v_load(kbar + c * LANES + lane);
                    sum += kappa * kappa;
                }
                v_store(out + lane,
                        v_load(out + lane) + sum * v_load(weights + (j - l->first + r) * LANES + lane));
            }
        }
    }
}

/* m, or 0 for -inf, which stands for "no key seen yet": subtracting -inf would give NaN. */
VEC_INLINE vec finite_or_zero(vec m) { return v_select(m > -INFINITY, m, v_set(0)); }

#endif
