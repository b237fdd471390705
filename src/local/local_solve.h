/* SPDX-License-Identifier: MIT
 *
 * Conjugate gradients for a block of rows at once: (Cov_i + Lambda_i) x_i = b_i, one row per lane, the weights
 * of the block cached. Cov x = sum_j p_j kappa_j (kappa_j . x) costs two panel products per iteration; the sum
 * of the centred weights, 0 but for rounding, is taken out again ("compensated centring").
 *
 * A lane stops by its own residual only, so that a row's bits do not depend on its neighbours. At the end the
 * true residual b - A x decides: rows that miss the tolerance are left to the direct solvers.
 */
#ifndef LOAM_LOCAL_LOCAL_SOLVE_H
#define LOAM_LOCAL_LOCAL_SOLVE_H

#include "src/local/local_tile.h"

enum { CG_MOST = 96 };

/* Rows whose least ridge is below this part of the mean variance of the keys go straight to float64. */
#define BLOCK_LEAST_RIDGE 1e-6f

/* A lane stops where its recursive residual, relative to b, is below `stop`. Its result is accepted where the true
 * one, times the square root of the estimated condition, is below `accept`: that bounds the relative error of x in
 * the norm of the system, which is the error that the output sees. Results of 16 bits need less. */
typedef struct cg_tolerance {
    float stop, accept;
} cg_tolerance;

static inline cg_tolerance cg_tolerance_of(loam_dtype dtype)
{
    return dtype == LOAM_F32 ? (cg_tolerance){ 3e-7f, 2e-5f } : (cg_tolerance){ 2e-6f, 1e-4f };
}

typedef struct block_system {
    const head *x;
    const lanes *l;
    key_tile *tile;
    float *product;               /* scratch [TILE][LANES] */
    const float *weights;         /* [last - first][LANES], not normalised */
    const float *inverse;         /* 1 / omega [LANES] */
    const float *kbar;            /* [dim_qk][LANES] relative to the origin */
    const float *lambda;          /* [dim_qk][LANES] */
    float *r, *direction, *image; /* scratch [dim_qk][LANES] */
} block_system;

/* Lambda of every lane. Lanes that are `wanted` go to the block solver: those that see a key, have not overflowed, and
 * whose ridge is not so small, against the variance of the keys, that only float64 can tell what is singular. */
typedef struct block_ridge {
    float variance[LANES]; /* trace of Cov / dim_qk */
    float unit[LANES];     /* of the ridge */
    bool wanted[LANES];
} block_ridge;

/* square: sum_j w_j |k'_j|^2; most: the largest p; lambda is written. */
static inline void block_ridge_set(block_ridge *out, const block_system *sys, const float *square,
                                   const float *most, float *restrict lambda)
{
    const loam_problem *p = sys->x->p;
    const int64_t d = p->dim_qk;
    const bool by_trace = p->ridge_unit == LOAM_RIDGE_TRACE, by_max = p->ridge_unit == LOAM_RIDGE_MAX;
    float centre2[LANES], spread[LANES];
    panel_dot(centre2, sys->kbar, sys->kbar, d);
    if (by_trace) {
        sum_spread(spread, sys->x, sys->l, sys->tile, sys->weights, sys->kbar);
    }
    for (int64_t lane = 0; lane < LANES; lane++) {
        const bool some = sys->l->lo[lane] < sys->l->hi[lane];
        const float rough = fmaxf(square[lane] * sys->inverse[lane] - centre2[lane], 0);
        const float variance = (by_trace ? spread[lane] * sys->inverse[lane] : rough) / (float)d;
        const float unit = by_max ? most[lane] : by_trace ? variance + (float)LOCAL_TRACE_FLOOR : 1;
        double least = INFINITY;
        for (int64_t c = 0; c < d; c++) {
            const double ridge = some ? (double)unit * local_ridge(p, sys->x->a, &sys->x->s, sys->x->h,
                                                                   sys->l->i0 + lane, c)
                                      : 0;
            lambda[c * LANES + lane] = (float)ridge;
            least = fmin(least, ridge);
        }
        out->variance[lane] = variance;
        out->unit[lane] = unit;
        out->wanted[lane] = some && square[lane] < INFINITY && least > (double)(BLOCK_LEAST_RIDGE * variance);
    }
}

typedef struct block_result {
    float residual[LANES]; /* |b - A x| / |b| */
    int32_t iterations[LANES];
    bool accepted[LANES];
} block_result;

/* product <- w (kappa . v) for one tile; adds its column sums to total */
static inline void centred_weights(const block_system *sys, const float *restrict v_kbar,
                                   float *restrict total)
{
    const float *w = sys->weights + (sys->tile->j - sys->l->first) * LANES;
    FOR_LANES(lane)
    {
        const vec centre = v_load(v_kbar + lane);
        vec sum = v_load(total + lane);
        for (int64_t r = 0; r < sys->tile->n; r++) {
            float *at = sys->product + r * LANES + lane;
            const vec f = v_load(w + r * LANES + lane) * (v_load(at) - centre);
            sum += f;
            v_store(at, f);
        }
        v_store(total + lane, sum);
    }
}

