/* SPDX-License-Identifier: MIT
 *
 * Backward on CPUs, compiled once per instruction set. The formulas are those of local_backward_ref.c, from the
 * rows that forward saved. Two passes, so that no thread adds to what another writes:
 *
 *   rows   lanes are queries: drho, the adjoint solve for y, the row constants, dq
 *   keys   lanes are keys: all queries that see them stream by; dk and dv stay in the block
 *
 * What the second pass needs of a row lies in the workspace as floats: y and a row_record.
 */
#include "src/local/local_row64.h"
#include "src/local/local_solve.h"

#include <omp.h>

typedef struct row_record {
    float lse;
    float gbar, gbar_rest;    /* do . vbar, and what the weighted mean of the g_ij adds to it */
    float rho_kbar, rho_rest; /* rho . kbar = rho_kbar + rho_rest: see sweep_centres */
    float y_kbar, y_rest;
    float e;             /* the constant of ds = p ((1 - u) E + e) */
    float spread, trace; /* ridge relative to the trace: e / unit, and trace / dim */
    float kbar2;         /* |kbar|^2 */
    int32_t peak;        /* ridge relative to the largest weight: its key; else -1 */
    int32_t lo, hi;
} row_record;

/* The arrays over rows, shared by all threads. */
typedef struct row_arrays {
    row_record *record;
    float *y; /* [rows][dim_qk], LLA */
    local_row_sums sums;
} row_arrays;

static row_arrays row_arrays_carve(const loam_problem *p, arena *pool)
{
    const size_t rows = (size_t)local_rows(p);
    row_arrays x;
    x.record = arena_take(pool, rows, sizeof(row_record));
    x.y = arena_take(pool, p->mechanism == LOAM_LLA ? size_mul(rows, (size_t)p->dim_qk) : 0, sizeof(float));
    x.sums = local_row_sums_carve(p, pool);
    return x;
}

typedef struct block {
    head x;
    scoring sc;
    bool probed, solved, by_max, by_trace;
    lanes l;
    key_tile tile;
    row_record lane[LANES];
    float lse[LANES], gbar[LANES], gbar_rest[LANES], rho_kbar[LANES], rho_rest[LANES], y_kbar[LANES],
        y_rest[LANES], e[LANES], spread[LANES], trace[LANES], kbar2[LANES], inverse[LANES], unit[LANES];
    int32_t peak[LANES];
    float *values;                                 /* [TILE][dim_v] */
    float *s, *t, *u, *g, *w;                      /* [TILE][LANES] */
    float *query, *probe, *y, *grad;               /* [dim_qk][LANES]; grad: of q or k */
    float *grad_o, *grad_v;                        /* [dim_v][LANES]; grad_v with lanes as keys */
    float *kbar, *lambda, *work[3];                /* [dim_qk][LANES], LLA */
    float *weights;                                /* [len_kv][LANES], LLA */
    float *rows_q, *rows_rho, *rows_y, *rows_kbar; /* [TILE][dim_qk]: queries that stream by the keys */
    float *rows_do;                                /* [TILE][dim_v] */
    row64 row;
} block;

static void block_carve(block *k, const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, wide = d > dv ? d : dv, f = sizeof(float);
    const bool solved = p->mechanism == LOAM_LLA, probed = p->mechanism != LOAM_SOFTMAX;
    float **const tiles[] = { &k->s, &k->t, &k->u, &k->g, &k->w };
    float **const panels[] = { &k->query, &k->probe, &k->y, &k->grad, &k->kbar, &k->lambda };
    float **const rows[] = { &k->rows_q, &k->rows_rho, &k->rows_y, &k->rows_kbar };
    k->tile.keys = arena_take(pool, TILE * wide, f);
    k->values = arena_take(pool, TILE * dv, f);
    for (size_t n = 0; n < sizeof tiles / sizeof *tiles; n++) {
        *tiles[n] = arena_take(pool, TILE * LANES, f);
    }
    for (size_t n = 0; n < sizeof panels / sizeof *panels; n++) {
        *panels[n] = arena_take(pool, d * LANES, f);
    }
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        *rows[n] = arena_take(pool, probed || n == 0 ? TILE * d : 0, f);
    }
    k->grad_o = arena_take(pool, dv * LANES, f);
    k->grad_v = arena_take(pool, dv * LANES, f);
    k->rows_do = arena_take(pool, TILE * dv, f);
    for (int n = 0; n < 3; n++) {
        k->work[n] = arena_take(pool, solved ? d * LANES : 0, f);
    }
    k->weights = arena_take(pool, solved ? size_mul((size_t)p->len_kv, LANES) : 0, f);
    if (solved) {
        k->row = row64_carve(p, pool);
    }
}

