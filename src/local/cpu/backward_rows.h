/* SPDX-License-Identifier: MIT
 * Backward on CPUs, first pass: lanes are queries. drho, the adjoint solve for y, the row constants, dq.
 */
#ifndef LOAM_LOCAL_CPU_BACKWARD_ROWS_H
#define LOAM_LOCAL_CPU_BACKWARD_ROWS_H

#include "src/local/cpu/backward_block.h"

/* |rho| times the spread of the keys from which on rounding of rho . k matters: the error of u
 * is 6e-5 there. */
#define SPAN_EXTENT 1e3f

/* Loads a panel from dense rows of a saved array. */
static inline void load_saved(block *blk, float *restrict panel, const void *saved, int64_t channels)
{
    const int64_t at = local_row(blk->hd.p, &blk->hd.s, blk->hd.h, blk->l.i0);
    transpose(panel, (const float *)saved + at * channels, blk->l.count, channels);
}

static inline void load_lanes(block *blk, int64_t i0)
{
    const loam_problem *p = blk->hd.p;
    const loam_args *a = blk->hd.a;
    const int64_t d = p->dim_qk, dv = p->dim_v;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    lanes_begin(&blk->l, &blk->hd, i0, blk->query, blk->tile.keys);
    load_rows(blk->rows_do, &a->grad_o, p->dtype, blk->hd.s.b, blk->hd.h, blk->hd.s.q0 + i0, blk->l.count,
              dv);
    transpose(blk->grad_o, blk->rows_do, blk->l.count, dv);
    if (PAIR_DOTS) pair_rows(blk->grad_o_pairs, blk->grad_o, dv, NULL);
    if (blk->hd.raw) pair_rows(blk->query_pairs, blk->query, d, NULL);
    load_saved(blk, blk->lse, saved.lse, 1);
    load_saved(blk, blk->grad_v, saved.vbar, dv);
    panel_dot(blk->gbar, blk->grad_o, blk->grad_v, dv);
    panel_fill(blk->y, d, 0);
    memset(blk->kbar2, 0, sizeof blk->kbar2);
    if (blk->solved) {
        load_saved(blk, blk->kbar, saved.kbar, d);
        load_saved(blk, blk->probe, saved.rho, d);
        panel_dot(blk->kbar2, blk->kbar, blk->kbar, d);
    } else if (blk->probed) {
        load_rows(blk->rows_rho, &a->probe, p->dtype, blk->hd.s.b, blk->hd.h, blk->hd.s.q0 + i0, blk->l.count,
                  d);
        transpose(blk->probe, blk->rows_rho, blk->l.count, d);
    }
    for (int lane = 0; lane < LANES; lane++) {
        blk->gbar_rest[lane] = blk->rho_kbar[lane] = blk->rho_rest[lane] = blk->y_rest[lane] = 0;
        blk->e[lane] = blk->spread[lane] = blk->trace[lane] = blk->y_kbar[lane] = 0;
        blk->inverse[lane] = blk->unit[lane] = 1;
        blk->peak[lane] = -1;
    }
    const int64_t at = local_row(p, &blk->hd.s, blk->hd.h, i0);
    float common[LANES] = { 0 };
    if (p->mechanism == LOAM_PARALLAX && blk->hd.raw) {
        pair_rows(blk->probe_pairs, blk->probe, d, NULL);
        common_products(common, &blk->hd, blk->probe);
    }
    for (int64_t lane = 0; p->mechanism == LOAM_PARALLAX && lane < blk->l.count; lane++) {
        blk->rho_kbar[lane] = ((const float *)saved.tbar)[2 * (at + lane)] + common[lane];
        blk->rho_rest[lane] = ((const float *)saved.tbar)[2 * (at + lane) + 1];
    }
}

/* g <- grad_o . v for the tile. */
static inline void value_products(block *blk)
{
    const head *hd = &blk->hd;
    const int64_t dv = hd->p->dim_v, token = hd->s.k0 + blk->tile.j;
    if (PAIR_DOTS) {
        const raw_rows values = raw_rows_of(&hd->a->v, hd->s.b, hd->h_kv, token, blk->tile.n, dv,
                                            blk->value_copy);
        raw_product(blk->g, values, blk->tile.n, blk->grad_o_pairs, dv, LANES);
    } else {
        const float_rows values = value_rows(blk->values, hd, blk->tile.j, blk->tile.n);
        panel_product(blk->g, blk->tile.n, values.at, values.stride, 1, blk->grad_o, dv, false);
    }
}

