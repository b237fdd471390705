/* SPDX-License-Identifier: MIT
 *
 * Conjugate gradients in float32 for a block of rows at once, one row per lane.
 *
 * Each lane stops by its own residual only, so that the bits of a row do not depend on its neighbours. At the
 * end a lane is accepted by its true residual b - A x. A lane whose residual falls so slowly that a Cholesky
 * factor costs less stops early.
 */
#ifndef LOAM_LOCAL_CPU_CG_H
#define LOAM_LOCAL_CPU_CG_H

#include "src/local/cpu/system.h"

/* The maximum of steps; the step from which on a lane is judged by how fast its residual falls; the step by
 * which the residual must have fallen at all. */
enum { CG_MOST = 96, CG_TRIAL = 8, CG_FIRST_TRIAL = 4 };

/* A lane stops when its recursive residual, relative to b, is below this. */
static inline float cg_stop(loam_dtype dtype) { return dtype == LOAM_F32 ? 3e-7f : 2e-6f; }

/* The cost of a solve by local/cpu/gram.h in iterations: d / 4 for the matrix, the rest for the factor
 * and the residuals. */
static inline float cg_worth(int64_t d) { return 8 + 0.25f * (float)d; }

/* The state of each lane: rr = |r|^2; live: 0 when stopped; stop: the |r|^2 to stop at; least and most: the
 * smallest and largest Rayleigh quotients so far, which estimate the condition number. */
typedef struct cg_lanes {
    float rr[LANES], live[LANES], stop[LANES], least[LANES], most[LANES];
    float *r, *direction, *image; /* [dim_qk][LANES] */
} cg_lanes;

static inline void cg_step(const block_system *sys, float *restrict x, cg_lanes *k)
{
    const int64_t d = sys->x->p->dim_qk;
    float curvature[LANES], size[LANES], step[LANES], back[LANES], next[LANES], beta[LANES];
    block_apply(sys, k->direction, k->image);
    panel_dot(curvature, k->direction, k->image, d);
    panel_dot(size, k->direction, k->direction, d);
    for (int lane = 0; lane < LANES; lane++) {
        const bool go = k->live[lane] != 0 && curvature[lane] > 0;
        const float quotient = go ? curvature[lane] / size[lane] : k->least[lane];
        step[lane] = go ? k->rr[lane] / curvature[lane] : 0;
        back[lane] = -step[lane];
        k->live[lane] = go;
        k->least[lane] = fminf(k->least[lane], quotient);
        k->most[lane] = fmaxf(k->most[lane], quotient);
    }
    panel_axpy(x, d, step, k->direction);
    panel_axpy(k->r, d, back, k->image);
    panel_dot(next, k->r, k->r, d);
    for (int lane = 0; lane < LANES; lane++) {
        const bool go = k->live[lane] != 0;
        beta[lane] = go ? next[lane] / k->rr[lane] : 0;
        k->rr[lane] = go ? next[lane] : k->rr[lane];
        k->live[lane] = go && next[lane] > k->stop[lane];
    }
    panel_scale(k->direction, d, beta);
    panel_fill(beta, 1, 1);
    panel_axpy(k->direction, d, beta, k->r);
}

static inline bool any_lane(const bool *some)
{
    bool any = false;
    for (int lane = 0; lane < LANES; lane++)
        any |= some[lane];
    return any;
}

static inline int live_lanes(const float *live)
{
    int count = 0;
    for (int lane = 0; lane < LANES; lane++)
        count += live[lane] != 0;
    return count;
}

/* The power of two at or below the largest |b| of each lane. Division by it is exact and keeps the squares of
 * very small and very large right-hand sides within range. */
static inline void lane_magnitudes(float *restrict out, const float *restrict b, int64_t d)
{
    for (int lane = 0; lane < LANES; lane++) {
        float most = 0;
        for (int64_t c = 0; c < d; c++)
            most = fmaxf(most, fabsf(b[c * LANES + lane]));
        const float power = float_from_bits(bits_from_float(most) & 0x7f800000u);
        out[lane] = power >= 0x1p-120f && power < 0x1p120f ? power : 1;
    }
}

/* Stops the lanes that further steps would not bring to acceptance: lanes that need more than `patience`
 * further steps if the residual falls as it has so far, and lanes whose true residual will stay above the
 * tolerance by the rounding of A x alone. patience is twice the cost of the factor, as residuals fall faster
 * later on and the other lanes keep the block running anyway. */
