/* SPDX-License-Identifier: MIT
 *
 * Forward on CPUs, LANES queries of one head at a time, compiled once for each instruction set.
 *
 * Given probe rho (0 or args.probe): one sweep over the keys with online softmax; m is the running maximum.
 * t = rho . k' is held relative to a running centre c near its mean, so that large probes with peaked weights
 * do not cancel:
 *     omega = sum w,  T = sum w (t - c),  A = sum w v,  B = sum w (t - c) v,   w = exp(s - m)
 *     o = (A (1 + T / omega) - B) / omega
 * A new maximum rescales all sums by exp(m_old - m_new); c + z changes T to T - z omega and B to B - z A.
 *
 * Solved probe: scores, kept for the block; weights and means; the solver; o = vbar - sum p u v. Rows that
 * the block solver does not accept are computed again in float64 (local/cpu/row_double.h).
 */
#include "src/local/cpu/ladder.h"
#include "src/local/cpu/row_double.h"

#include <omp.h>

typedef struct block {
    head x;
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
    uint16_t *value_pairs;             /* the values as pairs of tokens */
    int32_t *weight_pairs;             /* a tile of weights as pairs of keys */
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

static void block_carve(block *k, const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, wide = d > dv ? d : dv, f = sizeof(float);
    const bool solved = p->mechanism == LOAM_LLA;
    k->tile.keys = arena_take(pool, TILE_KEYS * wide, f); /* also holds a tile of queries or probes */
    k->tile.copy = arena_take(pool, raw_copy_size(p->dim_qk), sizeof(uint16_t));
    k->values = arena_take(pool, PAIR_DOTS ? 0 : TILE_KEYS * dv, f);
    k->value_pairs = arena_take(pool, token_pairs_size(p->dim_v), sizeof(uint16_t));
    k->weight_pairs = arena_take(pool, pair_panel_size(TILE_KEYS), sizeof(int32_t));
    k->query_pairs = arena_take(pool, pair_panel_size(p->dim_qk), sizeof(int32_t));
    k->probe_pairs = arena_take(pool, pair_panel_size(p->dim_qk), sizeof(int32_t));
    k->s = arena_take(pool, TILE_KEYS * LANES, f);
    k->t = arena_take(pool, TILE_KEYS * LANES, f);
    k->query = arena_take(pool, d * LANES, f);
    k->probe = arena_take(pool, d * LANES, f);
    k->o = arena_take(pool, dv * LANES, f);
    k->vbar = arena_take(pool, dv * LANES, f);
    k->kbar = arena_take(pool, solved ? d * LANES : 0, f);
    k->lambda = arena_take(pool, solved ? d * LANES : 0, f);
    k->weights = arena_take(pool, solved ? size_mul((size_t)p->len_kv, LANES) : 0, f);
    if (solved) {
        k->solver = solver_carve(p, pool);
        k->row = row_double_carve(p, pool);
    }
}

static size_t block_bytes(const loam_problem *p)
{
    block k;
    arena pool = { 0 };
    block_carve(&k, p, &pool);
    return pool.used;
}

/* ------------------------------------------------------------------ sums of values */

static void load_value_tile(block *k)
{
    const head *x = &k->x;
    if (PAIR_DOTS) {
        load_token_pairs(k->value_pairs, &x->a->v, x->s.b, x->h_kv, x->s.k0 + k->tile.j, k->tile.n,
                         x->p->dim_v);
    } else {
        k->value_rows = value_rows(k->values, x, k->tile.j, k->tile.n);
    }
}

/* sum [dim_v][LANES] += weights . values over the tile; with pairs, taken += the weights as
 * rounded for it. */
static void add_values(block *k, float *restrict sum, const float *restrict weights, float *restrict taken)
{
    const int64_t dv = k->x.p->dim_v;
    if (PAIR_DOTS) {
        pair_rows(k->weight_pairs, weights, k->tile.n, taken);
        token_product(sum, k->value_pairs, dv, k->weight_pairs, k->tile.n);
    } else {
        panel_product(sum, dv, k->value_rows.at, 1, k->value_rows.stride, weights, k->tile.n, true);
    }
}

/* ------------------------------------------------------------------ a given probe */

static bool all_ones(const float *x)
{
    for (int lane = 0; lane < LANES; lane++)
        if (x[lane] != 1) return false;
    return true;
}

/* Rescales all sums from the maximum m to the one in best. */
static void rescale(block *k, const float *best)
{
    float keep[LANES];
    FOR_LANES(lane)
    {
        const vec m = v_load(best + lane);
        const vec ratio = v_exp(v_load(k->m + lane) - finite_or_zero(m));
        v_store(keep + lane, ratio);
        v_store(k->m + lane, m);
        v_store(k->omega + lane, v_load(k->omega + lane) * ratio);
        v_store(k->taken + lane, v_load(k->taken + lane) * ratio);
        v_store(k->tsum + lane, v_load(k->tsum + lane) * ratio);
        v_store(k->tsum_taken + lane, v_load(k->tsum_taken + lane) * ratio);
    }
    if (all_ones(keep)) /* true for most tiles */
        return;
    panel_scale(k->o, k->x.p->dim_v, keep);
    if (k->x.p->mechanism == LOAM_PARALLAX) panel_scale(k->vbar, k->x.p->dim_v, keep);
}

/* The scores in s become w; adds them to omega. */
static void weigh_tile(block *k)
{
    FOR_LANES(lane)
    {
        const vec m = finite_or_zero(v_load(k->m + lane));
        vec omega = v_load(k->omega + lane);
        for (int64_t r = 0; r < k->tile.n; r++) {
            float *at = k->s + r * LANES + lane;
            const vec w = v_exp(v_load(at) - m);
            omega += w;
            v_store(at, w);
        }
        v_store(k->omega + lane, omega);
    }
}

/* Shifts the centre to the mean of t over this tile and all before it; t becomes w (t - c). before: omega
 * without this tile. */
static void centre_probe(block *k, const float *before)
{
    float minus[LANES];
    FOR_LANES(lane)
    {
        const vec c = v_load(k->centre + lane), omega = v_load(k->omega + lane);
        vec sum = v_set(0), tsum = v_load(k->tsum + lane);
        for (int64_t r = 0; r < k->tile.n; r++)
            sum += v_load(k->s + r * LANES + lane) * (v_load(k->t + r * LANES + lane) - c);
        const vec shift = v_select(omega > 0, (tsum + sum) / omega, v_set(0));
        tsum -= shift * v_load(before + lane);
        for (int64_t r = 0; r < k->tile.n; r++) {
            float *at = k->t + r * LANES + lane;
            const vec wt = v_load(k->s + r * LANES + lane) * (v_load(at) - (c + shift));
            tsum += wt;
            v_store(at, wt);
        }
        v_store(minus + lane, -shift);
        v_store(k->centre + lane, c + shift);
        v_store(k->tsum + lane, tsum);
        v_store(k->tsum_taken + lane, v_load(k->tsum_taken + lane) - shift * v_load(k->taken + lane));
    }
    panel_axpy(k->vbar, k->x.p->dim_v, minus, k->o);
}

static void load_probe(block *k)
{
    const loam_problem *p = k->x.p;
    load_rows(k->tile.keys, &k->x.a->probe, p->dtype, k->x.s.b, k->x.h, k->x.s.q0 + k->l.i0, k->l.count,
              p->dim_qk);
    transpose(k->probe, k->tile.keys, k->l.count, p->dim_qk);
    if (k->x.raw) pair_rows(k->probe_pairs, k->probe, p->dim_qk, NULL);
}

/* vbar holds the sum B until finish_given. */
static void sweep_given(block *k, bool probed)
{
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        float best[LANES], before[LANES];
        score_tile_load(&k->tile, &k->x, j, k->l.last);
        load_value_tile(k);
        key_products(k->s, &k->x, &k->tile, k->query, k->query_pairs);
        memcpy(best, k->m, sizeof best);
        scores_in_place(k->s, &k->sc, &k->l, &k->tile, best);
        rescale(k, best);
        memcpy(before, k->omega, sizeof before);
        weigh_tile(k);
        if (probed) {
            key_products(k->t, &k->x, &k->tile, k->probe, k->probe_pairs);
            centre_probe(k, before);
            add_values(k, k->vbar, k->t, k->tsum_taken);
        }
        add_values(k, k->o, k->s, k->taken);
        if (!PAIR_DOTS) {
            memcpy(k->taken, k->omega, sizeof k->taken);
            memcpy(k->tsum_taken, k->tsum, sizeof k->tsum_taken);
        }
    }
}

