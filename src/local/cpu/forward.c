/* SPDX-License-Identifier: MIT
 *
 * Forward on CPUs, LANES queries of one head at a time, compiled once for each instruction set.
 *
 * Given probe rho (0 or args.probe): one sweep over the keys with online softmax; m is a running maximum, or
 * not far below it.
 * t = rho . k' is held relative to a running centre c near its mean, so that large probes with peaked weights
 * do not cancel:
 *     omega = sum w,  T = sum w (t - c),  A = sum w v,  B = sum w (t - c) v,   w = exp(s - m)
 *     o = (A (1 + T / omega) - B) / omega
 * A new maximum rescales all sums by exp(m_old - m_new); c + z changes T to T - z omega and B to B - z A.
 *
 * Few queries of softmax: local/cpu/decode.c.
 *
 * Solved probe: scores, kept for the block; weights and means; the solver; o = vbar - sum p u v. Rows that
 * the block solver does not accept are computed again in float64 (local/cpu/row_double.h).
 */
#include "src/local/cpu/ladder.h"
#include "src/local/cpu/row_double.h"

#include <omp.h>

typedef struct block {
    head hd;
    scoring sc;
    lanes l;
    key_tile tile;
    float m[LANES], omega[LANES], inverse[LANES];
    float taken[LANES],
        per_taken[LANES]; /* omega and inverse of the weights as rounded for the product with values */
    float lse[LANES], full_lse[LANES]; /* without and with the dropped constant of the scores */
    float centre[LANES], tsum[LANES];  /* c and T of a given probe; tsum ends as T / omega */
    float tsum_taken[LANES];           /* T of w (t - c) as rounded for the product with values */
    float *values;                     /* [TILE_KEYS][dim_v] */
    float_rows value_rows;             /* the values as float, converted or in place */
    uint16_t *value_pairs;             /* the values as pairs of tokens, or their tile of head_tiles */
    uint16_t *head_tiles;              /* the tiles of the head; NULL where they are not turned ahead */
    int64_t tile_step;
    int32_t *weight_pairs; /* a tile of weights as pairs of keys */
    int32_t *query_pairs, *probe_pairs;
    float *s, *t;         /* [TILE_KEYS][LANES] */
    float *query, *probe; /* [dim_qk][LANES] */
    float *o, *vbar;      /* [dim_v][LANES] */
    float *kbar, *lambda; /* [dim_qk][LANES], LLA */
    float *weights;       /* [len_kv][LANES], LLA */
    solver solver;        /* LLA */
    row_double row;       /* LLA */
    loam_row_info info[LANES];
    block_result result;
} block;

static void block_carve(block *blk, const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, wide = d > dv ? d : dv, f = sizeof(float);
    const bool solved = p->mechanism == LOAM_LLA;
    blk->tile.keys = arena_take(pool, TILE_KEYS * wide, f); /* also holds a tile of queries or probes */
    blk->tile.copy = arena_take(pool, raw_copy_size(p->dim_qk), sizeof(uint16_t));
    blk->values = arena_take(pool, PAIR_DOTS ? 0 : TILE_KEYS * dv, f);
    blk->value_pairs = arena_take(pool, token_tiles_ahead(p) ? 0 : token_pairs_size(p->dim_v),
                                  sizeof(uint16_t));
    blk->weight_pairs = arena_take(pool, pair_panel_size(TILE_KEYS), sizeof(int32_t));
    blk->query_pairs = arena_take(pool, pair_panel_size(p->dim_qk), sizeof(int32_t));
    blk->probe_pairs = arena_take(pool, pair_panel_size(p->dim_qk), sizeof(int32_t));
    blk->s = arena_take(pool, TILE_KEYS * LANES, f);
    blk->t = arena_take(pool, TILE_KEYS * LANES, f);
    blk->query = arena_take(pool, d * LANES, f);
    blk->probe = arena_take(pool, d * LANES, f);
    blk->o = arena_take(pool, dv * LANES, f);
    blk->vbar = arena_take(pool, dv * LANES, f);
    blk->kbar = arena_take(pool, solved ? d * LANES : 0, f);
    blk->lambda = arena_take(pool, solved ? d * LANES : 0, f);
    blk->weights = arena_take(pool, solved ? size_mul((size_t)p->len_kv, LANES) : 0, f);
    if (solved) {
        blk->solver = solver_carve(p, pool);
        blk->row = row_double_carve(p, pool);
    }
}