static size_t block_bytes(const loam_problem *p)
{
    block k;
    arena pool = { 0 };
    block_carve(&k, p, &pool);
    return pool.used;
}

static void block_begin(block *k, const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h)
{
    head_begin(&k->x, p, a, s, h);
    k->sc = scoring_of(&k->x);
    k->probed = p->mechanism != LOAM_SOFTMAX;
    k->solved = p->mechanism == LOAM_LLA;
    k->by_max = k->solved && p->ridge_unit == LOAM_RIDGE_MAX;
    k->by_trace = k->solved && p->ridge_unit == LOAM_RIDGE_TRACE;
}

/* ================================================================== rows */

/* A panel from dense rows of the saved arrays. */
static void load_saved(block *k, float *restrict panel, const void *saved, int64_t channels)
{
    const int64_t at = local_row(k->x.p, &k->x.s, k->x.h, k->l.i0);
    transpose(panel, (const float *)saved + at * channels, k->l.count, channels);
}

static void load_lanes(block *k, int64_t i0)
{
    const loam_problem *p = k->x.p;
    const loam_args *a = k->x.a;
    const int64_t d = p->dim_qk, dv = p->dim_v;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    lanes_begin(&k->l, &k->x, i0, k->query, k->tile.keys);
    load_rows(k->rows_do, &a->grad_o, p->dtype, k->x.s.b, k->x.h, k->x.s.q0 + i0, k->l.count, dv);
    transpose(k->grad_o, k->rows_do, k->l.count, dv);
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
    for (int64_t lane = 0; p->mechanism == LOAM_PARALLAX && lane < k->l.count; lane++) {
        k->rho_kbar[lane] = ((const float *)saved.tbar)[2 * (at + lane)];
        k->rho_rest[lane] = ((const float *)saved.tbar)[2 * (at + lane) + 1];
    }
}

/* p of the tile into w. Where scores are wanted for the peak, best and peak follow them. */
static void tile_weights(block *k, float *restrict w, float *restrict best)
{
    FOR_LANES(lane)
    {
        const vec lse = finite_or_zero(v_load(k->lse + lane));
        vec top = v_load(best + lane);
        vmask peak = v_load_int(k->peak + lane);
        for (int64_t r = 0; r < k->tile.n; r++) {
            float *at = w + r * LANES + lane;
            vec factor;
            const vec s = score_masked(&k->sc, &k->l, &k->tile, r, lane,
                                       score_argument(&k->sc, &k->l, &k->tile, r, lane, v_load(at)), &factor);
            const vmask higher = s > top;
            top = v_select(higher, s, top);
            peak = (higher & (int32_t)(k->tile.j + r)) | (~higher & peak);
            v_store(at, weight_of(s, lse));
        }
        v_store(best + lane, top);
        memcpy(k->peak + lane, &peak, sizeof peak);
    }
}

/* g of the tile becomes p (g - gbar); its column sums go to total; square gathers p |k'|^2. */
static void weigh_errors(block *k, const float *restrict w, float *restrict total, float *restrict square)
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

/* drho = -sum p (g - gbar) kappa into grad; for LLA the weights stay. The column sum of p (g - gbar) is 0 but for
 * rounding, and is taken out where the mean key is known. */