static void finish_given(block *k, bool probed)
{
    FOR_LANES(lane)
    {
        const vec inverse = v_load(k->per_taken + lane), rest = v_load(k->tsum_taken + lane) * inverse;
        v_store(k->tsum + lane, v_load(k->tsum + lane) * v_load(k->inverse + lane));
        for (int64_t c = 0; c < k->x.p->dim_v; c++) {
            const int64_t at = c * LANES + lane;
            const vec mean = v_load(k->o + at) * inverse;
            v_store(k->o + at, probed ? mean * (1.0f + rest) - v_load(k->vbar + at) * inverse : mean);
            v_store(k->vbar + at, mean);
        }
    }
}

/* lse and 1 / omega (0 for a row that sees no key). */
static void finish_weights(block *k)
{
    for (int lane = 0; lane < LANES; lane++) {
        const bool some = k->omega[lane] > 0;
        k->inverse[lane] = some ? 1 / k->omega[lane] : 0;
        k->per_taken[lane] = some ? 1 / k->taken[lane] : 0;
        k->lse[lane] = some ? k->m[lane] + logf(k->omega[lane]) : -INFINITY;
        k->full_lse[lane] = k->lse[lane] + k->l.dropped[lane];
    }
}

/* Adds the mass of the sink. After the sweep, because the sink competes with the full
 * scores, including dropped. */