static size_t block_bytes(const loam_problem *p)
{
    block blk;
    arena pool = { 0 };
    block_carve(&blk, p, &pool);
    return pool.used;
}

/* ------------------------------------------------------------------ sums of values */

static void load_value_tile(block *blk)
{
    const head *hd = &blk->hd;
    if (blk->head_tiles) {
        blk->value_pairs = blk->head_tiles + blk->tile.j / TILE_KEYS * blk->tile_step;
    } else if (PAIR_DOTS) {
        load_token_pairs(blk->value_pairs, &hd->a->v, hd->s.b, hd->h_kv, hd->s.k0 + blk->tile.j, blk->tile.n,
                         hd->p->dim_v);
    } else {
        blk->value_rows = value_rows(blk->values, hd, blk->tile.j, blk->tile.n);
    }
}

/* sum [dim_v][LANES] += weights . values over the tile; with pairs, taken += the weights as
 * rounded for it. */
static void add_values(block *blk, float *restrict sum, const float *restrict weights, float *restrict taken)
{
    const int64_t dv = blk->hd.p->dim_v;
    if (PAIR_DOTS) {
        pair_rows(blk->weight_pairs, weights, blk->tile.n, taken);
        pair_token_product(sum, blk->value_pairs, dv, blk->weight_pairs, blk->tile.n, blk->l.width);
    } else {
        lanes_product(sum, dv, blk->value_rows.at, 1, blk->value_rows.stride, weights, blk->tile.n,
                      blk->l.width, true);
    }
}

/* ------------------------------------------------------------------ a given probe */

static bool all_ones(const float *x)
{
    for (int lane = 0; lane < LANES; lane++)
        if (x[lane] != 1) return false;
    return true;
}

/* A maximum in use stays until it is surpassed by this: weights are then at most e^8, and sums seldom need to
 * be rescaled. */
#define RESCALE_AT 8.0f

/* Rescales all sums from the maximum m to the one in best, where that is far above. */
static void rescale(block *blk, const float *best)
{
    float keep[LANES];
    FOR_LANES(lane)
    {
        const vec before = v_load(blk->m + lane), top = v_load(best + lane);
        const vec m = v_select(top > before + RESCALE_AT, top, before);
        const vec ratio = v_exp(before - finite_or_zero(m));
        v_store(keep + lane, v_select(before > -INFINITY, ratio, v_set(1))); /* there is no sum yet */
        v_store(blk->m + lane, m);
        v_store(blk->omega + lane, v_load(blk->omega + lane) * ratio);
        v_store(blk->taken + lane, v_load(blk->taken + lane) * ratio);
        v_store(blk->tsum + lane, v_load(blk->tsum + lane) * ratio);
        v_store(blk->tsum_taken + lane, v_load(blk->tsum_taken + lane) * ratio);
    }
    if (all_ones(keep)) /* true for most tiles */
        return;
    panel_scale(blk->o, blk->hd.p->dim_v, keep);
    if (blk->hd.p->mechanism == LOAM_PARALLAX) panel_scale(blk->vbar, blk->hd.p->dim_v, keep);
}

/* The scores in s become w; adds them to omega. */
static void weigh_tile(block *blk)
{
    FOR_LANES_OF(lane, blk->l.width)
    {
        const vec m = finite_or_zero(v_load(blk->m + lane));
        vec omega = v_load(blk->omega + lane);
        for (int64_t r = 0; r < blk->tile.n; r++) {
            float *at = blk->s + r * LANES + lane;
            const vec w = v_exp(v_load(at) - m);
            omega += w;
            v_store(at, w);
        }
        v_store(blk->omega + lane, omega);
    }
}

/* The same where nothing but products with values needs the weights: they become pairs of keys at once, and
 * as rounded add to taken. */
static void weigh_tile_pairs(block *blk)
{
    const float per_e = 1.44269504f;
    FOR_LANES_OF(lane, blk->l.width)
    {
        const vec m = finite_or_zero(v_load(blk->m + lane)) * per_e;
        vec omega = v_load(blk->omega + lane), taken = v_load(blk->taken + lane);
        for (int64_t r = 0; r < blk->tile.n; r += 2) {
            const float *at = blk->s + r * LANES + lane;
            const vec first = v_exp2(v_load(at) * per_e - m);
            const vec second = r + 1 < blk->tile.n ? v_exp2(v_load(at + LANES) * per_e - m) : v_set(0);
            const vmask pair = pair_join(first, second);
            omega += first + second;
            taken += (vec)(pair << 16) + (vec)(pair & -0x10000);
            pair_store(blk->weight_pairs + r / 2 * LANES + lane, pair);
        }
        v_store(blk->omega + lane, omega);
        v_store(blk->taken + lane, taken);
    }
    pair_fill(blk->weight_pairs, blk->tile.n);
}