static void sweep_probe(block *k, float *restrict square)
{
    const int64_t d = k->x.p->dim_qk, dv = k->x.p->dim_v;
    float total[LANES] = { 0 }, best[LANES], minus[LANES];
    panel_fill(best, 1, -INFINITY);
    panel_fill(k->grad, d, 0);
    for (int64_t j = k->l.first; j < k->l.last; j += TILE) {
        float *w = k->solved ? k->weights + (j - k->l.first) * LANES : k->w;
        key_tile_load(&k->tile, &k->x, j, k->l.last);
        load_values(k->values, &k->x, j, k->tile.n);
        panel_product(w, k->tile.n, k->tile.keys, d, 1, k->query, d, false);
        tile_weights(k, w, best);
        panel_product(k->g, k->tile.n, k->values, dv, 1, k->grad_o, dv, false);
        weigh_errors(k, w, total, square);
        panel_product(k->grad, d, k->tile.keys, 1, d, k->g, k->tile.n, true);
    }
    panel_fill(minus, 1, -1);
    memcpy(k->gbar_rest, total, sizeof total);
    if (k->solved) {
        for (int lane = 0; lane < LANES; lane++) {
            total[lane] = -total[lane];
        }
        panel_axpy(k->grad, d, total, k->kbar);
    }
    panel_scale(k->grad, d, minus);
}

static void set_ridge(block *k, const float *square, bool *wanted)
{
    const loam_problem *p = k->x.p;
    const int64_t d = p->dim_qk;
    for (int64_t lane = 0; lane < LANES; lane++) {
        const bool some = k->l.lo[lane] < k->l.hi[lane];
        const float variance = fmaxf(square[lane] - k->kbar2[lane], 0) / (float)d;
        double least = INFINITY;
        k->trace[lane] = variance;
        if (k->by_trace) {
            k->unit[lane] = variance + (float)LOCAL_TRACE_FLOOR;
        }
        for (int64_t c = 0; c < d; c++) {
            const double ridge = some ? (double)k->unit[lane] *
                                            local_ridge(p, k->x.a, &k->x.s, k->x.h, k->l.i0 + lane, c)
                                      : 0;
            k->lambda[c * LANES + lane] = (float)ridge;
            least = fmin(least, ridge);
        }
        wanted[lane] = some && square[lane] < INFINITY && least > (double)(BLOCK_LEAST_RIDGE * variance);
    }
}

/* The weight of the peak key: the unit of LOAM_RIDGE_MAX. */
static void set_max_unit(block *k)
{
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        if (k->l.lo[lane] < k->l.hi[lane]) {
            k->unit[lane] = k->weights[(k->peak[lane] - k->l.first) * LANES + lane];
        }
    }
}

/* y = (Cov + Lambda)^-1 drho */
static void solve_adjoint(block *k, const float *square)
{
    const int64_t d = k->x.p->dim_qk;
    const block_system sys = { .x = &k->x,
                               .l = &k->l,
                               .tile = &k->tile,
                               .product = k->s,
                               .weights = k->weights,
                               .inverse = k->inverse,
                               .kbar = k->kbar,
                               .lambda = k->lambda,
                               .r = k->work[0],
                               .direction = k->work[1],
                               .image = k->work[2] };
    block_result result;
    bool wanted[LANES];
    if (k->by_max) {
        set_max_unit(k);
    }
    set_ridge(k, square, wanted);
    block_solve(&sys, k->grad, wanted, k->y, &result);
    for (int64_t lane = 0; lane < k->l.count; lane++) {
        if (k->l.lo[lane] < k->l.hi[lane] && !result.accepted[lane]) {
            row64_adjoint(&k->row, &k->x, &k->sc, k->l.i0 + lane);
            for (int64_t c = 0; c < d; c++) {
                k->y[c * LANES + lane] = (float)k->row.rho[c];
            }
        }
    }
}