static void add_sink(block *k)
{
    const float sink = ((const float *)k->x.a->sink)[k->x.h];
    for (int lane = 0; lane < LANES; lane++) {
        const float keys = k->full_lse[lane], m = fmaxf(keys, sink);
        const float total = m + logf(expf(keys - m) + expf(sink - m));
        k->per_taken[lane] *= expf(keys - total);
        k->full_lse[lane] = total;
        k->lse[lane] = total - k->l.dropped[lane];
    }
}

static void forward_given(block *k)
{
    const loam_problem *p = k->x.p;
    const bool probed = p->mechanism == LOAM_PARALLAX;
    panel_fill(k->probe, p->dim_qk, 0);
    panel_fill(k->vbar, p->dim_v, 0);
    panel_fill(k->centre, 1, 0);
    panel_fill(k->tsum, 1, 0);
    panel_fill(k->tsum_taken, 1, 0);
    if (probed) load_probe(k);
    sweep_given(k, probed);
    finish_weights(k);
    if (probed && k->x.raw) {
        float common[LANES];
        common_products(common, &k->x, k->probe);
        for (int lane = 0; lane < LANES; lane++)
            k->centre[lane] -= common[lane];
    }
    if (p->sink) add_sink(k);
    finish_given(k, probed);
}

/* ------------------------------------------------------------------ the solved probe */

static void sweep_scores(block *k)
{
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        float *s = k->weights + (j - k->l.first) * LANES;
        score_tile_load(&k->tile, &k->x, j, k->l.last);
        key_products(s, &k->x, &k->tile, k->query, k->query_pairs);
        scores_in_place(s, &k->sc, &k->l, &k->tile, k->m);
    }
}

/* Scores become weights; square += sum w |k'|^2. */
static void sweep_means(block *k, float *restrict square)
{
    const int64_t d = k->x.p->dim_qk;
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        float *w = k->weights + (j - k->l.first) * LANES;
        key_tile_load(&k->tile, &k->x, j, k->l.last);
        load_value_tile(k);
        FOR_LANES(lane)
        {
            const vec m = finite_or_zero(v_load(k->m + lane));
            vec omega = v_load(k->omega + lane), sum = v_load(square + lane);
            for (int64_t r = 0; r < k->tile.n; r++) {
                const vec x = v_exp(v_load(w + r * LANES + lane) - m);
                omega += x;
                sum += x * k->tile.norm[r];
                v_store(w + r * LANES + lane, x);
            }
            v_store(k->omega + lane, omega);
            v_store(square + lane, sum);
        }
        panel_product(k->kbar, d, k->tile.keys, 1, d, w, k->tile.n, true);
        add_values(k, k->vbar, w, k->taken);
    }
    if (!PAIR_DOTS) memcpy(k->taken, k->omega, sizeof k->taken);
}