/* Shifts the centre to the mean of t over this tile and all before it; t becomes w (t - c). before: omega
 * without this tile. */
static void centre_probe(block *blk, const float *before)
{
    float minus[LANES];
    FOR_LANES_OF(lane, blk->l.width)
    {
        const vec c = v_load(blk->centre + lane), omega = v_load(blk->omega + lane);
        vec sum = v_set(0), tsum = v_load(blk->tsum + lane);
        for (int64_t r = 0; r < blk->tile.n; r++)
            sum += v_load(blk->s + r * LANES + lane) * (v_load(blk->t + r * LANES + lane) - c);
        const vec shift = v_select(omega > 0, (tsum + sum) / omega, v_set(0));
        tsum -= shift * v_load(before + lane);
        for (int64_t r = 0; r < blk->tile.n; r++) {
            float *at = blk->t + r * LANES + lane;
            const vec wt = v_load(blk->s + r * LANES + lane) * (v_load(at) - (c + shift));
            tsum += wt;
            v_store(at, wt);
        }
        v_store(minus + lane, -shift);
        v_store(blk->centre + lane, c + shift);
        v_store(blk->tsum + lane, tsum);
        v_store(blk->tsum_taken + lane, v_load(blk->tsum_taken + lane) - shift * v_load(blk->taken + lane));
    }
    panel_axpy(blk->vbar, blk->hd.p->dim_v, minus, blk->o);
}

static void load_probe(block *blk)
{
    const loam_problem *p = blk->hd.p;
    load_rows(blk->tile.keys, &blk->hd.a->probe, p->dtype, blk->hd.s.b, blk->hd.h, blk->hd.s.q0 + blk->l.i0,
              blk->l.count, p->dim_qk);
    transpose(blk->probe, blk->tile.keys, blk->l.count, p->dim_qk);
    if (blk->hd.raw) pair_rows(blk->probe_pairs, blk->probe, p->dim_qk, NULL);
}

/* vbar holds the sum B until finish_given. */
static void sweep_given(block *blk, bool probed)
{
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        float best[LANES], before[LANES];
        score_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        load_value_tile(blk);
        key_products(blk->s, &blk->hd, &blk->tile, blk->query, blk->query_pairs, blk->l.width);
        memcpy(best, blk->m, sizeof best);
        scores_in_place(blk->s, &blk->sc, &blk->l, &blk->tile, best);
        rescale(blk, best);
        if (TILE_DOTS && !probed) {
            weigh_tile_pairs(blk);
            pair_token_product(blk->o, blk->value_pairs, blk->hd.p->dim_v, blk->weight_pairs, blk->tile.n,
                               blk->l.width);
            continue;
        }
        memcpy(before, blk->omega, sizeof before);
        weigh_tile(blk);
        if (probed) {
            key_products(blk->t, &blk->hd, &blk->tile, blk->probe, blk->probe_pairs, blk->l.width);
            centre_probe(blk, before);
            add_values(blk, blk->vbar, blk->t, blk->tsum_taken);
        }
        add_values(blk, blk->o, blk->s, blk->taken);
        if (!PAIR_DOTS) {
            memcpy(blk->taken, blk->omega, sizeof blk->taken);
            memcpy(blk->tsum_taken, blk->tsum, sizeof blk->tsum_taken);
        }
    }
}

static void finish_given(block *blk, bool probed)
{
    FOR_LANES(lane)
    {
        const vec inverse = v_load(blk->per_taken + lane), rest = v_load(blk->tsum_taken + lane) * inverse;
        v_store(blk->tsum + lane, v_load(blk->tsum + lane) * v_load(blk->inverse + lane));
        for (int64_t c = 0; c < blk->hd.p->dim_v; c++) {
            const int64_t at = c * LANES + lane;
            const vec mean = v_load(blk->o + at) * inverse;
            v_store(blk->o + at, probed ? mean * (1.0f + rest) - v_load(blk->vbar + at) * inverse : mean);
            v_store(blk->vbar + at, mean);
        }
    }
}