/* sum += w (product - centre) */
static void centre_products(const float *restrict w, const float *restrict product,
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

/* rho . kbar and y . kbar as the product with the peak key plus a rest, the weighted mean of the products that u and
 * t are taken from relative to that one. Where a key has nearly all the weight and rho is large, u_j is then small
 * to its own precision, not to that of rho . k. */
static void sweep_centres(block *k)
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
    for (int64_t j = k->l.first; j < k->l.last; j += TILE) {
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

/* e = -y . Lambda rho and the ridge's gradient, -unit y rho. */
static void ridge_gradient(block *k, const row_arrays *rows)
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

/* drho of a given probe, and e = -rho . drho. */
static void given_gradient(block *k)
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

/* What one pair says: ds = d loss / d s, and the pieces that dk and dv need. */
typedef struct pair_terms {
    vec ds, error, kept, spread; /* spread: p x of the trace unit */
} pair_terms;

VEC_INLINE pair_terms pair_of(bool by_max, bool by_trace, vec p, vec u, vec g, vec t, vec e, vmask at_peak,
                              vec spread, vec excess)
{
    const vec error = g + t, kept = p * (1.0f - u);
    pair_terms out = { kept * error, p * error, kept, p * spread };
    out.ds += by_max ? v_select(at_peak, e, v_set(0)) : p * e;
    if (by_trace) {
        out.ds += out.spread * excess;
    }
    return out;
}

/* Sums over the keys of a row that only its own parameters need. Without a soft cap and a sink the ds of a row sum
 * to 0: then what x has in common for all keys drops out, and keys far from the origin cost no precision. */
typedef struct row_totals {
    float inner[LANES], scale[LANES], slope[LANES]; /* of ds factor, ds factor x, -ds distance */
} row_totals;

static bool sums_to_zero(const block *k) { return !k->sc.capped && !k->x.p->sink; }

/* s (x on entry) becomes ds factor. */
static void tile_row_gradient(block *k, row_totals *sum)
{
    const float inverse_d = 1 / (float)k->x.p->dim_qk;
    FOR_LANES(lane)
    {
        const vec lse = finite_or_zero(v_load(k->lse + lane)), gbar = v_load(k->gbar + lane),
                  e = v_load(k->e + lane);
        const vec rho_kbar = v_load(k->rho_kbar + lane), y_kbar = v_load(k->y_kbar + lane);
        const vec gbar_rest = v_load(k->gbar_rest + lane), rho_rest = v_load(k->rho_rest + lane),
                  y_rest = v_load(k->y_rest + lane);
        vec inner = v_load(sum->inner + lane), scale = v_load(sum->scale + lane),
            slope = v_load(sum->slope + lane);
        for (int64_t r = 0; r < k->tile.n; r++) {
            const int64_t at = r * LANES + lane;
            const int32_t j = (int32_t)(k->tile.j + r);
            const vec x = score_argument(&k->sc, &k->l, &k->tile, r, lane, v_load(k->s + at));
            vec factor, excess = v_set(0);
            const vec p = weight_of(score_masked(&k->sc, &k->l, &k->tile, r, lane, x, &factor), lse);
            if (k->by_trace) {
                excess = (k->tile.norm[r] - 2.0f * v_load(k->w + at) + v_load(k->kbar2 + lane)) * inverse_d -
                         v_load(k->trace + lane);
            }
            const pair_terms pair = pair_of(
                k->by_max, k->by_trace, p, k->probed ? v_load(k->u + at) - rho_kbar - rho_rest : v_set(0),
                v_load(k->g + at) - gbar - gbar_rest,
                k->solved ? v_load(k->t + at) - y_kbar - y_rest : v_set(0), e,
                v_load_int(k->peak + lane) == j, v_load(k->spread + lane), excess);
            const vec ds = pair.ds * factor;
            inner += ds;
            scale += ds * x;
            slope -= pair.ds * score_distance(&k->l, j, lane);
            v_store(k->s + at, ds);
        }
        inner = sums_to_zero(k) ? v_set(0) : inner;
        v_store(sum->inner + lane, inner);
        v_store(sum->scale + lane, k->sc.capped ? scale : scale + inner * v_load(k->l.constant + lane));
        v_store(sum->slope + lane, slope);
    }
}

/* grad <- sum ds factor k' */
static void sweep_query(block *k, row_totals *sum)
{
    const int64_t d = k->x.p->dim_qk, dv = k->x.p->dim_v;
    panel_fill(k->grad, d, 0);
    for (int64_t j = k->l.first; j < k->l.last; j += TILE) {
        key_tile_load(&k->tile, &k->x, j, k->l.last);
        load_values(k->values, &k->x, j, k->tile.n);
        panel_product(k->s, k->tile.n, k->tile.keys, d, 1, k->query, d, false);
        panel_product(k->g, k->tile.n, k->values, dv, 1, k->grad_o, dv, false);
        if (k->probed) {
            panel_product(k->u, k->tile.n, k->tile.keys, d, 1, k->probe, d, false);
        }
        if (k->solved) {
            panel_product(k->t, k->tile.n, k->tile.keys, d, 1, k->y, d, false);
        }
        if (k->by_trace) {
            panel_product(k->w, k->tile.n, k->tile.keys, d, 1, k->kbar, d, false);
        }
        tile_row_gradient(k, sum);
        panel_product(k->grad, d, k->tile.keys, 1, d, k->s, k->tile.n, true);
    }
}

/* dq = scale sum ds (k or k - q) - y */
static void put_query_gradient(block *k, const row_totals *sum)
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

static void put_rows(const block *k, const row_arrays *rows, const row_totals *sum)
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
                                         .e = k->e[lane],
                                         .spread = k->spread[lane],
                                         .trace = k->trace[lane],
                                         .kbar2 = k->kbar2[lane],
                                         .peak = k->by_max ? k->peak[lane] : -1,
                                         .lo = k->l.lo[lane],
                                         .hi = k->l.hi[lane] };
        for (int64_t c = 0; k->solved && c < p->dim_qk; c++) {
            rows->y[at * p->dim_qk + c] = k->y[c * LANES + lane];
        }
        rows->sums.scale[at] = (double)sum->scale[lane];
        if (p->slope) {
            rows->sums.slope[at] = (double)sum->slope[lane];
        }
        if (p->sink) {
            const double sink = (double)((const float *)k->x.a->sink)[k->x.h];
            rows->sums.sink[at] = -exp(sink - (double)k->l.dropped[lane] - (double)k->lse[lane]) *
                                  (double)k->gbar[lane];
        }
    }
}

