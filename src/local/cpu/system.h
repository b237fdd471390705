/* SPDX-License-Identifier: MIT
 *
 * The linear systems of a block of rows, (Cov_i + Lambda_i) x_i = b_i, one row per lane, with the weights of
 * the block cached. Cov x = sum_j p_j kappa_j (kappa_j . x) costs two panel products. The sum over j of the
 * centred weights is 0 but for rounding; its product with kbar is subtracted ("compensated centring").
 */
#ifndef LOAM_LOCAL_CPU_SYSTEM_H
#define LOAM_LOCAL_CPU_SYSTEM_H

#include "src/local/cpu/tile.h"
#include "src/simd/transpose.h"

/* Lanes are taken apart from a block by this many. */
enum { FEW = 16 };

/* Rows whose least ridge is below this part of the mean variance of the keys are solved in float64 only. */
#define BLOCK_LEAST_RIDGE 1e-6f

/* The accepted relative error of x in the norm of the system, |x - A^-1 b|_A / |x|_A: the error that the
 * output sees. Larger for 16-bit results. */
static inline float block_tolerance(loam_dtype dtype) { return dtype == LOAM_F32 ? 2e-5f : 1e-4f; }

typedef struct block_system {
    const head *x;
    const lanes *l;
    key_tile *tile;
    float *product;       /* scratch [TILE_KEYS][LANES] */
    const float *weights; /* [last - first][LANES], not normalised */
    const float *inverse; /* 1 / omega [LANES] */
    const float *kbar;    /* [dim_qk][LANES] relative to the origin */
    float *lambda;        /* [dim_qk][LANES] */
} block_system;

static inline block_system block_system_of(const head *hd, const lanes *l, key_tile *tile, float *product,
                                           const float *weights, const float *inverse, const float *kbar,
                                           float *lambda)
{
    return (block_system){ hd, l, tile, product, weights, inverse, kbar, lambda };
}

/* Lambda of every lane. The block solver gets the lanes in `wanted`: rows that see a key, have not
 * overflowed, and whose ridge is not so small, relative to the variance of the keys, that only float64 can
 * tell a singular matrix. */
typedef struct block_ridge {
    float variance[LANES]; /* trace of Cov / dim_qk */
    float unit[LANES];     /* of the ridge */
    float least[LANES];    /* the least entry of Lambda */
    bool wanted[LANES];
} block_ridge;

/* square: sum_j w_j |k'_j|^2; most: the largest p. Writes sys->lambda, too. */
static inline void block_ridge_set(block_ridge *out, const block_system *sys, const float *square,
                                   const float *most)
{
    const loam_problem *p = sys->x->p;
    const int64_t d = p->dim_qk;
    const bool by_trace = p->ridge_unit == LOAM_RIDGE_TRACE, by_max = p->ridge_unit == LOAM_RIDGE_MAX;
    float centre2[LANES], spread[LANES];
    panel_dot(centre2, sys->kbar, sys->kbar, d);
    if (by_trace) sum_spread(spread, sys->x, sys->l, sys->tile, sys->weights, sys->kbar);
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
            sys->lambda[c * LANES + lane] = (float)ridge;
            least = fmin(least, ridge);
        }
        out->variance[lane] = variance;
        out->unit[lane] = unit;
        out->least[lane] = (float)least;
        out->wanted[lane] = some && square[lane] < INFINITY && least > (double)(BLOCK_LEAST_RIDGE * variance);
    }
}

typedef struct block_result {
    float residual[LANES];     /* |b - A x| / |b| */
    int32_t iterations[LANES]; /* of conjugate gradients */
    bool accepted[LANES];
    bool refined[LANES];  /* with x in float64, in the solution of local/cpu/gram.h */
    bool factored[LANES]; /* accepted from local/cpu/gram.h */
} block_result;

/* Loads the tile of keys from j on, without what only scores need. */
static inline void system_tile(const block_system *sys, int64_t j)
{
    sys->tile->j = j, sys->tile->n = sys->l->last - j < TILE_KEYS ? sys->l->last - j : TILE_KEYS;
    load_keys(sys->tile->keys, sys->x, j, sys->tile->n);
}

/* product <- w (kappa . v) for a tile of n keys and the first `width` lanes, from product = k' . v; adds the
 * column sums of product to total. */
