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
static inline void load_saved(block *k, float *restrict panel, const void *saved, int64_t channels)
{
    const int64_t at = local_row(k->x.p, &k->x.s, k->x.h, k->l.i0);
    transpose(panel, (const float *)saved + at * channels, k->l.count, channels);
}

static inline void load_lanes(block *k, int64_t i0)
{
    const loam_problem *p = k->x.p;
    const loam_args *a = k->x.a;
    const int64_t d = p->dim_qk, dv = p->dim_v;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    lanes_begin(&k->l, &k->x, i0, k->query, k->tile.keys);
    load_rows(k->rows_do, &a->grad_o, p->dtype, k->x.s.b, k->x.h, k->x.s.q0 + i0, k->l.count, dv);
    transpose(k->grad_o, k->rows_do, k->l.count, dv);
    if (PAIR_DOTS) pair_rows(k->grad_o_pairs, k->grad_o, dv, NULL);
    if (k->x.raw) pair_rows(k->query_pairs, k->query, d, NULL);
    load_saved(k, k->lse, saved.lse, 1);
    load_saved(k, k->grad_v, saved.vbar, dv);
    panel_dot(k->gbar, k->grad_o, k->grad_v, dv);
    panel_fill(k->y, d, 0);
    memset(k->kbar2, 0, sizeof k->kbar2);
    if (k->solved) {
        load_saved(k, k->kbar, saved.kbar, d);
        load_saved(k, k->probe, saved.rho, d);
        panel_dot(k->kbar2, k->kbar, k->kbar, d);
    } else if (k->probed) {
        load_rows(k->rows_rho, &a->probe, p->dtype, k->x.s.b, k->x.h, k->x.s.q0 + i0, k->l.count, d);
        transpose(k->probe, k->rows_rho, k->l.count, d);
    }
    for (int lane = 0; lane < LANES; lane++) {
        k->gbar_rest[lane] = k->rho_kbar[lane] = k->rho_rest[lane] = k->y_rest[lane] = 0;
        k->e[lane] = k->spread[lane] = k->trace[lane] = k->y_kbar[lane] = 0;
        k->inverse[lane] = k->unit[lane] = 1;
        k->peak[lane] = -1;
    }
    const int64_t at = local_row(p, &k->x.s, k->x.h, i0);
    float common[LANES] = { 0 };
    if (p->mechanism == LOAM_PARALLAX && k->x.raw) {
        pair_rows(k->probe_pairs, k->probe, d, NULL);
        common_products(common, &k->x, k->probe);
    }
    for (int64_t lane = 0; p->mechanism == LOAM_PARALLAX && lane < k->l.count; lane++) {
        k->rho_kbar[lane] = ((const float *)saved.tbar)[2 * (at + lane)] + common[lane];
        k->rho_rest[lane] = ((const float *)saved.tbar)[2 * (at + lane) + 1];
    }
}

/* g <- grad_o . v for the tile. */
static inline void value_products(block *k)
{
    const head *x = &k->x;
    const int64_t dv = x->p->dim_v, token = x->s.k0 + k->tile.j;
    if (PAIR_DOTS) {
        const raw_rows values = raw_rows_of(&x->a->v, x->s.b, x->h_kv, token, k->tile.n, dv, k->value_copy);
        raw_product(k->g, values, k->tile.n, k->grad_o_pairs, dv);
    } else {
        const float_rows values = value_rows(k->values, x, k->tile.j, k->tile.n);
        panel_product(k->g, k->tile.n, values.at, values.stride, 1, k->grad_o, dv, false);
    }
}

/* grad += weights . keys over the tile; for raw keys, taken += the weights as rounded for it. */
static inline void add_keys(block *k, const float *restrict weights, float *restrict taken)
{
    const head *x = &k->x;
    const int64_t d = x->p->dim_qk;
    if (x->raw) {
        load_token_pairs(k->key_tokens, &x->a->k, x->s.b, x->h_kv, x->s.k0 + k->tile.j, k->tile.n, d);
        pair_rows(k->tile_pairs, weights, k->tile.n, taken);
        token_product(k->grad, k->key_tokens, d, k->tile_pairs, k->tile.n);
    } else {
        panel_product(k->grad, d, k->tile.keys, 1, d, weights, k->tile.n, true);
    }
}