static block_system system_of(block *k)
{
    return block_system_of(&k->x, &k->l, &k->tile, k->s, k->weights, k->inverse, k->kbar, k->lambda);
}

/* o <- vbar - sum p u v, u = rho . kappa. */
static void sweep_lines(block *k)
{
    const int64_t d = k->x.p->dim_qk, dv = k->x.p->dim_v;
    const block_system sys = system_of(k);
    float rho_kbar[LANES], exact[LANES] = { 0 }, taken[LANES] = { 0 };
    const float *total = PAIR_DOTS ? taken : exact;
    panel_dot(rho_kbar, k->probe, k->kbar, d);
    for (int lane = 0; lane < LANES; lane++)
        rho_kbar[lane] = k->result.refined[lane] ? 0 : rho_kbar[lane];
    panel_fill(k->o, dv, 0);
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        key_tile_load(&k->tile, &k->x, j, k->l.last);
        load_value_tile(k);
        panel_product(k->s, k->tile.n, k->tile.keys, d, 1, k->probe, d, false);
        gram_lines(&sys, &k->solver.gram, &k->result, k->s);
        centred_weights(&sys, rho_kbar, exact);
        add_values(k, k->o, k->s, taken);
    }
    for (int64_t c = 0; c < dv; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec mean = v_load(k->vbar + at);
            v_store(k->o + at,
                    mean - (v_load(k->o + at) - v_load(total + lane) * mean) * v_load(k->inverse + lane));
        }
    }
}

static void solve_block(block *k, const float *square)
{
    const int64_t d = k->x.p->dim_qk;
    const block_system sys = system_of(k);
    block_ridge ridge;
    float *rhs = k->query; /* the scores are complete, so the query panel is free */
    for (int64_t c = 0; c < d; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec shift = v_set(k->sc.rbf ? 0 : k->x.origin[c]);
            v_store(rhs + at, v_load(k->kbar + at) + shift - v_load(k->query + at));
        }
    }
    block_ridge_set(&ridge, &sys, square, k->inverse); /* the largest weight is exp(0) / omega */
    block_solve(&sys, &k->solver, &ridge, rhs, k->probe, &k->result);
    for (int lane = 0; lane < LANES; lane++) {
        k->info[lane] = (loam_row_info){ LOAM_ROW_SOLVED,
                                         k->result.refined[lane] ? LOAM_SOLVER_GRAM : LOAM_SOLVER_CG,
                                         k->result.iterations[lane], k->result.residual[lane] };
    }
}

static void forward_solved(block *k)
{
    const loam_problem *p = k->x.p;
    float square[LANES] = { 0 };
    panel_fill(k->kbar, p->dim_qk, 0);
    panel_fill(k->vbar, p->dim_v, 0);
    sweep_scores(k);
    sweep_means(k, square);
    finish_weights(k);
    panel_scale(k->kbar, p->dim_qk, k->inverse);
    panel_scale(k->vbar, p->dim_v, k->per_taken);
    solve_block(k, square);
    sweep_lines(k);
}

/* False where keys are so large that float32 overflowed in the block; float64 has the range. */
static bool lane_is_finite(const block *k, int64_t lane)
{
    float sum = 0;
    for (int64_t c = 0; c < k->x.p->dim_v; c++)
        sum += k->o[c * LANES + lane] * 0;
    return sum == 0;
}

