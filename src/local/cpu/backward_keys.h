/* SPDX-License-Identifier: MIT
 * Backward on CPUs, second pass: lanes are keys j0 .. j0 + count - 1. All queries that see them are streamed
 * past; dk and dv stay in the block until all query heads of the group have been added.
 */
#ifndef LOAM_LOCAL_CPU_BACKWARD_KEYS_H
#define LOAM_LOCAL_CPU_BACKWARD_KEYS_H

#include "src/local/cpu/backward_block.h"

typedef struct key_lanes {
    int64_t j0, count;
    int32_t j[LANES];
    float at[LANES], norm[LANES], bias[LANES], decay[2][LANES];
    float *grad_bias;    /* [LANES], of one query head */
    float inner[LANES];  /* sum of ds factor, for RBF */
    float spread[LANES]; /* sum of p e / unit of the trace unit */
} key_lanes;

static inline void load_key_lanes(block *blk, key_lanes *l, float *restrict keys, float *restrict values)
{
    const int64_t d = blk->hd.p->dim_qk;
    if (blk->hd.raw) {
        load_rows(blk->tile.keys, &blk->hd.a->k, blk->hd.p->dtype, blk->hd.s.b, blk->hd.h_kv,
                  blk->hd.s.k0 + l->j0, l->count, d);
        transpose(keys, blk->tile.keys, l->count, d);
        pair_rows(blk->query_pairs, keys, d, NULL);
    }
    load_keys(blk->tile.keys, &blk->hd, l->j0, l->count);
    transpose(keys, blk->tile.keys, l->count, d);
    load_values(blk->values, &blk->hd, l->j0, l->count);
    transpose(values, blk->values, l->count, blk->hd.p->dim_v);
    if (PAIR_DOTS) pair_rows(blk->grad_o_pairs, values, blk->hd.p->dim_v, NULL);
    if (blk->head_sums && blk->hd.raw)
        load_token_pairs(blk->key_tokens, &blk->hd.a->k, blk->hd.s.b, blk->hd.h_kv, blk->hd.s.k0 + l->j0,
                         l->count, d);
    panel_dot(l->norm, keys, keys, d);
    for (int lane = 0; lane < LANES; lane++) {
        l->j[lane] = lane < l->count ? (int32_t)(l->j0 + lane) : INT32_MAX;
        l->at[lane] = (float)(l->j0 + lane);
        l->inner[lane] = l->spread[lane] = 0;
    }
}

/* A tile of queries, with the records of their rows from the first pass. */
typedef struct query_tile {
    int64_t i, n, lo, hi; /* [lo, hi): the keys that some query sees */
    float at[TILE_KEYS], decay[2][TILE_KEYS];
    const row_record *record;
    raw_rows query, probe, grad_o;
} query_tile;

/* 16-bit rows of the tile: unchanged for products over channels, and as pairs for sums over queries. */
static inline raw_rows load_raw_tile(const block *blk, const query_tile *t, const loam_const_view *view,
                                     int64_t channels, uint16_t *restrict copy, uint16_t *restrict tokens)
{
    const int64_t token = blk->hd.s.q0 + t->i;
    load_token_pairs(tokens, view, blk->hd.s.b, blk->hd.h, token, t->n, channels);
    return raw_rows_of(view, blk->hd.s.b, blk->hd.h, token, t->n, channels, copy);
}

static inline void load_query_tile(block *blk, query_tile *t, const row_arrays *rows)
{
    const loam_problem *p = blk->hd.p;
    const loam_args *a = blk->hd.a;
    const int64_t d = p->dim_qk, row = local_row(p, &blk->hd.s, blk->hd.h, t->i), token = blk->hd.s.q0 + t->i;
    const size_t bytes = (size_t)(t->n * d) * sizeof(float);
    t->record = rows->record + row;
    if (PAIR_DOTS)
        t->grad_o = load_raw_tile(blk, t, &a->grad_o, p->dim_v, blk->value_copy, blk->do_tokens);
    else
        load_rows(blk->rows_do, &a->grad_o, p->dtype, blk->hd.s.b, blk->hd.h, token, t->n, p->dim_v);
    if (blk->hd.raw)
        t->query = load_raw_tile(blk, t, &a->q, d, blk->query_copy, blk->query_tokens);
    else
        load_queries(blk->rows_q, &blk->hd, t->i, t->n);
    if (blk->solved) {
        const local_saved saved = local_saved_carve(p, a->saved, NULL);
        memcpy(blk->rows_rho, (const float *)saved.rho + row * d, bytes);
        memcpy(blk->rows_kbar, (const float *)saved.kbar + row * d, bytes);
        memcpy(blk->rows_y, rows->y + row * d, bytes);
        memcpy(blk->rows_u, rows->rho_u + row * d, bytes);
    } else if (blk->probed && blk->hd.raw) {
        t->probe = load_raw_tile(blk, t, &a->probe, d, blk->probe_copy, blk->probe_tokens);
    } else if (blk->probed) {
        load_rows(blk->rows_rho, &a->probe, p->dtype, blk->hd.s.b, blk->hd.h, token, t->n, d);
    }
    for (int64_t r = 0; r < t->n; r++) {
        t->at[r] = (float)(t->i + r + blk->hd.s.nk - blk->hd.s.nq);
        load_decay(&t->decay[0][r], &t->decay[1][r], &blk->hd, local_position(&blk->hd.s, t->i + r), 1);
    }
}