/* w <- p of the tile; with `peaks`, best and peak track the largest score and its key. */
VEC_INLINE void weights_of_tile(bool unmasked, bool peaks, block *k, float *restrict w, float *restrict best)
{
    FOR_LANES(lane)
    {
        const vec lse = finite_or_zero(v_load(k->lse + lane));
        vec top = v_load(best + lane);
        vmask peak = v_load_int(k->peak + lane);
        for (int64_t r = 0; r < k->tile.n; r++) {
            float *at = w + r * LANES + lane;
            vec x, factor;
            const vec s = score_from(unmasked, &k->sc, &k->l, &k->tile, r, lane, v_load(at), &x, &factor);
            if (peaks) {
                const vmask higher = s > top;
                top = v_select(higher, s, top);
                peak = (higher & (int32_t)(k->tile.j + r)) | (~higher & peak);
            }
            v_store(at, weight_of(s, lse));
        }
        v_store(best + lane, top);
        memcpy(k->peak + lane, &peak, sizeof peak);
    }
}

/* LLA tracks the peak key: it gives the max unit of the ridge, and sweep_centres counts products from it. */
static inline void tile_weights(block *k, float *restrict w, float *restrict best)
{
    const bool unmasked = tile_is_unmasked(&k->sc, &k->l, &k->tile);
    if (unmasked && k->solved)
        weights_of_tile(true, true, k, w, best);
    else if (unmasked)
        weights_of_tile(true, false, k, w, best);
    else
        weights_of_tile(false, k->solved, k, w, best);
}

/* g of the tile becomes p (g - gbar), whose column sums are added to total; square += p |k'|^2. */
static inline void weigh_errors(block *k, const float *restrict w, float *restrict total,
                                float *restrict square)
{
    FOR_LANES(lane)
    {
        const vec gbar = v_load(k->gbar + lane);
        vec sum = v_load(total + lane), sum2 = v_load(square + lane);
        for (int64_t r = 0; r < k->tile.n; r++) {
            float *at = k->g + r * LANES + lane;
            const vec p = v_load(w + r * LANES + lane), f = p * (v_load(at) - gbar);
            sum += f;
            sum2 += p * k->tile.norm[r];
            v_store(at, f);
        }
        v_store(total + lane, sum);
        v_store(square + lane, sum2);
    }
}

/* grad <- drho = -sum p (g - gbar) kappa; LLA keeps the weights. The sum of p (g - gbar) over keys is 0 but
 * for rounding; where kbar is known, that sum times kbar is subtracted. */
static inline void sweep_probe(block *k, float *restrict square)
{
    const int64_t d = k->x.p->dim_qk;
    float total[LANES] = { 0 }, taken[LANES] = { 0 }, best[LANES], minus[LANES];
    panel_fill(best, 1, -INFINITY);
    panel_fill(k->grad, d, 0);
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        float *w = k->solved ? k->weights + (j - k->l.first) * LANES : k->w;
        if (k->solved)
            key_tile_load(&k->tile, &k->x, j, k->l.last);
        else
            score_tile_load(&k->tile, &k->x, j, k->l.last);
        key_products(w, &k->x, &k->tile, k->query, k->query_pairs);
        tile_weights(k, w, best);
        value_products(k);
        weigh_errors(k, w, total, square);
        if (k->solved) /* in float32, as the solve may amplify rounding errors */
            panel_product(k->grad, d, k->tile.keys, 1, d, k->g, k->tile.n, true);
        else
            add_keys(k, k->g, taken);
    }
    subtract_common(k->grad, &k->x, taken);
    panel_fill(minus, 1, -1);
    memcpy(k->gbar_rest, total, sizeof total);
    if (k->solved) {
        for (int lane = 0; lane < LANES; lane++)
            total[lane] = -total[lane];
        panel_axpy(k->grad, d, total, k->kbar);
    }
    panel_scale(k->grad, d, minus);
}