/* lse and 1 / omega (0 for a row that sees no key). */
static void finish_weights(block *blk)
{
    for (int lane = 0; lane < LANES; lane++) {
        const bool some = blk->omega[lane] > 0;
        blk->inverse[lane] = some ? 1 / blk->omega[lane] : 0;
        blk->per_taken[lane] = some ? 1 / blk->taken[lane] : 0;
        blk->lse[lane] = some ? blk->m[lane] + logf(blk->omega[lane]) : -INFINITY;
        blk->full_lse[lane] = blk->lse[lane] + blk->l.dropped[lane];
    }
}

/* Adds the mass of the sink. After the sweep, because the sink competes with the full
 * scores, including dropped. */
static void add_sink(block *blk)
{
    const float sink = ((const float *)blk->hd.a->sink)[blk->hd.h];
    for (int lane = 0; lane < LANES; lane++) {
        const float keys = blk->full_lse[lane], m = fmaxf(keys, sink);
        const float total = m + logf(expf(keys - m) + expf(sink - m));
        blk->per_taken[lane] *= expf(keys - total);
        blk->full_lse[lane] = total;
        blk->lse[lane] = total - blk->l.dropped[lane];
    }
}

static void forward_given(block *blk)
{
    const loam_problem *p = blk->hd.p;
    const bool probed = p->mechanism == LOAM_PARALLAX;
    panel_fill(blk->probe, p->dim_qk, 0);
    panel_fill(blk->vbar, p->dim_v, 0);
    panel_fill(blk->centre, 1, 0);
    panel_fill(blk->tsum, 1, 0);
    panel_fill(blk->tsum_taken, 1, 0);
    if (probed) load_probe(blk);
    sweep_given(blk, probed);
    finish_weights(blk);
    if (probed && blk->hd.raw) {
        float common[LANES];
        common_products(common, &blk->hd, blk->probe);
        for (int lane = 0; lane < LANES; lane++)
            blk->centre[lane] -= common[lane];
    }
    if (p->sink) add_sink(blk);
    finish_given(blk, probed);
}

/* ------------------------------------------------------------------ the solved probe */

static void sweep_scores(block *blk)
{
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        float *s = blk->weights + (j - blk->l.first) * LANES;
        score_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        key_products(s, &blk->hd, &blk->tile, blk->query, blk->query_pairs, LANES);
        scores_in_place(s, &blk->sc, &blk->l, &blk->tile, blk->m);
    }
}

/* Scores become weights; square += sum w |k'|^2. */
static void sweep_means(block *blk, float *restrict square)
{
    const int64_t d = blk->hd.p->dim_qk;
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        float *w = blk->weights + (j - blk->l.first) * LANES;
        key_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        load_value_tile(blk);
        FOR_LANES(lane)
        {
            const vec m = finite_or_zero(v_load(blk->m + lane));
            vec omega = v_load(blk->omega + lane), sum = v_load(square + lane);
            for (int64_t r = 0; r < blk->tile.n; r++) {
                const vec x = v_exp(v_load(w + r * LANES + lane) - m);
                omega += x;
                sum += x * blk->tile.norm[r];
                v_store(w + r * LANES + lane, x);
            }
            v_store(blk->omega + lane, omega);
            v_store(square + lane, sum);
        }
        panel_product(blk->kbar, d, blk->tile.keys, 1, d, w, blk->tile.n, true);
        add_values(blk, blk->vbar, w, blk->taken);
    }
    if (!PAIR_DOTS) memcpy(blk->taken, blk->omega, sizeof blk->taken);
}

static block_system system_of(block *blk)
{
    return block_system_of(&blk->hd, &blk->l, &blk->tile, blk->s, blk->weights, blk->inverse, blk->kbar,
                           blk->lambda);
}

