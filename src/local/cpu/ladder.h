/* SPDX-License-Identifier: MIT
 *
 * The sequence of solvers for a block of rows: conjugate gradients in float32 for the whole block, then
 * Cholesky factors of a few rows at a time (local/cpu/gram.h). Rows that neither accepts are solved one by
 * one in float64 (local/cpu/row_double.h).
 */
#ifndef LOAM_LOCAL_CPU_LADDER_H
#define LOAM_LOCAL_CPU_LADDER_H

#include "src/local/cpu/pcg.h"

/* With fewer keys than channels and a condition number above this, conjugate gradients mostly
 * miss the tolerance. */
#define SKIP_CONDITION 64.0f

/* For n keys, n <= d / DUAL_SHARE, the dual n x n system in float64 costs less than the d x d
 * factor in float32. */
enum { DUAL_SHARE = 4 };

typedef struct solver {
    float *work[3]; /* [dim_qk][LANES] */
    gram gram;
    heavy heavy;
} solver;

static inline solver solver_carve(const loam_problem *p, arena *pool)
{
    solver s;
    for (int n = 0; n < 3; n++)
        s.work[n] = arena_take(pool, (size_t)p->dim_qk * LANES, sizeof(float));
    s.gram = gram_carve(p, pool);
    s.heavy = heavy_carve(p, pool, &s.gram);
    return s;
}

/* out[lane] = 1 / sum_j p_j^2: the number of keys among which the weight of a row is spread. */
static inline void effective_keys(const block_system *sys, float *restrict out)
{
    const int64_t n = sys->l->last - sys->l->first;
    FOR_LANES(lane)
    {
        vec sum = v_set(0);
        for (int64_t r = 0; r < n; r++) {
            const vec w = v_load(sys->weights + r * LANES + lane);
            sum += w * w;
        }
        const vec inverse = v_load(sys->inverse + lane);
        v_store(out + lane, 1 / (sum * inverse * inverse));
    }
}

/* The steps that plain conjugate gradients need for n random keys of equal weight, whose eigenvalues lie
 * between variance (1 -+ sqrt(d / n))^2. */
static inline float plain_steps(const block_system *sys, const block_ridge *ridge, float n, int64_t lane)
{
    const float root = sqrtf((float)sys->x->p->dim_qk / n), low = fmaxf(1 - root, 0), high = 1 + root;
    const float condition = (ridge->variance[lane] * high * high + ridge->least[lane]) /
                            (ridge->variance[lane] * low * low + ridge->least[lane]);
    return 0.5f * sqrtf(condition) * logf(2 / cg_stop(sys->x->p->dtype));
}

/* Whether a row of few keys skips plain conjugate gradients. With n <= d keys some eigenvalues are the bare
 * ridge; the largest is estimated as for random keys. The trial is skipped where it would need more steps
 * than the factor is worth, or where float32 cannot hold the residual that it would have to reach. */
static inline bool solver_skips_trial(const block_system *sys, const block_ridge *ridge, int64_t lane)
{
    const int64_t d = sys->x->p->dim_qk, n = sys->l->hi[lane] - sys->l->lo[lane];
    const float root = 1 + sqrtf((float)n / (float)d), worth = cg_worth(d);
    const float condition = ridge->variance[lane] * (float)d / (float)n * root * root / ridge->least[lane];
    const float steps = 0.5f * sqrtf(condition) * logf(2 / cg_stop(sys->x->p->dtype));
    return n <= d && (condition > SKIP_CONDITION || fminf(steps, (float)n) > worth);
}

/* Lanes that plain conjugate gradients try. The rows that heavy keys serve go one way together, that of the
 * first of them: a block in which some stay and some leave pays for both. */
static inline void solver_trial(const block_system *sys, const block_ridge *ridge, bool *restrict trial)
{
    float effective[LANES];
    bool decided = false, skip = false;
    effective_keys(sys, effective);
    for (int lane = 0; lane < LANES; lane++) {
        const bool served = ridge->wanted[lane] && heavy_serves(sys, lane);
        if (served && !decided) {
            skip = plain_steps(sys, ridge, effective[lane], lane) > heavy_worth(sys->x->p->dim_qk);
            decided = true;
        }
        trial[lane] = ridge->wanted[lane] && !(served ? skip : solver_skips_trial(sys, ridge, lane));
    }
}

/* x <- (Cov + Lambda)^-1 b for the lanes in ridge->wanted; lanes that are not accepted are
 * left to float64. */
static inline void block_solve(const block_system *sys, const solver *s, const block_ridge *ridge,
                               const float *restrict b, float *restrict x, block_result *result)
{
    const int64_t d = sys->x->p->dim_qk;
    bool trial[LANES], some[LANES], left[LANES];
    solver_trial(sys, ridge, trial);
    cg_solve(sys, s->work, b, trial, x, result);
    for (int lane = 0; lane < LANES; lane++)
        some[lane] = ridge->wanted[lane] && !result->accepted[lane] && heavy_serves(sys, lane);
    if (any_lane(some)) pcg_solve(sys, s->work, &s->gram, &s->heavy, ridge, b, some, x, result);
    for (int lane = 0; lane < LANES; lane++) {
        const int64_t n = sys->l->hi[lane] - sys->l->lo[lane];
        left[lane] = ridge->wanted[lane] && !result->accepted[lane] && DUAL_SHARE * n > d;
    }
    gram_solve(sys, &s->gram, b, left, x, result);
}

#endif