static void backward_rows(block *k, const row_arrays *rows, int64_t i0)
{
    float square[LANES] = { 0 };
    row_totals sum = { { 0 }, { 0 }, { 0 } };
    load_lanes(k, i0);
    if (k->probed) {
        sweep_probe(k, square);
    }
    if (k->solved) {
        solve_adjoint(k, square);
        sweep_centres(k);
        ridge_gradient(k, rows);
    } else if (k->probed) {
        given_gradient(k);
    }
    sweep_query(k, &sum);
    put_query_gradient(k, &sum);
    put_rows(k, rows, &sum);
}

/* ================================================================== keys: lanes are keys j0 .. j0 + count - 1 */

typedef struct key_lanes {
    int64_t j0, count;
    int32_t j[LANES];
    float at[LANES], norm[LANES], bias[LANES];
    float *grad_bias;    /* [LANES], of one head */
    float inner[LANES];  /* sum of ds factor, for RBF */
    float spread[LANES]; /* sum of p x of the trace unit */
} key_lanes;

static void load_key_lanes(block *k, key_lanes *l, float *restrict keys, float *restrict values)
{
    const int64_t d = k->x.p->dim_qk;
    load_keys(k->tile.keys, &k->x, l->j0, l->count);
    transpose(keys, k->tile.keys, l->count, d);
    load_values(k->values, &k->x, l->j0, l->count);
    transpose(values, k->values, l->count, k->x.p->dim_v);
    panel_dot(l->norm, keys, keys, d);
    for (int lane = 0; lane < LANES; lane++) {
        l->j[lane] = lane < l->count ? (int32_t)(l->j0 + lane) : INT32_MAX;
        l->at[lane] = (float)(l->j0 + lane);
        l->inner[lane] = l->spread[lane] = 0;
    }
}