/* grad += weights . keys over the tile; for raw keys, taken += the weights as rounded for it. */
static inline void add_keys(block *blk, const float *restrict weights, float *restrict taken)
{
    const head *hd = &blk->hd;
    const int64_t d = hd->p->dim_qk;
    if (hd->raw) {
        load_token_pairs(blk->key_tokens, &hd->a->k, hd->s.b, hd->h_kv, hd->s.k0 + blk->tile.j, blk->tile.n,
                         d);
        pair_rows(blk->tile_pairs, weights, blk->tile.n, taken);
        pair_token_product(blk->grad, blk->key_tokens, d, blk->tile_pairs, blk->tile.n, LANES);
    } else {
        panel_product(blk->grad, d, blk->tile.keys, 1, d, weights, blk->tile.n, true);
    }
}

/* w <- p of the tile; with `peaks`, best and peak track the largest score and its key. */
VEC_INLINE void weights_of_tile(bool unmasked, bool peaks, block *blk, float *restrict w,
                                float *restrict best)
{
    FOR_LANES(lane)
    {
        const vec lse = finite_or_zero(v_load(blk->lse + lane));
        vec top = v_load(best + lane);
        vmask peak = v_load_int(blk->peak + lane);
        for (int64_t r = 0; r < blk->tile.n; r++) {
            float *at = w + r * LANES + lane;
            vec x, factor;
            const vec s = score_from(unmasked, &blk->sc, &blk->l, &blk->tile, r, lane, v_load(at), &x,
                                     &factor);
            if (peaks) {
                const vmask higher = s > top;
                top = v_select(higher, s, top);
                peak = (higher & (int32_t)(blk->tile.j + r)) | (~higher & peak);
            }
            v_store(at, weight_of(s, lse));
        }
        v_store(best + lane, top);
        memcpy(blk->peak + lane, &peak, sizeof peak);
    }
}

/* LLA tracks the peak key: it gives the max unit of the ridge, and sweep_centres counts products from it. */
static inline void tile_weights(block *blk, float *restrict w, float *restrict best)
{
    const bool unmasked = tile_is_unmasked(&blk->sc, &blk->l, &blk->tile);
    if (unmasked && blk->solved)
        weights_of_tile(true, true, blk, w, best);
    else if (unmasked)
        weights_of_tile(true, false, blk, w, best);
    else
        weights_of_tile(false, blk->solved, blk, w, best);
}

/* g of the tile becomes p (g - gbar), whose column sums are added to total; square += p |k'|^2. */
static inline void weigh_errors(block *blk, const float *restrict w, float *restrict total,
                                float *restrict square)
{
    FOR_LANES(lane)
    {
        const vec gbar = v_load(blk->gbar + lane);
        vec sum = v_load(total + lane), sum2 = v_load(square + lane);
        for (int64_t r = 0; r < blk->tile.n; r++) {
            float *at = blk->g + r * LANES + lane;
            const vec p = v_load(w + r * LANES + lane), f = p * (v_load(at) - gbar);
            sum += f;
            sum2 += p * blk->tile.norm[r];
            v_store(at, f);
        }
        v_store(total + lane, sum);
        v_store(square + lane, sum2);
    }
}

/* grad <- drho = -sum p (g - gbar) kappa; LLA keeps the weights. The sum of p (g - gbar) over keys is 0 but
 * for rounding; where kbar is known, that sum times kbar is subtracted. */
static inline void sweep_probe(block *blk, float *restrict square)
{
    const int64_t d = blk->hd.p->dim_qk;
    float total[LANES] = { 0 }, taken[LANES] = { 0 }, best[LANES], minus[LANES];
    panel_fill(best, 1, -INFINITY);
    panel_fill(blk->grad, d, 0);
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        float *w = blk->solved ? blk->weights + (j - blk->l.first) * LANES : blk->w;
        if (blk->solved)
            key_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        else
            score_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        key_products(w, &blk->hd, &blk->tile, blk->query, blk->query_pairs, LANES);
        tile_weights(blk, w, best);
        value_products(blk);
        weigh_errors(blk, w, total, square);
        if (blk->solved) /* in float32, as the solve may amplify rounding errors */
            panel_product(blk->grad, d, blk->tile.keys, 1, d, blk->g, blk->tile.n, true);
        else
            add_keys(blk, blk->g, taken);
    }
    subtract_common(blk->grad, &blk->hd, taken);
    panel_fill(minus, 1, -1);
    memcpy(blk->gbar_rest, total, sizeof total);
    if (blk->solved) {
        for (int lane = 0; lane < LANES; lane++)
            total[lane] = -total[lane];
        panel_axpy(blk->grad, d, total, blk->kbar);
    }
    panel_scale(blk->grad, d, minus);
}