/* The weight of the peak key, which is the unit of LOAM_RIDGE_MAX. */
static inline void peak_weights(const block *k, float *restrict most)
{
    for (int64_t lane = 0; lane < k->l.count; lane++)
        if (k->l.lo[lane] < k->l.hi[lane])
            most[lane] = k->weights[(k->peak[lane] - k->l.first) * LANES + lane];
}

/* y = (Cov + Lambda)^-1 drho. */
static inline void solve_adjoint(block *k, const float *square)
{
    const int64_t d = k->x.p->dim_qk;
    const block_system sys = block_system_of(&k->x, &k->l, &k->tile, k->s, k->weights, k->inverse, k->kbar,
                                             k->lambda);
    block_result result;
    block_ridge ridge;
    float most[LANES] = { 0 };
    peak_weights(k, most);
    block_ridge_set(&ridge, &sys, square, most);
    memcpy(k->trace, ridge.variance, sizeof k->trace);
    memcpy(k->unit, ridge.unit, sizeof k->unit);
    block_solve(&sys, &k->solver, &ridge, k->grad, k->y, &result);
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        if (k->l.lo[lane] < k->l.hi[lane] && !result.accepted[lane]) {
            row_double_adjoint(&k->row, &k->x, &k->sc, k->l.i0 + lane);
            for (int64_t c = 0; c < d; c++)
                k->y[c * LANES + lane] = (float)k->row.rho[c];
        }
    }
}

/* Replaces probe by the vector that u is computed from. With few keys the probe may have a huge part
 * orthogonal to all of them, which adds only rounding errors to u: such a row gets the shortest
 * vector with the same u. */
static inline void span_probes(block *k)
{
    const int64_t d = k->x.p->dim_qk;
    float size2[LANES];
    panel_dot(size2, k->probe, k->probe, d);
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        const int64_t keys = k->l.hi[lane] - k->l.lo[lane];
        const float extent2 = size2[lane] * k->trace[lane] * (float)d;
        if (keys > 1 && keys <= d && extent2 > SPAN_EXTENT * SPAN_EXTENT &&
            row_double_span_probe(&k->row, &k->x, &k->sc, k->l.i0 + lane))
            for (int64_t c = 0; c < d; c++)
                k->probe[c * LANES + lane] = (float)k->row.rho[c];
    }
}

/* rho . kbar as rho_kbar + rho_rest: the product with the peak key, and the weighted mean of the products
 * minus that one. y . kbar likewise. u_j is computed relative to the peak; where one key has nearly all the
 * weight and rho is large, a small u_j then has its own precision, not that of rho . k. */
static inline void sweep_centres(block *k)
{
    const int64_t d = k->x.p->dim_qk;
    float omega[LANES] = { 0 };
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        if (k->peak[lane] >= 0) {
            load_keys(k->tile.keys, &k->x, k->peak[lane], 1);
            for (int64_t c = 0; c < d; c++) {
                k->rho_kbar[lane] += k->probe[c * LANES + lane] * k->tile.keys[c];
                k->y_kbar[lane] += k->y[c * LANES + lane] * k->tile.keys[c];
            }
        }
    }
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        const float *w = k->weights + (j - k->l.first) * LANES;
        key_tile_load(&k->tile, &k->x, j, k->l.last);
        panel_product(k->u, k->tile.n, k->tile.keys, d, 1, k->probe, d, false);
        panel_product(k->t, k->tile.n, k->tile.keys, d, 1, k->y, d, false);
        panel_sum(omega, w, k->tile.n);
        centre_products(w, k->u, k->rho_kbar, k->rho_rest, k->tile.n);
        centre_products(w, k->t, k->y_kbar, k->y_rest, k->tile.n);
    }
    for (int lane = 0; lane < LANES; lane++) {
        k->rho_rest[lane] = omega[lane] > 0 ? k->rho_rest[lane] / omega[lane] : 0;
        k->y_rest[lane] = omega[lane] > 0 ? k->y_rest[lane] / omega[lane] : 0;
    }
}