/* o <- vbar - sum p u v, u = rho . kappa. */
static void sweep_lines(block *blk)
{
    const int64_t d = blk->hd.p->dim_qk, dv = blk->hd.p->dim_v;
    const block_system sys = system_of(blk);
    float rho_kbar[LANES], exact[LANES] = { 0 }, taken[LANES] = { 0 };
    const float *total = PAIR_DOTS ? taken : exact;
    const gram_lines_of lines = gram_lines_begin(&sys, &blk->solver.gram, &blk->result);
    bool some_in_float = false;
    panel_dot(rho_kbar, blk->probe, blk->kbar, d);
    for (int lane = 0; lane < LANES; lane++) {
        rho_kbar[lane] = blk->result.refined[lane] ? 0 : rho_kbar[lane];
        some_in_float |= blk->result.accepted[lane] && !blk->result.refined[lane];
    }
    panel_fill(blk->o, dv, 0);
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        key_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        load_value_tile(blk);
        if (some_in_float)
            panel_product(blk->s, blk->tile.n, blk->tile.keys, d, 1, blk->probe, d, false);
        else
            panel_fill(blk->s, blk->tile.n, 0);
        gram_lines(&sys, &blk->solver.gram, &lines, blk->s);
        centred_weights(blk->s, blk->weights + (j - blk->l.first) * LANES, blk->tile.n, LANES, rho_kbar,
                        exact);
        add_values(blk, blk->o, blk->s, taken);
    }
    for (int64_t c = 0; c < dv; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec mean = v_load(blk->vbar + at);
            v_store(blk->o + at,
                    mean - (v_load(blk->o + at) - v_load(total + lane) * mean) * v_load(blk->inverse + lane));
        }
    }
}

static void solve_block(block *blk, const float *square)
{
    const int64_t d = blk->hd.p->dim_qk;
    const block_system sys = system_of(blk);
    block_ridge ridge;
    float *rhs = blk->query; /* the scores are complete, so the query panel is free */
    for (int64_t c = 0; c < d; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec shift = v_set(blk->sc.rbf ? 0 : blk->hd.origin[c]);
            v_store(rhs + at, v_load(blk->kbar + at) + shift - v_load(blk->query + at));
        }
    }
    block_ridge_set(&ridge, &sys, square, blk->inverse); /* the largest weight is exp(0) / omega */
    block_solve(&sys, &blk->solver, &ridge, rhs, blk->probe, &blk->result);
    for (int lane = 0; lane < LANES; lane++) {
        blk->info[lane] = (loam_row_info){ LOAM_ROW_SOLVED,
                                           blk->result.factored[lane] ? LOAM_SOLVER_GRAM : LOAM_SOLVER_CG,
                                           blk->result.iterations[lane], blk->result.residual[lane] };
    }
}

static void forward_solved(block *blk)
{
    const loam_problem *p = blk->hd.p;
    float square[LANES] = { 0 };
    panel_fill(blk->kbar, p->dim_qk, 0);
    panel_fill(blk->vbar, p->dim_v, 0);
    sweep_scores(blk);
    sweep_means(blk, square);
    finish_weights(blk);
    panel_scale(blk->kbar, p->dim_qk, blk->inverse);
    panel_scale(blk->vbar, p->dim_v, blk->per_taken);
    solve_block(blk, square);
    sweep_lines(blk);
}

/* False where keys are so large that float32 overflowed in the block; float64 has the range. */
static bool lane_is_finite(const block *blk, int64_t lane)
{
    float sum = 0;
    for (int64_t c = 0; c < blk->hd.p->dim_v; c++)
        sum += blk->o[c * LANES + lane] * 0;
    return sum == 0;
}

/* Computes a row in float64 and stores it in its lane. */
static void redo_lane(block *blk, int64_t lane)
{
    row_double *r = &blk->row;
    const int32_t iterations = blk->info[lane].iterations;
    row_double_forward(r, &blk->hd, &blk->sc, blk->l.i0 + lane);
    blk->info[lane] = r->info;
    blk->info[lane].iterations = iterations;
    blk->lse[lane] = (float)(r->lse - r->dropped);
    blk->full_lse[lane] = (float)r->lse;
    for (int64_t c = 0; c < blk->hd.p->dim_qk; c++) {
        blk->kbar[c * LANES + lane] = (float)r->kbar[c];
        blk->probe[c * LANES + lane] = (float)r->rho[c];
    }
    for (int64_t c = 0; c < blk->hd.p->dim_v; c++) {
        blk->vbar[c * LANES + lane] = (float)r->vbar[c];
        blk->o[c * LANES + lane] = (float)r->o[c];
    }
}

/* ------------------------------------------------------------------ results */