/* The weight of the peak key, which is the unit of LOAM_RIDGE_MAX. */
static inline void peak_weights(const block *blk, float *restrict most)
{
    for (int64_t lane = 0; lane < blk->l.count; lane++)
        if (blk->l.lo[lane] < blk->l.hi[lane])
            most[lane] = blk->weights[(blk->peak[lane] - blk->l.first) * LANES + lane];
}

/* y = (Cov + Lambda)^-1 drho. */
static inline void solve_adjoint(block *blk, const float *square)
{
    const int64_t d = blk->hd.p->dim_qk;
    const block_system sys = block_system_of(&blk->hd, &blk->l, &blk->tile, blk->s, blk->weights,
                                             blk->inverse, blk->kbar, blk->lambda);
    block_result result;
    block_ridge ridge;
    float most[LANES] = { 0 };
    peak_weights(blk, most);
    block_ridge_set(&ridge, &sys, square, most);
    memcpy(blk->trace, ridge.variance, sizeof blk->trace);
    memcpy(blk->unit, ridge.unit, sizeof blk->unit);
    block_solve(&sys, &blk->solver, &ridge, blk->grad, blk->y, &result);
    for (int64_t lane = 0; lane < blk->l.count; lane++) {
        if (blk->l.lo[lane] < blk->l.hi[lane] && !result.accepted[lane]) {
            row_double_adjoint(&blk->row, &blk->hd, &blk->sc, blk->l.i0 + lane);
            for (int64_t c = 0; c < d; c++)
                blk->y[c * LANES + lane] = (float)blk->row.rho[c];
        }
    }
}

/* Replaces probe by the vector that u is computed from. With few keys the probe may have a huge part
 * orthogonal to all of them, which adds only rounding errors to u: such a row gets the shortest
 * vector with the same u. */
static inline void span_probes(block *blk)
{
    const int64_t d = blk->hd.p->dim_qk;
    float size2[LANES];
    panel_dot(size2, blk->probe, blk->probe, d);
    for (int64_t lane = 0; lane < blk->l.count; lane++) {
        const int64_t keys = blk->l.hi[lane] - blk->l.lo[lane];
        const float extent2 = size2[lane] * blk->trace[lane] * (float)d;
        if (keys > 1 && keys <= d && extent2 > SPAN_EXTENT * SPAN_EXTENT &&
            row_double_span_probe(&blk->row, &blk->hd, &blk->sc, blk->l.i0 + lane))
            for (int64_t c = 0; c < d; c++)
                blk->probe[c * LANES + lane] = (float)blk->row.rho[c];
    }
}

/* rho . kbar as rho_kbar + rho_rest: the product with the peak key, and the weighted mean of the products
 * minus that one. y . kbar likewise. u_j is computed relative to the peak; where one key has nearly all the
 * weight and rho is large, a small u_j then has its own precision, not that of rho . k. */
static inline void sweep_centres(block *blk)
{
    const int64_t d = blk->hd.p->dim_qk;
    float omega[LANES] = { 0 };
    for (int64_t lane = 0; lane < blk->l.count; lane++) {
        if (blk->peak[lane] >= 0) {
            load_keys(blk->tile.keys, &blk->hd, blk->peak[lane], 1);
            for (int64_t c = 0; c < d; c++) {
                blk->rho_kbar[lane] += blk->probe[c * LANES + lane] * blk->tile.keys[c];
                blk->y_kbar[lane] += blk->y[c * LANES + lane] * blk->tile.keys[c];
            }
        }
    }
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        const float *w = blk->weights + (j - blk->l.first) * LANES;
        key_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        panel_product(blk->u, blk->tile.n, blk->tile.keys, d, 1, blk->probe, d, false);
        panel_product(blk->t, blk->tile.n, blk->tile.keys, d, 1, blk->y, d, false);
        panel_sum(omega, w, blk->tile.n);
        centre_products(w, blk->u, blk->rho_kbar, blk->rho_rest, blk->tile.n);
        centre_products(w, blk->t, blk->y_kbar, blk->y_rest, blk->tile.n);
    }
    for (int lane = 0; lane < LANES; lane++) {
        blk->rho_rest[lane] = omega[lane] > 0 ? blk->rho_rest[lane] / omega[lane] : 0;
        blk->y_rest[lane] = omega[lane] > 0 ? blk->y_rest[lane] / omega[lane] : 0;
    }
}