/* Whether every query of the tile sees every key, and scores are scaled products only. */
static inline bool queries_are_unmasked(const block *blk, const key_lanes *l, const query_tile *q)
{
    bool unmasked = !blk->sc.rbf && !blk->sc.mapped && !blk->sc.sloped && !blk->sc.biased &&
                    l->count == LANES;
    for (int64_t r = 0; r < q->n; r++)
        unmasked = unmasked && q->record[r].lo <= l->j0 && l->j0 + LANES <= q->record[r].hi;
    return unmasked;
}

/* In place, from products to factors: s becomes scale ds factor, u becomes -p E, t becomes p (1 - u), w
 * becomes -2/dim p e / unit of the trace unit, or in one pass ds factor. unmasked: queries_are_unmasked, and
 * no solved probe. */
VEC_INLINE void key_gradient_of_tile(bool unmasked, bool probed, block *blk, key_lanes *l,
                                     const query_tile *q)
{
    const bool solved = !unmasked && blk->solved, by_max = !unmasked && blk->by_max,
               by_trace = !unmasked && blk->by_trace;
    const bool once = blk->head_sums != NULL;
    const float inverse_d = 1 / (float)blk->hd.p->dim_qk;
    for (int64_t r = 0; r < q->n; r++) {
        const row_record *row = &q->record[r];
        const float lse = row->lse > -INFINITY ? row->lse : 0;
        FOR_LANES(lane)
        {
            const int64_t at = r * LANES + lane;
            const vmask j = v_load_int(l->j + lane), seen = (j >= row->lo) & (j < row->hi);
            vec x = v_load(blk->s + at) + row->x0, factor, excess = v_set(0), s;
            if (unmasked) {
                s = v_clamp(v_clamp(x, SCORE_LIMIT) * blk->sc.scale, SCORE_LIMIT);
                factor = v_set(1);
            } else {
                if (blk->sc.rbf) x -= 0.5f * v_load(l->norm + lane);
                vec bias = v_load(l->bias + lane);
                if (blk->sc.decayed) {
                    bias += decay_between(v_set(q->decay[0][r]), v_set(q->decay[1][r]),
                                          v_load(l->decay[0] + lane), v_load(l->decay[1] + lane));
                }
                s = score_of(&blk->sc, v_clamp(x, SCORE_LIMIT), v_abs(v_load(l->at + lane) - q->at[r]), bias,
                             &factor);
                s = v_select(seen, s, v_set(-INFINITY));
            }
            const vec p = weight_of(s, v_set(lse));
            if (by_trace) {
                excess = (v_load(l->norm + lane) - 2.0f * v_load(blk->w + at) + row->kbar2) * inverse_d -
                         row->trace;
            }
            const pair_terms pair = pair_of(
                by_max, by_trace, p, probed ? v_load(blk->u + at) - row->rho_kbar - row->rho_rest : v_set(0),
                v_load(blk->g + at) - row->gbar - row->gbar_rest,
                solved ? v_load(blk->t + at) - row->y_kbar - row->y_rest : v_set(0), v_set(row->e),
                j == row->peak, v_set(row->spread), excess);
            const vec ds = pair.ds * factor;
            if (!unmasked) {
                v_store(l->grad_bias + lane, v_load(l->grad_bias + lane) + pair.ds);
                v_store(l->inner + lane, v_load(l->inner + lane) + ds);
                v_store(l->spread + lane, v_load(l->spread + lane) + pair.spread);
            }
            if (by_trace) v_store(blk->w + at, -2.0f * inverse_d * pair.spread);
            if (once) v_store(blk->w + at, ds);
            if (probed) v_store(blk->u + at, -pair.error);
            v_store(blk->s + at, ds * blk->sc.scale);
            v_store(blk->t + at, pair.kept);
        }
    }
}