/* Computes a row in float64 and stores it in its lane. */
static void redo_lane(block *k, int64_t lane)
{
    row_double *r = &k->row;
    const int32_t iterations = k->info[lane].iterations;
    row_double_forward(r, &k->x, &k->sc, k->l.i0 + lane);
    k->info[lane] = r->info;
    k->info[lane].iterations = iterations;
    k->lse[lane] = (float)(r->lse - r->dropped);
    k->full_lse[lane] = (float)r->lse;
    for (int64_t c = 0; c < k->x.p->dim_qk; c++) {
        k->kbar[c * LANES + lane] = (float)r->kbar[c];
        k->probe[c * LANES + lane] = (float)r->rho[c];
    }
    for (int64_t c = 0; c < k->x.p->dim_v; c++) {
        k->vbar[c * LANES + lane] = (float)r->vbar[c];
        k->o[c * LANES + lane] = (float)r->o[c];
    }
}

/* ------------------------------------------------------------------ results */

static void put_saved(const block *k, int64_t lane)
{
    const loam_problem *p = k->x.p;
    const local_saved saved = local_saved_carve(p, k->x.a->saved, NULL);
    const int64_t at = local_row(p, &k->x.s, k->x.h, k->l.i0 + lane);
    ((float *)saved.lse)[at] = k->lse[lane];
    for (int64_t c = 0; c < p->dim_v; c++)
        ((float *)saved.vbar)[at * p->dim_v + c] = k->vbar[c * LANES + lane];
    if (p->mechanism == LOAM_PARALLAX) {
        ((float *)saved.tbar)[2 * at] = k->centre[lane];
        ((float *)saved.tbar)[2 * at + 1] = k->tsum[lane];
        for (int64_t c = 0; c < p->dim_v; c++)
            ((float *)saved.lean)[at * p->dim_v + c] = k->vbar[c * LANES + lane] - k->o[c * LANES + lane];
    }
    for (int64_t c = 0; p->mechanism == LOAM_LLA && c < p->dim_qk; c++) {
        ((float *)saved.kbar)[at * p->dim_qk + c] = k->kbar[c * LANES + lane];
        ((float *)saved.rho)[at * p->dim_qk + c] = k->probe[c * LANES + lane];
    }
}

static void put_lane(block *k, int64_t lane)
{
    const loam_problem *p = k->x.p;
    const loam_args *a = k->x.a;
    const int64_t b = k->x.s.b, h = k->x.h, token = k->x.s.q0 + k->l.i0 + lane;
    store_lane(&a->o, p->dtype, b, h, token, k->o, lane, p->dim_v);
    if (a->lse.data) ((float *)a->lse.data)[LOCAL_AT(a->lse, b, h, token)] = k->full_lse[lane];
    if (a->rho.data) store_lane(&a->rho, LOAM_F32, b, h, token, k->probe, lane, p->dim_qk);
    if (a->saved) put_saved(k, lane);
    local_put_info(a, &k->x.s, h, k->l.i0 + lane, k->info[lane]);
}

static float *weights_row(const block *k, int64_t lane)
{
    const loam_view *view = &k->x.a->weights;
    return (float *)view->data + LOCAL_AT(*view, k->x.s.b, k->x.h, k->x.s.q0 + k->l.i0 + lane);
}

/* rest <- the weighted mean of rho . k' minus rho . kbar: a rounding error that matters where
 * rho is large. */
static void sweep_rest(block *k, const float *centre, float *restrict rest)
{
    const int64_t d = k->x.p->dim_qk;
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        key_tile_load(&k->tile, &k->x, j, k->l.last);
        panel_product(k->t, k->tile.n, k->tile.keys, d, 1, k->probe, d, false);
        centre_products(k->weights + (j - k->l.first) * LANES, k->t, centre, rest, k->tile.n);
    }
    panel_scale(rest, 1, k->inverse);
}