/* e = -y . Lambda rho, and the gradient of the ridge, -unit y rho. */
static inline void ridge_gradient(block *blk, const row_arrays *rows)
{
    const loam_problem *p = blk->hd.p;
    const loam_view *out = &blk->hd.a->grad_ridge;
    for (int64_t lane = 0; lane < blk->l.count; lane++) {
        double e = 0, sum = 0;
        for (int64_t c = 0; c < p->dim_qk; c++) {
            const int64_t at = c * LANES + lane;
            const double part = -(double)blk->y[at] * (double)blk->probe[at];
            e += part * (double)blk->lambda[at];
            sum += part * (double)blk->unit[lane];
            if (p->ridge_axes == LOAM_RIDGE_CHANNEL && out->data) {
                ((float *)out->data)[LOCAL_AT(*out, blk->hd.s.b, blk->hd.h, blk->hd.s.q0 + blk->l.i0 + lane) +
                                     c] = (float)(part * (double)blk->unit[lane]);
            }
        }
        blk->e[lane] = (float)e;
        blk->spread[lane] = blk->by_trace ? (float)(e / (double)blk->unit[lane]) : 0;
        rows->sums.ridge[local_row(p, &blk->hd.s, blk->hd.h, blk->l.i0 + lane)] = sum;
    }
}

/* Stores drho of a given probe; e = -rho . drho. */
static inline void given_gradient(block *blk)
{
    const loam_problem *p = blk->hd.p;
    float part[LANES];
    panel_dot(part, blk->probe, blk->grad, p->dim_qk);
    for (int64_t lane = 0; lane < blk->l.count; lane++) {
        blk->e[lane] = -part[lane];
        if (blk->hd.a->grad_probe.data) {
            store_lane(&blk->hd.a->grad_probe, p->dtype, blk->hd.s.b, blk->hd.h,
                       blk->hd.s.q0 + blk->l.i0 + lane, blk->grad, lane, p->dim_qk);
        }
    }
}

/* Sums over the keys of a row, for gradients of shared parameters. Without a map and a sink the ds of a
 * row sum to 0: then the part of x that all keys have in common drops out, and keys far from the origin cost
 * no precision. */
typedef struct row_totals {
    float inner[LANES], scale[LANES], slope[LANES]; /* of ds factor, ds factor (x - middle), -ds distance */
    float middle[LANES], mean[LANES];               /* an x near those of large weight; of p (x - middle) */
    float total[LANES];                             /* of ds */
    float large[LANES];                             /* scale / 2^100, used where scale overflows in between */
} row_totals;

static inline bool sums_to_zero(const block *blk) { return !blk->sc.mapped && !blk->hd.p->sink; }

/* middle: an x between the mean and the largest x of the row, from lse, where a score is scale x and nothing
 * else. The gradient of the scale is summed relative to middle, so that steep scores cost no precision. */
static inline void set_middle(const block *blk, row_totals *sum)
{
    const bool told = sums_to_zero(blk) && !blk->sc.sloped && !blk->sc.biased && blk->hd.p->scale != 0;
    for (int64_t lane = 0; told && lane < blk->l.count; lane++) {
        const int64_t keys = blk->l.hi[lane] - blk->l.lo[lane];
        const float x = keys > 0 ? (blk->lse[lane] - logf((float)keys)) / (float)blk->hd.p->scale : 0;
        sum->middle[lane] = fabsf(x) < 1e30f ? x : 0;
    }
}

/* s (q . k on entry) becomes ds factor. unmasked: tile_is_unmasked, no solved probe, and no row sum is needed
 * but that of ds factor. */