static inline void cg_leave(const block_system *sys, cg_lanes *k, const float *x, const float *bb, int steps,
                            float patience)
{
    const int64_t d = sys->x->p->dim_qk;
    const float wanted = 2 * logf(cg_stop(sys->x->p->dtype)), tolerance = block_tolerance(sys->x->p->dtype);
    float xx[LANES];
    panel_dot(xx, x, x, d);
    for (int lane = 0; lane < LANES; lane++) {
        if (k->live[lane] != 0) {
            const float fallen = logf(k->rr[lane] / bb[lane]);
            const float left = fallen >= 0        ? INFINITY
                               : steps < CG_TRIAL ? 0
                                                  : (float)steps * (wanted / fallen - 1);
            const float rounding = 0x1p-22f * k->most[lane] * sqrtf(xx[lane] / bb[lane]);
            k->live[lane] = left <= patience && rounding * sqrtf(k->most[lane] / k->least[lane]) <= tolerance;
        }
    }
}

/* r <- b / unit, the direction and the norms that follow from r; x <- 0. Lanes outside `wanted`
 * are not live. */
static inline void cg_begin(cg_lanes *k, const float *restrict b, const bool *restrict wanted, int64_t d,
                            float stop, float *restrict unit, float *restrict bb)
{
    float per_unit[LANES];
    lane_magnitudes(unit, b, d);
    for (int lane = 0; lane < LANES; lane++)
        per_unit[lane] = 1 / unit[lane];
    panel_copy(k->r, b, d);
    panel_scale(k->r, d, per_unit);
    panel_copy(k->direction, k->r, d);
    panel_dot(bb, k->r, k->r, d);
    for (int lane = 0; lane < LANES; lane++) {
        k->rr[lane] = bb[lane];
        k->stop[lane] = stop * stop * bb[lane];
        k->live[lane] = wanted[lane] && bb[lane] > 0 && bb[lane] < INFINITY;
        k->least[lane] = INFINITY;
        k->most[lane] = 0;
    }
}

/* Computes the true residuals of x and accepts lanes: the relative residual times the square root of the
 * condition number bounds the relative error of x in the norm of the system. */
static inline void cg_judge(const block_system *sys, const cg_lanes *k, const float *restrict b,
                            const float *restrict unit, const float *restrict bb, const bool *restrict wanted,
                            const float *restrict x, block_result *result)
{
    const int64_t d = sys->x->p->dim_qk;
    block_apply(sys, x, k->image);
    for (int lane = 0; lane < LANES; lane++) {
        const float per_unit = 1 / unit[lane];
        double error2 = 0;
        for (int64_t c = 0; c < d; c++) {
            const double e = (double)(b[c * LANES + lane] * per_unit) - (double)k->image[c * LANES + lane];
            error2 += e * e;
        }
        const float ratio = bb[lane] > 0 ? (float)sqrt(error2 / (double)bb[lane]) : 0;
        result->residual[lane] = ratio;
        result->accepted[lane] = wanted[lane] &&
                                 (ratio == 0 || ratio * sqrtf(k->most[lane] / k->least[lane]) <=
                                                    block_tolerance(sys->x->p->dtype));
    }
}

/* x <- (Cov + Lambda)^-1 b for the lanes in `wanted`; x of other lanes is 0, not accepted. work: 3 panels. */
static inline void cg_solve(const block_system *sys, float *const work[3], const float *restrict b,
                            const bool *restrict wanted, float *restrict x, block_result *result)
{
    const int64_t d = sys->x->p->dim_qk;
    const float stop = cg_stop(sys->x->p->dtype), patience = 2 * cg_worth(d) - 8;
    float bb[LANES], unit[LANES];
    cg_lanes k = { .r = work[0], .direction = work[1], .image = work[2] };
    int step = 0;
    cg_begin(&k, b, wanted, d, stop, unit, bb);
    panel_fill(x, d, 0);
    memset(result, 0, sizeof *result);
    for (; step < CG_MOST && live_lanes(k.live) > 0; step++) {
        for (int lane = 0; lane < LANES; lane++)
            result->iterations[lane] += k.live[lane] != 0;
        cg_step(sys, x, &k);
        if (step + 1 >= CG_FIRST_TRIAL) cg_leave(sys, &k, x, bb, step + 1, patience);
    }
    if (any_lane(wanted)) cg_judge(sys, &k, b, unit, bb, wanted, x, result);
    panel_scale(x, d, unit);
}

#endif