static void put_saved(const block *blk, int64_t lane)
{
    const loam_problem *p = blk->hd.p;
    const local_saved saved = local_saved_carve(p, blk->hd.a->saved, NULL);
    const int64_t at = local_row(p, &blk->hd.s, blk->hd.h, blk->l.i0 + lane);
    ((float *)saved.lse)[at] = blk->lse[lane];
    for (int64_t c = 0; c < p->dim_v; c++)
        ((float *)saved.vbar)[at * p->dim_v + c] = blk->vbar[c * LANES + lane];
    if (p->mechanism == LOAM_PARALLAX) {
        ((float *)saved.tbar)[2 * at] = blk->centre[lane];
        ((float *)saved.tbar)[2 * at + 1] = blk->tsum[lane];
        for (int64_t c = 0; c < p->dim_v; c++)
            ((float *)saved.value_shift)[at * p->dim_v + c] = blk->vbar[c * LANES + lane] -
                                                              blk->o[c * LANES + lane];
    }
    for (int64_t c = 0; p->mechanism == LOAM_LLA && c < p->dim_qk; c++) {
        ((float *)saved.kbar)[at * p->dim_qk + c] = blk->kbar[c * LANES + lane];
        ((float *)saved.rho)[at * p->dim_qk + c] = blk->probe[c * LANES + lane];
    }
}

static void put_lane(block *blk, int64_t lane)
{
    const loam_problem *p = blk->hd.p;
    const loam_args *a = blk->hd.a;
    const int64_t b = blk->hd.s.b, h = blk->hd.h, token = blk->hd.s.q0 + blk->l.i0 + lane;
    store_lane(&a->o, p->dtype, b, h, token, blk->o, lane, p->dim_v);
    if (a->lse.data) ((float *)a->lse.data)[LOCAL_AT(a->lse, b, h, token)] = blk->full_lse[lane];
    if (a->rho.data) store_lane(&a->rho, LOAM_F32, b, h, token, blk->probe, lane, p->dim_qk);
    if (a->saved) put_saved(blk, lane);
    local_put_info(a, &blk->hd.s, h, blk->l.i0 + lane, blk->info[lane]);
}

static float *weights_row(const block *blk, int64_t lane)
{
    const loam_view *view = &blk->hd.a->weights;
    return (float *)view->data + LOCAL_AT(*view, blk->hd.s.b, blk->hd.h, blk->hd.s.q0 + blk->l.i0 + lane);
}

/* rest <- the weighted mean of rho . k' minus rho . kbar: a rounding error that matters where
 * rho is large. */
static void sweep_rest(block *blk, const float *centre, float *restrict rest)
{
    const int64_t d = blk->hd.p->dim_qk;
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        key_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        panel_product(blk->t, blk->tile.n, blk->tile.keys, d, 1, blk->probe, d, false);
        centre_products(blk->weights + (j - blk->l.first) * LANES, blk->t, centre, rest, blk->tile.n);
    }
    panel_scale(rest, 1, blk->inverse);
}

/* Writes the effective weights p (1 - u) of the block in a separate sweep; meant for small inputs. */
static void put_weights(block *blk)
{
    const loam_problem *p = blk->hd.p;
    const int64_t d = p->dim_qk;
    float centre[LANES], rest[LANES] = { 0 };
    if (p->mechanism == LOAM_LLA) {
        panel_dot(centre, blk->probe, blk->kbar, d);
        sweep_rest(blk, centre, rest);
        load_queries(blk->tile.keys, &blk->hd, blk->l.i0, blk->l.count);
        transpose(blk->query, blk->tile.keys, blk->l.count, d);
    } else {
        memcpy(centre, blk->centre, sizeof centre);
        memcpy(rest, blk->tsum, sizeof rest);
    }
    for (int64_t lane = 0; lane < blk->l.count; lane++)
        memset(weights_row(blk, lane), 0, (size_t)p->len_kv * sizeof(float));
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        float best[LANES] = { 0 };
        key_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        key_products(blk->s, &blk->hd, &blk->tile, blk->query, blk->query_pairs, blk->l.width);
        panel_product(blk->t, blk->tile.n, blk->tile.keys, d, 1, blk->probe, d, false);
        scores_in_place(blk->s, &blk->sc, &blk->l, &blk->tile, best);
        for (int64_t r = 0; r < blk->tile.n; r++) {
            FOR_LANES(lane)
            {
                float *s = blk->s + r * LANES + lane;
                const vec u = v_load(blk->t + r * LANES + lane) - v_load(centre + lane) - v_load(rest + lane);
                v_store(s, weight_of(v_load(s), finite_or_zero(v_load(blk->lse + lane))) * (1.0f - u));
            }
            for (int64_t lane = 0; lane < blk->l.count; lane++)
                if (blk->l.lo[lane] <= j + r && j + r < blk->l.hi[lane])
                    weights_row(blk, lane)[j + r] = blk->s[r * LANES + lane];
        }
    }
}