/* A tile of queries, with what forward and the first pass left of their rows. */
typedef struct query_tile {
    int64_t i, n;
    float x0[TILE], at[TILE];
    const row_record *record;
} query_tile;

static void load_query_tile(block *k, query_tile *t, const row_arrays *rows)
{
    const loam_problem *p = k->x.p;
    const loam_args *a = k->x.a;
    const int64_t d = p->dim_qk, row = local_row(p, &k->x.s, k->x.h, t->i), token = k->x.s.q0 + t->i;
    const size_t bytes = (size_t)(t->n * d) * sizeof(float);
    t->record = rows->record + row;
    load_queries(k->rows_q, &k->x, t->i, t->n);
    load_rows(k->rows_do, &a->grad_o, p->dtype, k->x.s.b, k->x.h, token, t->n, p->dim_v);
    if (k->solved) {
        const local_saved saved = local_saved_carve(p, a->saved, NULL);
        memcpy(k->rows_rho, (const float *)saved.rho + row * d, bytes);
        memcpy(k->rows_kbar, (const float *)saved.kbar + row * d, bytes);
        memcpy(k->rows_y, rows->y + row * d, bytes);
    } else if (k->probed) {
        load_rows(k->rows_rho, &a->probe, p->dtype, k->x.s.b, k->x.h, token, t->n, d);
    }
    for (int64_t r = 0; r < t->n; r++) {
        t->x0[r] = k->sc.capped ? query_constant(&k->x, k->rows_q + r * d) : 0;
        t->at[r] = (float)(t->i + r + k->x.s.nk - k->x.s.nq);
    }
}

/* Products in s, g, u, t, w become: s scale ds factor, u -p E, t p (1 - u), w p x of the trace unit. */
static void tile_key_gradient(block *k, key_lanes *l, const query_tile *q)
{
    const float inverse_d = 1 / (float)k->x.p->dim_qk;
    for (int64_t r = 0; r < q->n; r++) {
        const row_record *row = &q->record[r];
        const float lse = row->lse > -INFINITY ? row->lse : 0;
        FOR_LANES(lane)
        {
            const int64_t at = r * LANES + lane;
            const vmask j = v_load_int(l->j + lane), seen = (j >= row->lo) & (j < row->hi);
            vec x = v_load(k->s + at) + q->x0[r], factor, excess = v_set(0);
            if (k->sc.rbf) {
                x -= 0.5f * v_load(l->norm + lane);
            }
            x = v_clamp(x, SCORE_LIMIT);
            const vec s = score_of(&k->sc, x, v_abs(v_load(l->at + lane) - q->at[r]), v_load(l->bias + lane),
                                   &factor);
            const vec p = weight_of(v_select(seen, s, v_set(-INFINITY)), v_set(lse));
            if (k->by_trace) {
                excess = (v_load(l->norm + lane) - 2.0f * v_load(k->w + at) + row->kbar2) * inverse_d -
                         row->trace;
            }
            const pair_terms pair = pair_of(
                k->by_max, k->by_trace, p,
                k->probed ? v_load(k->u + at) - row->rho_kbar - row->rho_rest : v_set(0),
                v_load(k->g + at) - row->gbar - row->gbar_rest,
                k->solved ? v_load(k->t + at) - row->y_kbar - row->y_rest : v_set(0), v_set(row->e),
                j == row->peak, v_set(row->spread), excess);
            const vec ds = pair.ds * factor;
            v_store(l->grad_bias + lane, v_load(l->grad_bias + lane) + pair.ds);
            v_store(l->inner + lane, v_load(l->inner + lane) + ds);
            v_store(l->spread + lane, v_load(l->spread + lane) + pair.spread);
            v_store(k->s + at, ds * k->sc.scale);
            v_store(k->u + at, -pair.error);
            v_store(k->t + at, pair.kept);
            v_store(k->w + at, -2.0f * inverse_d * pair.spread);
        }
    }
}