/* image <- (Cov + Lambda) v */
static inline void block_apply(const block_system *sys, const float *restrict v, float *restrict image)
{
    const int64_t d = sys->x->p->dim_qk;
    float v_kbar[LANES], total[LANES] = { 0 };
    panel_dot(v_kbar, v, sys->kbar, d);
    panel_fill(image, d, 0);
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE) {
        key_tile_load(sys->tile, sys->x, j, sys->l->last);
        panel_product(sys->product, sys->tile->n, sys->tile->keys, d, 1, v, d, false);
        centred_weights(sys, v_kbar, total);
        panel_product(image, d, sys->tile->keys, 1, d, sys->product, sys->tile->n, true);
    }
    for (int64_t c = 0; c < d; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec cov = (v_load(image + at) - v_load(total + lane) * v_load(sys->kbar + at)) *
                            v_load(sys->inverse + lane);
            v_store(image + at, cov + v_load(sys->lambda + at) * v_load(v + at));
        }
    }
}

/* What the steps of a lane have in common: |r|^2, whether it goes on, the |r|^2 to stop at, and the smallest and
 * largest Rayleigh quotients met, which estimate the condition. */
typedef struct cg_lanes {
    float rr[LANES], live[LANES], stop[LANES], least[LANES], most[LANES];
} cg_lanes;

static inline void cg_step(const block_system *sys, float *restrict x, cg_lanes *k)
{
    const int64_t d = sys->x->p->dim_qk;
    float curvature[LANES], size[LANES], step[LANES], back[LANES], next[LANES], turn[LANES];
    block_apply(sys, sys->direction, sys->image);
    panel_dot(curvature, sys->direction, sys->image, d);
    panel_dot(size, sys->direction, sys->direction, d);
    for (int lane = 0; lane < LANES; lane++) {
        const bool go = k->live[lane] != 0 && curvature[lane] > 0;
        const float quotient = go ? curvature[lane] / size[lane] : k->least[lane];
        step[lane] = go ? k->rr[lane] / curvature[lane] : 0;
        back[lane] = -step[lane];
        k->live[lane] = go;
        k->least[lane] = fminf(k->least[lane], quotient);
        k->most[lane] = fmaxf(k->most[lane], quotient);
    }
    panel_axpy(x, d, step, sys->direction);
    panel_axpy(sys->r, d, back, sys->image);
    panel_dot(next, sys->r, sys->r, d);
    for (int lane = 0; lane < LANES; lane++) {
        const bool go = k->live[lane] != 0;
        turn[lane] = go ? next[lane] / k->rr[lane] : 0;
        k->rr[lane] = go ? next[lane] : k->rr[lane];
        k->live[lane] = go && next[lane] > k->stop[lane];
    }
    panel_scale(sys->direction, d, turn);
    panel_fill(turn, 1, 1);
    panel_axpy(sys->direction, d, turn, sys->r);
}

static inline bool any_live(const float *live)
{
    for (int lane = 0; lane < LANES; lane++) {
        if (live[lane] != 0) {
            return true;
        }
    }
    return false;
}

/* The power of two at or below the largest |b| of each lane: dividing by it is exact and keeps the squares of
 * small and large right-hand sides within range. */
static inline void lane_magnitudes(float *restrict out, const float *restrict b, int64_t d)
{
    for (int lane = 0; lane < LANES; lane++) {
        float most = 0;
        for (int64_t c = 0; c < d; c++) {
            most = fmaxf(most, fabsf(b[c * LANES + lane]));
        }
        const float power = float_from_bits(bits_from_float(most) & 0x7f800000u);
        out[lane] = power >= 0x1p-120f && power < 0x1p120f ? power : 1;
    }
}

/* x <- (Cov + Lambda)^-1 b for the lanes in `wanted`; other lanes are 0 and not accepted. */
static inline void block_solve(const block_system *sys, const float *restrict b, const bool *restrict wanted,
                               float *restrict x, block_result *result)
{
    const int64_t d = sys->x->p->dim_qk;
    const cg_tolerance tolerance = cg_tolerance_of(sys->x->p->dtype);
    float bb[LANES], unit[LANES], per_unit[LANES];
    cg_lanes k;
    lane_magnitudes(unit, b, d);
    for (int lane = 0; lane < LANES; lane++) {
        per_unit[lane] = 1 / unit[lane];
    }
    panel_fill(x, d, 0);
    panel_copy(sys->r, b, d);
    panel_scale(sys->r, d, per_unit);
    panel_copy(sys->direction, sys->r, d);
    panel_dot(bb, sys->r, sys->r, d);
    for (int lane = 0; lane < LANES; lane++) {
        k.rr[lane] = bb[lane];
        k.stop[lane] = tolerance.stop * tolerance.stop * bb[lane];
        k.live[lane] = wanted[lane] && bb[lane] > 0 && bb[lane] < INFINITY;
        k.least[lane] = INFINITY;
        k.most[lane] = 0;
        result->iterations[lane] = 0;
    }
    for (int step = 0; step < CG_MOST && any_live(k.live); step++) {
        for (int lane = 0; lane < LANES; lane++) {
            result->iterations[lane] += k.live[lane] != 0;
        }
        cg_step(sys, x, &k);
    }
    block_apply(sys, x, sys->image);
    for (int lane = 0; lane < LANES; lane++) {
        double error2 = 0;
        for (int64_t c = 0; c < d; c++) {
            const double e = (double)(b[c * LANES + lane] * per_unit[lane]) -
                             (double)sys->image[c * LANES + lane];
            error2 += e * e;
        }
        const float ratio = bb[lane] > 0 ? (float)sqrt(error2 / (double)bb[lane]) : 0;
        result->residual[lane] = ratio;
        result->accepted[lane] = wanted[lane] && (ratio == 0 || ratio * sqrtf(k.most[lane] / k.least[lane]) <=
                                                                    tolerance.accept);
    }
    panel_scale(x, d, unit);
}

#endif