static void put_weights_row_double(const block *blk, int64_t lane)
{
    const row_double *r = &blk->row;
    for (int64_t j = r->lo; j < r->hi; j++)
        weights_row(blk, lane)[j] = (float)(r->p[j - r->lo] * (1 - r->u[j - r->lo]));
}

static void forward_block(block *blk, int64_t i0)
{
    const loam_problem *p = blk->hd.p;
    const bool solved = p->mechanism == LOAM_LLA;
    lanes_begin(&blk->l, &blk->hd, i0, blk->query, blk->tile.keys);
    if (!solved) blk->l.width = whole_vectors(blk->l.count);
    panel_fill(blk->o, p->dim_v, 0);
    panel_fill(blk->m, 1, -INFINITY);
    panel_fill(blk->omega, 1, 0);
    panel_fill(blk->taken, 1, 0);
    if (blk->hd.raw) pair_rows(blk->query_pairs, blk->query, p->dim_qk, NULL);
    if (solved)
        forward_solved(blk);
    else
        forward_given(blk);
    if (blk->hd.a->weights.data) put_weights(blk);
    for (int64_t lane = 0; lane < blk->l.count; lane++) {
        const bool empty = blk->l.lo[lane] >= blk->l.hi[lane];
        for (int64_t c = 0; empty && c < p->dim_qk; c++)
            blk->probe[c * LANES + lane] = 0;
        if (empty || !solved) {
            blk->info[lane] = (loam_row_info){ empty ? LOAM_ROW_EMPTY : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0,
                                               0 };
        } else if (!blk->result.accepted[lane] || !lane_is_finite(blk, lane)) {
            redo_lane(blk, lane);
            if (blk->hd.a->weights.data) put_weights_row_double(blk, lane);
        }
        put_lane(blk, lane);
    }
}

/* The kernel of decode whose channels are lanes as wide as these. */
#if defined __AVX512BF16__
#define DECODE_ISA(name) name##_avx512
#else
#define DECODE_ISA(name) ISA(name)
#endif

/* Where lanes would be queries there are too few of them: decode reads keys and values once for four. Lengths
 * alone decide. Decode leaves nothing for backward and no weights. */
static bool few_queries(const loam_problem *p)
{
    return p->mechanism == LOAM_SOFTMAX && !sequence_packed(p) && p->len_q <= (PAIR_DOTS ? 4 : 16) &&
           p->len_kv >= 4 * TILE_KEYS;
}

size_t LOCAL_JOIN(ISA(local_forward), work)(const loam_problem *p)
{
    arena pool = { 0 };
    token_tiles_carve(p, &pool);
    const size_t bytes = size_add(pool.used, size_mul(block_bytes(p), (size_t)p->threads)),
                 few = few_queries(p) ? LOCAL_JOIN(DECODE_ISA(local_decode), work)(p) : 0;
    return few > bytes ? few : bytes;
}

loam_status ISA(local_forward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (few_queries(p) && !a->saved && !a->weights.data) return DECODE_ISA(local_decode)(p, a, error);
    const block_queue queue = block_queue_of(p, p->len_q, p->heads_q);
    const size_t each = block_bytes(p);
    arena shared = { a->work, 0 };
    const token_tiles values = token_tiles_carve(p, &shared);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + shared.used + each * (size_t)omp_get_thread_num(), 0 };
        block blk;
        block_carve(&blk, p, &pool);
        blk.head_tiles = NULL, blk.tile_step = values.step;
        tiles_begin();
        if (token_tiles_ahead(p)) token_tiles_fill(&values, p, a);
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < block_queue_length(&queue); n++) {
            const block_place at = block_queue_at(&queue, n);
            const local_seq s = local_seq_at(p, a, at.b);
            const int64_t i0 = (queue.blocks - 1 - at.block) * LANES; /* late ones see the most keys */
            if (i0 < s.nq) {
                head_begin(&blk.hd, p, a, &s, at.h);
                blk.sc = scoring_of(&blk.hd);
                if (token_tiles_ahead(p)) blk.head_tiles = token_tiles_of(&values, p, &s, at.b, blk.hd.h_kv);
                forward_block(&blk, i0);
            }
        }
        tiles_end();
    }
    return loam_succeed(error);
}