static void keys_from_tile(block *k, key_lanes *l, query_tile *q, const row_arrays *rows, const float *keys,
                           const float *values)
{
    const int64_t d = k->x.p->dim_qk, dv = k->x.p->dim_v;
    load_query_tile(k, q, rows);
    panel_product(k->s, q->n, k->rows_q, d, 1, keys, d, false);
    panel_product(k->g, q->n, k->rows_do, dv, 1, values, dv, false);
    if (k->probed) {
        panel_product(k->u, q->n, k->rows_rho, d, 1, keys, d, false);
    }
    if (k->solved) {
        panel_product(k->t, q->n, k->rows_y, d, 1, keys, d, false);
    }
    if (k->by_trace) {
        panel_product(k->w, q->n, k->rows_kbar, d, 1, keys, d, false);
    }
    tile_key_gradient(k, l, q);
    panel_product(k->grad_v, dv, k->rows_do, 1, dv, k->t, q->n, true);
    panel_product(k->grad, d, k->rows_q, 1, d, k->s, q->n, true);
    if (k->probed) {
        panel_product(k->grad, d, k->rows_rho, 1, d, k->u, q->n, true);
    }
    if (k->solved) {
        panel_product(k->grad, d, k->rows_y, 1, d, k->t, q->n, true);
    }
    if (k->by_trace) {
        panel_product(k->grad, d, k->rows_kbar, 1, d, k->w, q->n, true);
    }
}

static void put_bias_gradient(const block *k, const key_lanes *l)
{
    const loam_view *out = &k->x.a->grad_key_bias;
    for (int64_t lane = 0; out->data && lane < l->count; lane++) {
        ((float *)out->data)[LOCAL_AT(*out, k->x.s.b, k->x.h, k->x.s.k0 + l->j0 + lane)] = l->grad_bias[lane];
    }
}

/* All queries of one head, tile by tile; what a query sees moves right with it, so most tiles are left out. */
static void keys_from_head(block *k, key_lanes *l, const row_arrays *rows, const float *keys,
                           const float *values)
{
    float grad_bias[LANES] = { 0 };
    l->grad_bias = grad_bias;
    panel_fill(l->bias, 1, 0);
    load_bias(l->bias, &k->x, l->j0, l->count);
    for (int64_t i = 0; i < k->x.s.nq; i += TILE) {
        query_tile q = { .i = i, .n = k->x.s.nq - i < TILE ? k->x.s.nq - i : TILE };
        int64_t lo, hi, unused;
        local_visible(k->x.p, &k->x.s, i, &lo, &unused);
        local_visible(k->x.p, &k->x.s, i + q.n - 1, &unused, &hi);
        if (lo < l->j0 + l->count && hi > l->j0) {
            keys_from_tile(k, l, &q, rows, keys, values);
        }
    }
    put_bias_gradient(k, l);
}

/* RBF: dk also has -scale (sum ds) k'; trace: + 2/dim (sum p x) k'. */
static void finish_key_gradient(block *k, const key_lanes *l, const float *keys)
{
    const loam_problem *p = k->x.p;
    const float twice = 2 / (float)p->dim_qk;
    for (int64_t c = 0; (k->sc.rbf || k->by_trace) && c < p->dim_qk; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            vec times = k->by_trace ? twice * v_load(l->spread + lane) : v_set(0);
            if (k->sc.rbf) {
                times -= k->sc.scale * v_load(l->inner + lane);
            }
            v_store(k->grad + at, v_load(k->grad + at) + times * v_load(keys + at));
        }
    }
}

