/* SPDX-License-Identifier: MIT
 *
 * The sequence of solvers for a block of rows: conjugate gradients in float32 for the whole block, then
 * Cholesky factors of a few rows at a time (local/cpu/gram.h). Rows that neither accepts are solved one by
 * one in float64 (local/cpu/row_double.h).
 */
#ifndef LOAM_LOCAL_CPU_LADDER_H
#define LOAM_LOCAL_CPU_LADDER_H

#include "src/local/cpu/cg.h"
#include "src/local/cpu/gram.h"

/* With fewer keys than channels and a condition number above this, conjugate gradients mostly
 * miss the tolerance. */
#define SKIP_CONDITION 64.0f

/* For n keys, n <= d / DUAL_SHARE, the dual n x n system in float64 costs less than the d x d
 * factor in float32. */
enum { DUAL_SHARE = 4 };

typedef struct solver {
    float *work[3]; /* [dim_qk][LANES] */
    gram gram;
} solver;

static inline solver solver_carve(const loam_problem *p, arena *pool)
{
    solver s;
    for (int n = 0; n < 3; n++)
        s.work[n] = arena_take(pool, (size_t)p->dim_qk * LANES, sizeof(float));
    s.gram = gram_carve(p, pool);
    return s;
}

/* Whether to skip conjugate gradients. With n <= d keys some eigenvalues are the bare ridge; the largest is
 * estimated as for random keys. The trial is skipped where conjugate gradients would need more steps than the
 * factor is worth, or where float32 cannot hold the residual that they would have to reach. */
static inline bool solver_skips_trial(const block_system *sys, const block_ridge *ridge, int64_t lane)
{
    const int64_t d = sys->x->p->dim_qk, n = sys->l->hi[lane] - sys->l->lo[lane];
    const float root = 1 + sqrtf((float)n / (float)d), worth = cg_worth(d);
    const float condition = ridge->variance[lane] * (float)d / (float)n * root * root / ridge->least[lane];
    const float steps = 0.5f * sqrtf(condition) * logf(2 / cg_stop(sys->x->p->dtype));
    return n <= d && (condition > SKIP_CONDITION || fminf(steps, (float)n) > worth);
}

/* x <- (Cov + Lambda)^-1 b for the lanes in ridge->wanted; lanes that are not accepted are
 * left to float64. */
static inline void block_solve(const block_system *sys, const solver *s, const block_ridge *ridge,
                               const float *restrict b, float *restrict x, block_result *result)
{
    const int64_t d = sys->x->p->dim_qk;
    bool trial[LANES], left[LANES];
    for (int lane = 0; lane < LANES; lane++)
        trial[lane] = ridge->wanted[lane] && !solver_skips_trial(sys, ridge, lane);
    cg_solve(sys, s->work, b, trial, x, result);
    for (int lane = 0; lane < LANES; lane++) {
        const int64_t n = sys->l->hi[lane] - sys->l->lo[lane];
        left[lane] = ridge->wanted[lane] && !result->accepted[lane] && DUAL_SHARE * n > d;
    }
    gram_solve(sys, &s->gram, b, left, x, result);
}

#endif