VEC_INLINE void row_gradient_of_tile(bool unmasked, bool probed, block *blk, row_totals *sum)
{
    const bool solved = !unmasked && blk->solved, by_max = !unmasked && blk->by_max,
               by_trace = !unmasked && blk->by_trace;
    const float inverse_d = 1 / (float)blk->hd.p->dim_qk;
    FOR_LANES(lane)
    {
        const vec lse = finite_or_zero(v_load(blk->lse + lane)), gbar = v_load(blk->gbar + lane),
                  e = v_load(blk->e + lane);
        const vec rho_kbar = v_load(blk->rho_kbar + lane), y_kbar = v_load(blk->y_kbar + lane);
        const vec gbar_rest = v_load(blk->gbar_rest + lane), rho_rest = v_load(blk->rho_rest + lane),
                  y_rest = v_load(blk->y_rest + lane);
        vec inner = v_load(sum->inner + lane), scale = v_load(sum->scale + lane),
            slope = v_load(sum->slope + lane), large = v_load(sum->large + lane);
        vec mean = v_load(sum->mean + lane), total = v_load(sum->total + lane);
        const vec middle = v_load(sum->middle + lane);
        for (int64_t r = 0; r < blk->tile.n; r++) {
            const int64_t at = r * LANES + lane;
            const int32_t j = (int32_t)(blk->tile.j + r);
            vec x, factor, excess = v_set(0);
            const vec s = score_from(unmasked, &blk->sc, &blk->l, &blk->tile, r, lane, v_load(blk->s + at),
                                     &x, &factor);
            const vec p = weight_of(s, lse);
            if (by_trace) {
                excess = (blk->tile.norm[r] - 2.0f * v_load(blk->w + at) + v_load(blk->kbar2 + lane)) *
                             inverse_d -
                         v_load(blk->trace + lane);
            }
            const pair_terms pair = pair_of(
                by_max, by_trace, p, probed ? v_load(blk->u + at) - rho_kbar - rho_rest : v_set(0),
                v_load(blk->g + at) - gbar - gbar_rest,
                solved ? v_load(blk->t + at) - y_kbar - y_rest : v_set(0), e,
                v_load_int(blk->peak + lane) == j, v_load(blk->spread + lane), excess);
            const vec ds = pair.ds * factor;
            inner += ds;
            if (!unmasked) {
                scale += ds * (x - middle);
                large += ds * ((x - middle) * 0x1p-100f);
                mean += p * (x - middle);
                total += pair.ds;
                slope -= pair.ds * score_distance(&blk->l, j, lane);
            }
            v_store(blk->s + at, ds);
        }
        v_store(sum->inner + lane, inner);
        v_store(sum->scale + lane, scale);
        v_store(sum->mean + lane, mean);
        v_store(sum->total + lane, total);
        v_store(sum->large + lane, large);
        v_store(sum->slope + lane, slope);
    }
}

static inline void tile_row_gradient(block *blk, row_totals *sum)
{
    const bool unmasked = tile_is_unmasked(&blk->sc, &blk->l, &blk->tile) && !blk->solved &&
                          !blk->hd.a->grad_scale;
    if (unmasked && blk->probed)
        row_gradient_of_tile(true, true, blk, sum);
    else if (unmasked)
        row_gradient_of_tile(true, false, blk, sum);
    else
        row_gradient_of_tile(false, blk->probed, blk, sum);
}

/* grad <- sum ds factor k'. */
static inline void sweep_query(block *blk, row_totals *sum)
{
    const int64_t d = blk->hd.p->dim_qk;
    float taken[LANES] = { 0 };
    set_middle(blk, sum);
    panel_fill(blk->grad, d, 0);
    for (int64_t j = blk->l.first; j < blk->l.last; j += TILE_KEYS) {
        if (blk->solved)
            key_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        else
            score_tile_load(&blk->tile, &blk->hd, j, blk->l.last);
        key_products(blk->s, &blk->hd, &blk->tile, blk->query, blk->query_pairs, LANES);
        value_products(blk);
        if (blk->probed && !blk->solved)
            key_products(blk->u, &blk->hd, &blk->tile, blk->probe, blk->probe_pairs, LANES);
        if (blk->solved) {
            panel_product(blk->u, blk->tile.n, blk->tile.keys, d, 1, blk->probe, d, false);
            panel_product(blk->t, blk->tile.n, blk->tile.keys, d, 1, blk->y, d, false);
        }
        if (blk->by_trace) panel_product(blk->w, blk->tile.n, blk->tile.keys, d, 1, blk->kbar, d, false);
        tile_row_gradient(blk, sum);
        add_keys(blk, blk->s, taken);
    }
    subtract_common(blk->grad, &blk->hd, taken);
    for (int lane = 0; lane < LANES; lane++) {
        /* The sum of ds is 0: its rounding error, at the mean of x, is subtracted. */
        const float rest = sum->inner[lane] * sum->mean[lane];
        sum->scale[lane] -= sums_to_zero(blk) && fabsf(rest) < INFINITY ? rest : 0;
        sum->inner[lane] = sums_to_zero(blk) ? 0 : sum->inner[lane];
        if (!blk->sc.mapped) {
            sum->scale[lane] += sum->inner[lane] * blk->l.constant[lane];
            sum->large[lane] += sum->inner[lane] * (blk->l.constant[lane] * 0x1p-100f);
        }
    }
}