static void backward_keys(block *k, const row_arrays *rows, int64_t h_kv, int64_t j0, int64_t stored)
{
    const loam_problem *p = k->x.p;
    const loam_args *a = k->x.a;
    const local_seq s = k->x.s;
    const int64_t group = p->heads_q / p->heads_kv, token = s.k0 + j0;
    key_lanes l = { .j0 = j0, .count = s.nk - j0 < LANES ? s.nk - j0 : LANES };
    float *keys = k->query, *values = k->grad_o;
    panel_fill(k->grad, p->dim_qk, 0);
    panel_fill(k->grad_v, p->dim_v, 0);
    for (int64_t h = h_kv * group; l.count > 0 && h < (h_kv + 1) * group; h++) {
        block_begin(k, p, a, &s, h);
        if (h == h_kv * group) {
            load_key_lanes(k, &l, keys, values);
        }
        keys_from_head(k, &l, rows, keys, values);
    }
    if (l.count > 0) {
        finish_key_gradient(k, &l, keys);
    }
    for (int64_t lane = 0; lane < LANES && j0 + lane < stored; lane++) {
        if (a->grad_k.data) {
            store_lane(&a->grad_k, p->dtype, s.b, h_kv, token + lane, k->grad, lane, p->dim_qk);
        }
        if (a->grad_v.data) {
            store_lane(&a->grad_v, p->dtype, s.b, h_kv, token + lane, k->grad_v, lane, p->dim_v);
        }
    }
}

/* Keys beyond lens_kv belong to no query; their gradients are 0. */
static int64_t stored_keys(const loam_problem *p, const local_seq *s)
{
    return local_packed(p) ? s->nk : p->len_kv;
}

static void clear_bias_tail(const loam_problem *p, const loam_args *a)
{
    for (int64_t b = 0; p->key_bias && a->grad_key_bias.data && b < p->batch; b++) {
        const local_seq s = local_seq_at(p, a, b);
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t j = s.nk; j < stored_keys(p, &s); j++) {
                ((float *)a->grad_key_bias.data)[LOCAL_AT(a->grad_key_bias, s.b, h, s.k0 + j)] = 0;
            }
        }
    }
}

/* ================================================================== entry */

size_t LOCAL_JOIN(ISA(local_backward), work)(const loam_problem *p)
{
    arena pool = { 0 };
    row_arrays_carve(p, &pool);
    return size_add(pool.used, size_mul(block_bytes(p), (size_t)p->threads));
}

loam_status ISA(local_backward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t row_blocks = (p->len_q + LANES - 1) / LANES, key_blocks = (p->len_kv + LANES - 1) / LANES;
    const size_t each = block_bytes(p);
    arena shared = { a->work, 0 };
    const row_arrays rows = row_arrays_carve(p, &shared);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + shared.used + each * (size_t)omp_get_thread_num(), 0 };
        block k;
        block_carve(&k, p, &pool);
        /* The longest blocks first: late queries, early keys. */
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t back = 0; back < row_blocks; back++) {
            for (int64_t b = 0; b < p->batch; b++) {
                for (int64_t h = 0; h < p->heads_q; h++) {
                    const local_seq s = local_seq_at(p, a, b);
                    const int64_t i0 = (row_blocks - 1 - back) * LANES;
                    if (i0 < s.nq) {
                        block_begin(&k, p, a, &s, h);
                        backward_rows(&k, &rows, i0);
                    }
                }
            }
        }
#pragma omp for collapse(3) schedule(dynamic, 1)
        for (int64_t n = 0; n < key_blocks; n++) {
            for (int64_t b = 0; b < p->batch; b++) {
                for (int64_t h = 0; h < p->heads_kv; h++) {
                    const local_seq s = local_seq_at(p, a, b);
                    if (n * LANES < stored_keys(p, &s)) {
                        block_begin(&k, p, a, &s, h * (p->heads_q / p->heads_kv));
                        backward_keys(&k, &rows, h, n * LANES, stored_keys(p, &s));
                    }
                }
            }
        }
    }
    clear_bias_tail(p, a);
    local_row_sums_reduce(p, a, &rows.sums);
    return loam_succeed(error);
}