static inline void centred_weights(float *restrict product, const float *restrict w, int64_t n, int64_t width,
                                   const float *restrict v_kbar, float *restrict total)
{
    for (int64_t lane = 0; lane < width; lane += VL) {
        const vec centre = v_load(v_kbar + lane);
        vec sum = v_load(total + lane);
        for (int64_t r = 0; r < n; r++) {
            float *at = product + r * LANES + lane;
            const vec f = v_load(w + r * LANES + lane) * (v_load(at) - centre);
            sum += f;
            v_store(at, f);
        }
        v_store(total + lane, sum);
    }
}

/* image: sums over keys of w (kappa . v) k'; total: of w (kappa . v). Becomes (Cov + Lambda) v. */
static inline void block_finish(const block_system *sys, const float *restrict total, const float *restrict v,
                                float *restrict image)
{
    for (int64_t c = 0; c < sys->x->p->dim_qk; c++) {
        FOR_LANES(lane)
        {
            const int64_t at = c * LANES + lane;
            const vec cov = (v_load(image + at) - v_load(total + lane) * v_load(sys->kbar + at)) *
                            v_load(sys->inverse + lane);
            v_store(image + at, cov + v_load(sys->lambda + at) * v_load(v + at));
        }
    }
}

/* image <- (Cov + Lambda) v */
static inline void block_apply(const block_system *sys, const float *restrict v, float *restrict image)
{
    const int64_t d = sys->x->p->dim_qk;
    float v_kbar[LANES], total[LANES] = { 0 };
    panel_dot(v_kbar, v, sys->kbar, d);
    panel_fill(image, d, 0);
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE_KEYS) {
        const float *w = sys->weights + (j - sys->l->first) * LANES;
        system_tile(sys, j);
        panel_product(sys->product, sys->tile->n, sys->tile->keys, d, 1, v, d, false);
        centred_weights(sys->product, w, sys->tile->n, LANES, v_kbar, total);
        panel_product(image, d, sys->tile->keys, 1, d, sys->product, sys->tile->n, true);
    }
    block_finish(sys, total, v, image);
}

/* Up to LANES - FEW lanes gathered at the front of panels, as many as fill whole groups; unused ones repeat
 * the first. */
typedef struct few_lanes {
    int64_t width;
    int lane[LANES];
    float *v, *image; /* [dim_qk][LANES] */
    float *weights;   /* [TILE_KEYS][LANES] */
} few_lanes;

/* Gathers the lanes with live != 0; width is 0 where they are more. */
static inline void few_begin(few_lanes *few, const float *live)
{
    int count = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (live[lane] != 0) few->lane[count++] = lane;
    few->width = count <= LANES - FEW ? (count + FEW - 1) / FEW * FEW : 0;
    for (int64_t m = count; m < few->width; m++)
        few->lane[m] = few->lane[0];
}

static inline void few_gather(const few_lanes *few, float *restrict to, const float *restrict from,
                              int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t m = 0; m < few->width; m++)
            to[r * LANES + m] = from[r * LANES + few->lane[m]];
}

/* block_apply for the lanes of `few` alone; image of all others is of no use. */
static inline void block_apply_few(const block_system *sys, const few_lanes *few, const float *restrict v,
                                   float *restrict image)
{
    const int64_t d = sys->x->p->dim_qk;
    float v_kbar[LANES], centre[LANES], sum[LANES] = { 0 }, total[LANES] = { 0 };
    panel_dot(v_kbar, v, sys->kbar, d);
    few_gather(few, centre, v_kbar, 1);
    few_gather(few, few->v, v, d);
    panel_fill(few->image, d, 0);
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE_KEYS) {
        system_tile(sys, j);
        few_gather(few, few->weights, sys->weights + (j - sys->l->first) * LANES, sys->tile->n);
        lanes_product(sys->product, sys->tile->n, sys->tile->keys, d, 1, few->v, d, few->width, false);
        centred_weights(sys->product, few->weights, sys->tile->n, few->width, centre, sum);
        lanes_product(few->image, d, sys->tile->keys, 1, d, sys->product, sys->tile->n, few->width, true);
    }
    for (int64_t m = 0; m < few->width; m++) {
        total[few->lane[m]] = sum[m];
        for (int64_t c = 0; c < d; c++)
            image[c * LANES + few->lane[m]] = few->image[c * LANES + m];
    }
    block_finish(sys, total, v, image);
}

/* image <- (Cov + Lambda) v of the lanes with live != 0. */
static inline void block_apply_live(const block_system *sys, few_lanes few, const float *live,
                                    const float *restrict v, float *restrict image)
{
    few_begin(&few, live);
    if (few.width > 0)
        block_apply_few(sys, &few, v, image);
    else
        block_apply(sys, v, image);
}

#endif