static inline void tile_key_gradient(block *blk, key_lanes *l, const query_tile *q)
{
    const bool unmasked = queries_are_unmasked(blk, l, q) && !blk->solved;
    if (unmasked && blk->probed)
        key_gradient_of_tile(true, true, blk, l, q);
    else if (unmasked)
        key_gradient_of_tile(true, false, blk, l, q);
    else
        key_gradient_of_tile(false, blk->probed, blk, l, q);
}

/* The products of one tile of queries with the keys and values. */
static inline void tile_products(block *blk, const query_tile *q, const float *keys, const float *values)
{
    const int64_t d = blk->hd.p->dim_qk, dv = blk->hd.p->dim_v;
    if (PAIR_DOTS)
        raw_product(blk->g, q->grad_o, q->n, blk->grad_o_pairs, dv, LANES);
    else
        panel_product(blk->g, q->n, blk->rows_do, dv, 1, values, dv, false);
    if (blk->hd.raw)
        raw_product(blk->s, q->query, q->n, blk->query_pairs, d, LANES);
    else
        panel_product(blk->s, q->n, blk->rows_q, d, 1, keys, d, false);
    if (blk->solved) {
        panel_product(blk->u, q->n, blk->rows_u, d, 1, keys, d, false);
        panel_product(blk->t, q->n, blk->rows_y, d, 1, keys, d, false);
    } else if (blk->probed && blk->hd.raw) {
        raw_product(blk->u, q->probe, q->n, blk->query_pairs, d, LANES);
    } else if (blk->probed) {
        panel_product(blk->u, q->n, blk->rows_rho, d, 1, keys, d, false);
    }
    if (blk->by_trace) panel_product(blk->w, q->n, blk->rows_kbar, d, 1, keys, d, false);
}

/* sum [channels][LANES] += weights . tokens over a tile of queries. */
static inline void add_tokens(block *blk, float *restrict sum, const uint16_t *restrict tokens,
                              int64_t channels, const float *restrict weights, int64_t n)
{
    pair_rows(blk->tile_pairs, weights, n, NULL);
    pair_token_product(sum, tokens, channels, blk->tile_pairs, n, LANES);
}

static inline void add_tile(block *blk, const query_tile *q)
{
    const int64_t d = blk->hd.p->dim_qk, dv = blk->hd.p->dim_v;
    if (blk->solved) panel_product(blk->grad, d, blk->rows_y, 1, d, blk->t, q->n, true);
    if (PAIR_DOTS)
        add_tokens(blk, blk->grad_v, blk->do_tokens, dv, blk->t, q->n);
    else
        panel_product(blk->grad_v, dv, blk->rows_do, 1, dv, blk->t, q->n, true);
    if (blk->hd.raw)
        add_tokens(blk, blk->grad, blk->query_tokens, d, blk->s, q->n);
    else
        panel_product(blk->grad, d, blk->rows_q, 1, d, blk->s, q->n, true);
    if (blk->probed && !blk->solved && blk->hd.raw)
        add_tokens(blk, blk->grad, blk->probe_tokens, d, blk->u, q->n);
    else if (blk->probed)
        panel_product(blk->grad, d, blk->rows_rho, 1, d, blk->u, q->n, true);
    if (blk->by_trace) panel_product(blk->grad, d, blk->rows_kbar, 1, d, blk->w, q->n, true);
}

/* One pass: dq += sum ds factor k' for a tile of queries. A row's sum is in the order of its keys, as that of
 * sweep_query is. */
static inline void add_to_queries(block *blk, const key_lanes *l, const query_tile *q)
{
    const int64_t d = blk->hd.p->dim_qk, first = q->lo > l->j0 ? q->lo - l->j0 : 0,
                  last = q->hi < l->j0 + l->count ? q->hi - l->j0 : l->count;
    float *const sum = blk->head_sums + (size_t)(q->i / LANES) * block_sums_size(blk->hd.p);
    transpose_tile(blk->g, LANES, blk->w, LANES, TILE_KEYS, LANES);
    if (blk->hd.raw) {
        pair_rows(blk->tile_pairs, blk->g, l->count, sum + d * LANES);
        pair_token_product(sum, blk->key_tokens, d, blk->tile_pairs, l->count, LANES);
    } else {
        panel_product(sum, d, blk->tile.keys + first * d, 1, d, blk->g + first * LANES, last - first, true);
    }
}