/* e = -y . Lambda rho, and the gradient of the ridge, -unit y rho. */
static inline void ridge_gradient(block *k, const row_arrays *rows)
{
    const loam_problem *p = k->x.p;
    const loam_view *out = &k->x.a->grad_ridge;
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        double e = 0, sum = 0;
        for (int64_t c = 0; c < p->dim_qk; c++) {
            const int64_t at = c * LANES + lane;
            const double part = -(double)k->y[at] * (double)k->probe[at];
            e += part * (double)k->lambda[at];
            sum += part * (double)k->unit[lane];
            if (p->ridge_axes == LOAM_RIDGE_CHANNEL && out->data) {
                ((float *)out->data)[LOCAL_AT(*out, k->x.s.b, k->x.h, k->x.s.q0 + k->l.i0 + lane) + c] =
                    (float)(part * (double)k->unit[lane]);
            }
        }
        k->e[lane] = (float)e;
        k->spread[lane] = k->by_trace ? (float)(e / (double)k->unit[lane]) : 0;
        rows->sums.ridge[local_row(p, &k->x.s, k->x.h, k->l.i0 + lane)] = sum;
    }
}

/* Stores drho of a given probe; e = -rho . drho. */
static inline void given_gradient(block *k)
{
    const loam_problem *p = k->x.p;
    float part[LANES];
    panel_dot(part, k->probe, k->grad, p->dim_qk);
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        k->e[lane] = -part[lane];
        if (k->x.a->grad_probe.data) {
            store_lane(&k->x.a->grad_probe, p->dtype, k->x.s.b, k->x.h, k->x.s.q0 + k->l.i0 + lane, k->grad,
                       lane, p->dim_qk);
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

static inline bool sums_to_zero(const block *k) { return !k->sc.mapped && !k->x.p->sink; }

/* middle: an x between the mean and the largest x of the row, from lse, where a score is scale x and nothing
 * else. The gradient of the scale is summed relative to middle, so that steep scores cost no precision. */
static inline void set_middle(const block *k, row_totals *sum)
{
    const bool told = sums_to_zero(k) && !k->sc.sloped && !k->sc.biased && k->x.p->scale != 0;
    for (int64_t lane = 0; told && lane < k->l.count; lane++) {
        const int64_t keys = k->l.hi[lane] - k->l.lo[lane];
        const float x = keys > 0 ? (k->lse[lane] - logf((float)keys)) / (float)k->x.p->scale : 0;
        sum->middle[lane] = fabsf(x) < 1e30f ? x : 0;
    }
}

/* s (q . k on entry) becomes ds factor. unmasked: tile_is_unmasked, no solved probe, and no row sum is needed
 * but that of ds factor. */
VEC_INLINE void row_gradient_of_tile(bool unmasked, bool probed, block *k, row_totals *sum)
{
    const bool solved = !unmasked && k->solved, by_max = !unmasked && k->by_max,
               by_trace = !unmasked && k->by_trace;
    const float inverse_d = 1 / (float)k->x.p->dim_qk;
    FOR_LANES(lane)
    {
        const vec lse = finite_or_zero(v_load(k->lse + lane)), gbar = v_load(k->gbar + lane),
                  e = v_load(k->e + lane);
        const vec rho_kbar = v_load(k->rho_kbar + lane), y_kbar = v_load(k->y_kbar + lane);
        const vec gbar_rest = v_load(k->gbar_rest + lane), rho_rest = v_load(k->rho_rest + lane),
                  y_rest = v_load(k->y_rest + lane);
        vec inner = v_load(sum->inner + lane), scale = v_load(sum->scale + lane),
            slope = v_load(sum->slope + lane), large = v_load(sum->large + lane);
        vec mean = v_load(sum->mean + lane), total = v_load(sum->total + lane);
        const vec middle = v_load(sum->middle + lane);
        for (int64_t r = 0; r < k->tile.n; r++) {
            const int64_t at = r * LANES + lane;
            const int32_t j = (int32_t)(k->tile.j + r);
            vec x, factor, excess = v_set(0);
            const vec s = score_from(unmasked, &k->sc, &k->l, &k->tile, r, lane, v_load(k->s + at), &x,
                                     &factor);
            const vec p = weight_of(s, lse);
            if (by_trace) {
                excess = (k->tile.norm[r] - 2.0f * v_load(k->w + at) + v_load(k->kbar2 + lane)) * inverse_d -
                         v_load(k->trace + lane);
            }
            const pair_terms pair = pair_of(
                by_max, by_trace, p, probed ? v_load(k->u + at) - rho_kbar - rho_rest : v_set(0),
                v_load(k->g + at) - gbar - gbar_rest, solved ? v_load(k->t + at) - y_kbar - y_rest : v_set(0),
                e, v_load_int(k->peak + lane) == j, v_load(k->spread + lane), excess);
            const vec ds = pair.ds * factor;
            inner += ds;
            if (!unmasked) {
                scale += ds * (x - middle);
                large += ds * ((x - middle) * 0x1p-100f);
                mean += p * (x - middle);
                total += pair.ds;
                slope -= pair.ds * score_distance(&k->l, j, lane);
            }
            v_store(k->s + at, ds);
        }
        v_store(sum->inner + lane, inner);
        v_store(sum->scale + lane, scale);
        v_store(sum->mean + lane, mean);
        v_store(sum->total + lane, total);
        v_store(sum->large + lane, large);
        v_store(sum->slope + lane, slope);
    }
}

static inline void tile_row_gradient(block *k, row_totals *sum)
{
    const bool unmasked = tile_is_unmasked(&k->sc, &k->l, &k->tile) && !k->solved && !k->x.a->grad_scale;
    if (unmasked && k->probed)
        row_gradient_of_tile(true, true, k, sum);
    else if (unmasked)
        row_gradient_of_tile(true, false, k, sum);
    else
        row_gradient_of_tile(false, k->probed, k, sum);
}

/* grad <- sum ds factor k'. */
static inline void sweep_query(block *k, row_totals *sum)
{
    const int64_t d = k->x.p->dim_qk;
    float taken[LANES] = { 0 };
    set_middle(k, sum);
    panel_fill(k->grad, d, 0);
    for (int64_t j = k->l.first; j < k->l.last; j += TILE_KEYS) {
        if (k->solved)
            key_tile_load(&k->tile, &k->x, j, k->l.last);
        else
            score_tile_load(&k->tile, &k->x, j, k->l.last);
        key_products(k->s, &k->x, &k->tile, k->query, k->query_pairs);
        value_products(k);
        if (k->probed && !k->solved) key_products(k->u, &k->x, &k->tile, k->probe, k->probe_pairs);
        if (k->solved) {
            panel_product(k->u, k->tile.n, k->tile.keys, d, 1, k->probe, d, false);
            panel_product(k->t, k->tile.n, k->tile.keys, d, 1, k->y, d, false);
        }
        if (k->by_trace) panel_product(k->w, k->tile.n, k->tile.keys, d, 1, k->kbar, d, false);
        tile_row_gradient(k, sum);
        add_keys(k, k->s, taken);
    }
    subtract_common(k->grad, &k->x, taken);
    for (int lane = 0; lane < LANES; lane++) {
        /* The sum of ds is 0: its rounding error, at the mean of x, is subtracted. */
        const float rest = sum->inner[lane] * sum->mean[lane];
        sum->scale[lane] -= sums_to_zero(k) && fabsf(rest) < INFINITY ? rest : 0;
        sum->inner[lane] = sums_to_zero(k) ? 0 : sum->inner[lane];
        if (!k->sc.mapped) {
            sum->scale[lane] += sum->inner[lane] * k->l.constant[lane];
            sum->large[lane] += sum->inner[lane] * (k->l.constant[lane] * 0x1p-100f);
        }
    }
}

/* dq = scale sum ds factor (k or k - q) - y. */
static inline void put_query_gradient(block *k, const row_totals *sum)
{
    const loam_problem *p = k->x.p;
    for (int64_t c = 0; c < p->dim_qk; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec inner = v_load(sum->inner + lane);
            const vec from = k->sc.rbf ? -v_load(k->query + at) : v_set(k->x.origin[c]);
            v_store(k->grad + at, k->sc.scale * (v_load(k->grad + at) + inner * from) - v_load(k->y + at));
        }
    }
    for (int64_t lane = 0; k->x.a->grad_q.data && lane < k->l.count; lane++) {
        store_lane(&k->x.a->grad_q, p->dtype, k->x.s.b, k->x.h, k->x.s.q0 + k->l.i0 + lane, k->grad, lane,
                   p->dim_qk);
    }
}

static inline void put_rows(const block *k, const row_arrays *rows, const row_totals *sum)
{
    const loam_problem *p = k->x.p;
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        const int64_t at = local_row(p, &k->x.s, k->x.h, k->l.i0 + lane);
        rows->record[at] = (row_record){ .lse = k->lse[lane],
                                         .gbar = k->gbar[lane],
                                         .gbar_rest = k->gbar_rest[lane],
                                         .rho_kbar = k->rho_kbar[lane],
                                         .rho_rest = k->rho_rest[lane],
                                         .y_rest = k->y_rest[lane],
                                         .y_kbar = k->y_kbar[lane],
                                         .x0 = k->l.x0[lane],
                                         .e = k->e[lane],
                                         .spread = k->spread[lane],
                                         .trace = k->trace[lane],
                                         .kbar2 = k->kbar2[lane],
                                         .peak = k->by_max ? k->peak[lane] : -1,
                                         .lo = k->l.lo[lane],
                                         .hi = k->l.hi[lane] };
        for (int64_t c = 0; k->solved && c < p->dim_qk; c++) {
            rows->y[at * p->dim_qk + c] = k->y[c * LANES + lane];
            rows->rho_u[at * p->dim_qk + c] = k->probe[c * LANES + lane];
        }
        rows->sums.scale[at] = fabsf(sum->scale[lane]) < INFINITY ? (double)sum->scale[lane]
                                                                  : (double)sum->large[lane] * 0x1p100;
        if (p->slope) rows->sums.slope[at] = (double)sum->slope[lane];
        if (p->decay) rows->sums.inner[at] = (double)sum->total[lane];
        if (p->sink) {
            const double sink = (double)((const float *)k->x.a->sink)[k->x.h];
            rows->sums.sink[at] = -exp(sink - (double)k->l.dropped[lane] - (double)k->lse[lane]) *
                                  (double)k->gbar[lane];
        }
    }
}

static inline void backward_rows(block *k, const row_arrays *rows, int64_t i0)
{
    float square[LANES] = { 0 };
    row_totals sum = { .inner = { 0 } };
    load_lanes(k, i0);
    if (k->probed) sweep_probe(k, square);
    if (k->solved) {
        solve_adjoint(k, square);
        /* If Lambda is a multiple of I, y lies in the span of the keys, and y . rho needs only that
         * part of rho. */
        const bool by_channel = k->x.p->ridge_axes == LOAM_RIDGE_CHANNEL;
        if (by_channel) ridge_gradient(k, rows);
        span_probes(k);
        if (!by_channel) ridge_gradient(k, rows);
        sweep_centres(k);
    } else if (k->probed) {
        given_gradient(k);
    }
    sweep_query(k, &sum);
    put_query_gradient(k, &sum);
    put_rows(k, rows, &sum);
}

#endif