/* Writes the effective weights p (1 - u) of the block in a separate sweep; meant for small inputs. */
static void put_weights(block *k)
{
    const loam_problem *p = k->x.p;
    const int64_t d = p->dim_qk;
    float centre[LANES], rest[LANES] = { 0 };
    if (p->mechanism == LOAM_LLA) {
        panel_dot(centre, k->probe, k->kbar, d);
        sweep_rest(k, centre, rest);
        load_queries(k->tile.keys, &k->x, k->l.i0, k->l.count);
        transpose(k->query, k->tile.keys, k->l.count, d);
    } else {
        memcpy(centre, k->centre, sizeof centre);
        memcpy(rest, k->tsum, sizeof rest);
    }
    for (int64_t lane = 0; lane < k->l.count; lane++)
        memset(weights_row(k, lane), 0, (size_t)p->len_kv * sizeof(float));
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        float best[LANES] = { 0 };
        key_tile_load(&k->tile, &k->x, j, k->l.last);
        key_products(k->s, &k->x, &k->tile, k->query, k->query_pairs);
        panel_product(k->t, k->tile.n, k->tile.keys, d, 1, k->probe, d, false);
        scores_in_place(k->s, &k->sc, &k->l, &k->tile, best);
        for (int64_t r = 0; r < k->tile.n; r++) {
            FOR_LANES(lane)
            {
                float *s = k->s + r * LANES + lane;
                const vec u = v_load(k->t + r * LANES + lane) - v_load(centre + lane) - v_load(rest + lane);
                v_store(s, weight_of(v_load(s), finite_or_zero(v_load(k->lse + lane))) * (1.0f - u));
            }
            for (int64_t lane = 0; lane < k->l.count; lane++)
                if (k->l.lo[lane] <= j + r && j + r < k->l.hi[lane])
                    weights_row(k, lane)[j + r] = k->s[r * LANES + lane];
        }
    }
}

static void put_weights_row64(const block *k, int64_t lane)
{
    const row_double *r = &k->row;
    for (int64_t j = r->lo; j < r->hi; j++)
        weights_row(k, lane)[j] = (float)(r->p[j - r->lo] * (1 - r->u[j - r->lo]));
}

static void forward_block(block *k, int64_t i0)
{
    const loam_problem *p = k->x.p;
    const bool solved = p->mechanism == LOAM_LLA;
    lanes_begin(&k->l, &k->x, i0, k->query, k->tile.keys);
    panel_fill(k->o, p->dim_v, 0);
    panel_fill(k->m, 1, -INFINITY);
    panel_fill(k->omega, 1, 0);
    panel_fill(k->taken, 1, 0);
    if (k->x.raw) pair_rows(k->query_pairs, k->query, p->dim_qk, NULL);
    if (solved)
        forward_solved(k);
    else
        forward_given(k);
    if (k->x.a->weights.data) put_weights(k);
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        const bool empty = k->l.lo[lane] >= k->l.hi[lane];
        for (int64_t c = 0; empty && c < p->dim_qk; c++)
            k->probe[c * LANES + lane] = 0;
        if (empty || !solved) {
            k->info[lane] = (loam_row_info){ empty ? LOAM_ROW_EMPTY : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0,
                                             0 };
        } else if (!k->result.accepted[lane] || !lane_is_finite(k, lane)) {
            redo_lane(k, lane);
            if (k->x.a->weights.data) put_weights_row64(k, lane);
        }
        put_lane(k, lane);
    }
}

size_t LOCAL_JOIN(ISA(local_forward), work)(const loam_problem *p)
{
    return size_mul(block_bytes(p), (size_t)p->threads);
}

loam_status ISA(local_forward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t blocks = (p->len_q + LANES - 1) / LANES;
    const size_t each = block_bytes(p);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + each * (size_t)omp_get_thread_num(), 0 };
        block k;
        block_carve(&k, p, &pool);
        /* Late blocks see the most keys: they are scheduled first, so that all threads finish together. */
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t back = 0; back < blocks; back++) {
            for (int64_t b = 0; b < p->batch; b++) {
                for (int64_t h = 0; h < p->heads_q; h++) {
                    const local_seq s = local_seq_at(p, a, b);
                    const int64_t i0 = (blocks - 1 - back) * LANES;
                    if (i0 < s.nq) {
                        head_begin(&k.x, p, a, &s, h);
                        k.sc = scoring_of(&k.x);
                        forward_block(&k, i0);
                    }
                }
            }
        }
    }
    return loam_succeed(error);
}