static inline void keys_from_tile(block *blk, key_lanes *l, query_tile *q, const row_arrays *rows,
                                  const float *keys, const float *values)
{
    load_query_tile(blk, q, rows);
    tile_products(blk, q, keys, values);
    tile_key_gradient(blk, l, q);
    add_tile(blk, q);
    if (blk->head_sums) add_to_queries(blk, l, q);
}

/* The sums of ds over queries: the gradient of a key bias, and the column sums for that of the decay. */
static inline void put_bias_gradient(const block *blk, const key_lanes *l)
{
    const loam_view *const outs[] = { &blk->hd.a->grad_key_bias, &blk->hd.a->grad_log_decay };
    for (int n = 0; n < 2; n++) {
        const loam_view *out = outs[n];
        for (int64_t lane = 0; out->data && lane < l->count; lane++) {
            ((float *)out->data)[LOCAL_AT(*out, blk->hd.s.b, blk->hd.h, blk->hd.s.k0 + l->j0 + lane)] =
                l->grad_bias[lane];
        }
    }
}

/* All queries of one head, tile by tile. The range that a query sees moves right with the query; tiles
 * outside are skipped. */
static inline void keys_from_head(block *blk, key_lanes *l, const row_arrays *rows, const float *keys,
                                  const float *values)
{
    float grad_bias[LANES] = { 0 };
    l->grad_bias = grad_bias;
    panel_fill(l->bias, 1, 0);
    load_bias(l->bias, &blk->hd, l->j0, l->count);
    panel_fill(l->decay[0], 2, 0);
    load_decay(l->decay[0], l->decay[1], &blk->hd, l->j0, l->count);
    for (int64_t i = 0; i < blk->hd.s.nq; i += TILE_KEYS) {
        query_tile q = { .i = i, .n = blk->hd.s.nq - i < TILE_KEYS ? blk->hd.s.nq - i : TILE_KEYS };
        int64_t unused;
        local_visible(blk->hd.p, &blk->hd.s, i, &q.lo, &unused);
        local_visible(blk->hd.p, &blk->hd.s, i + q.n - 1, &unused, &q.hi);
        if (q.lo < l->j0 + l->count && q.hi > l->j0) keys_from_tile(blk, l, &q, rows, keys, values);
    }
    put_bias_gradient(blk, l);
}

/* Terms of dk in k' itself: RBF: -scale (sum ds factor) k'; trace unit: + 2/dim (sum p e / unit) k'. */
static inline void finish_key_gradient(block *blk, const key_lanes *l, const float *keys)
{
    const loam_problem *p = blk->hd.p;
    const float twice = 2 / (float)p->dim_qk;
    for (int64_t c = 0; (blk->sc.rbf || blk->by_trace) && c < p->dim_qk; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            vec times = blk->by_trace ? twice * v_load(l->spread + lane) : v_set(0);
            if (blk->sc.rbf) times -= blk->sc.scale * v_load(l->inner + lane);
            v_store(blk->grad + at, v_load(blk->grad + at) + times * v_load(keys + at));
        }
    }
}

static inline void backward_keys(block *blk, const row_arrays *rows, int64_t h_kv, int64_t j0, int64_t stored)
{
    const loam_problem *p = blk->hd.p;
    const loam_args *a = blk->hd.a;
    const local_seq s = blk->hd.s;
    const int64_t group = p->heads_q / p->heads_kv, token = s.k0 + j0;
    key_lanes l = { .j0 = j0, .count = s.nk - j0 < LANES ? s.nk - j0 : LANES };
    float *keys = blk->query, *values = blk->grad_o;
    panel_fill(blk->grad, p->dim_qk, 0);
    panel_fill(blk->grad_v, p->dim_v, 0);
    for (int64_t h = h_kv * group; l.count > 0 && h < (h_kv + 1) * group; h++) {
        block_begin(blk, p, a, &s, h);
        if (blk->head_sums) blk->head_sums = blk->group_sums + (size_t)(h % group) * head_sums_size(p);
        if (h == h_kv * group) load_key_lanes(blk, &l, keys, values);
        keys_from_head(blk, &l, rows, keys, values);
    }
    if (l.count > 0) finish_key_gradient(blk, &l, keys);
    for (int64_t lane = 0; lane < LANES && j0 + lane < stored; lane++) {
        if (a->grad_k.data)
            store_lane(&a->grad_k, p->dtype, s.b, h_kv, token + lane, blk->grad, lane, p->dim_qk);
        if (a->grad_v.data)
            store_lane(&a->grad_v, p->dtype, s.b, h_kv, token + lane, blk->grad_v, lane, p->dim_v);
    }
}

#endif