/* dq = scale sum ds factor (k or k - q) - y. */
static inline void put_query_gradient(block *blk, const row_totals *sum)
{
    const loam_problem *p = blk->hd.p;
    for (int64_t c = 0; c < p->dim_qk; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec inner = v_load(sum->inner + lane);
            const vec from = blk->sc.rbf ? -v_load(blk->query + at) : v_set(blk->hd.origin[c]);
            v_store(blk->grad + at,
                    blk->sc.scale * (v_load(blk->grad + at) + inner * from) - v_load(blk->y + at));
        }
    }
    for (int64_t lane = 0; blk->hd.a->grad_q.data && lane < blk->l.count; lane++) {
        store_lane(&blk->hd.a->grad_q, p->dtype, blk->hd.s.b, blk->hd.h, blk->hd.s.q0 + blk->l.i0 + lane,
                   blk->grad, lane, p->dim_qk);
    }
}

static inline void put_rows(const block *blk, const row_arrays *rows, const row_totals *sum)
{
    const loam_problem *p = blk->hd.p;
    for (int64_t lane = 0; lane < blk->l.count; lane++) {
        const int64_t at = local_row(p, &blk->hd.s, blk->hd.h, blk->l.i0 + lane);
        rows->record[at] = (row_record){ .lse = blk->lse[lane],
                                         .gbar = blk->gbar[lane],
                                         .gbar_rest = blk->gbar_rest[lane],
                                         .rho_kbar = blk->rho_kbar[lane],
                                         .rho_rest = blk->rho_rest[lane],
                                         .y_rest = blk->y_rest[lane],
                                         .y_kbar = blk->y_kbar[lane],
                                         .x0 = blk->l.x0[lane],
                                         .e = blk->e[lane],
                                         .spread = blk->spread[lane],
                                         .trace = blk->trace[lane],
                                         .kbar2 = blk->kbar2[lane],
                                         .peak = blk->by_max ? blk->peak[lane] : -1,
                                         .lo = blk->l.lo[lane],
                                         .hi = blk->l.hi[lane] };
        for (int64_t c = 0; blk->solved && c < p->dim_qk; c++) {
            rows->y[at * p->dim_qk + c] = blk->y[c * LANES + lane];
            rows->rho_u[at * p->dim_qk + c] = blk->probe[c * LANES + lane];
        }
        rows->sums.scale[at] = fabsf(sum->scale[lane]) < INFINITY ? (double)sum->scale[lane]
                                                                  : (double)sum->large[lane] * 0x1p100;
        if (p->slope) rows->sums.slope[at] = (double)sum->slope[lane];
        if (p->decay) rows->sums.inner[at] = (double)sum->total[lane];
        if (p->sink) {
            const double sink = (double)((const float *)blk->hd.a->sink)[blk->hd.h];
            rows->sums.sink[at] = -exp(sink - (double)blk->l.dropped[lane] - (double)blk->lse[lane]) *
                                  (double)blk->gbar[lane];
        }
    }
}

static inline void backward_rows(block *blk, const row_arrays *rows, int64_t i0)
{
    float square[LANES] = { 0 };
    row_totals sum = { .inner = { 0 } };
    load_lanes(blk, i0);
    if (blk->probed) sweep_probe(blk, square);
    if (blk->solved) {
        solve_adjoint(blk, square);
        /* If Lambda is a multiple of I, y lies in the span of the keys, and y . rho needs only that
         * part of rho. */
        const bool by_channel = blk->hd.p->ridge_axes == LOAM_RIDGE_CHANNEL;
        if (by_channel) ridge_gradient(blk, rows);
        span_probes(blk);
        if (!by_channel) ridge_gradient(blk, rows);
        sweep_centres(blk);
    } else if (blk->probed) {
        given_gradient(blk);
    }
    sweep_query(blk, &sum);
    put_query_gradient(blk, &sum);
    put_rows(blk, rows, &sum);
}

#endif
