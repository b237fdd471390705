/* SPDX-License-Identifier: MIT
 *
 * Cholesky in float32 for GROUP rows of a block at once, refined with residuals in float64: for the rows that
 * conjugate gradients do not accept.
 *
 *     A = Cov + Lambda ~ L L^T (float32),   x += (L L^T)^-1 r,   r = b - A x (float64), until
 *     |x - A^-1 b|_A / |x|_A ~ sqrt(r . (L L^T)^-1 r / x . b)  is below the tolerance.
 *
 * Each step of refinement divides the error by about 1e7 / condition. The factor need not be exact: x is
 * determined by r alone.
 *
 * The rows of a block share their keys: Cov of FOUR channels c with all others is one panel product of the
 * keys with p kappa_c, for FOUR channels and GROUP rows.
 */
#ifndef LOAM_LOCAL_CPU_GRAM_H
#define LOAM_LOCAL_CPU_GRAM_H

#include "src/local/cpu/factor.h"
#include "src/local/cpu/system.h"

enum { GRAM_STEPS_MOST = 6 };

/* A step that leaves more than this part of the error does not converge in time: the row is
 * left to float64. */
#define GRAM_LEAST_FALL 0.25

/* b and the weights are float32, so b has a relative error of this size whatever the solver. */
#define GRAM_ROUNDING 0x1p-20

typedef struct gram {
    float *factor;         /* [blocks of local/cpu/factor.h]; the diagonal holds 1 / L_cc; see heavy_carve */
    float *weights;        /* [TILE_KEYS][GROUP], p */
    float *kbar, *lambda;  /* [channels rounded up to whole blocks][GROUP] */
    float *b, *z, *total;  /* the same */
    double *x, *r, *image; /* [dim_qk][GROUP] */
    double *keys;          /* [TILE_KEYS][dim_qk] */
    double *product;       /* [TILE_KEYS][GROUP] */
    double *solution;      /* [dim_qk][LANES]: x of all refined lanes */
    double *lines;         /* [LANES / GROUP][dim_qk][GROUP]: the same, in groups */
    int *lane;             /* [GROUP]: the lane of each row; unused ones repeat the first */
} gram;

static inline gram gram_carve(const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, f = sizeof(float), f64 = sizeof(double);
    const size_t wide = (size_t)factor_blocks(p->dim_qk) * LANES;
    gram g = { 0 };
    g.weights = arena_take(pool, TILE_KEYS * GROUP, f);
    g.kbar = arena_take(pool, wide, f);
    g.lambda = arena_take(pool, wide, f);
    g.b = arena_take(pool, wide, f);
    g.z = arena_take(pool, wide, f);
    g.total = arena_take(pool, wide, f);
    g.x = arena_take(pool, d * GROUP, f64);
    g.r = arena_take(pool, d * GROUP, f64);
    g.image = arena_take(pool, d * GROUP, f64);
    g.keys = arena_take(pool, TILE_KEYS * d, f64);
    g.product = arena_take(pool, TILE_KEYS * GROUP, f64);
    g.lane = arena_take(pool, GROUP, sizeof(int));
    g.solution = arena_take(pool, d * LANES, f64);
    g.lines = arena_take(pool, d * LANES, f64);
    return g;
}

/* ------------------------------------------------------------------ gathering lanes into the group */

static inline void gram_gather(const gram *g, float *restrict to, const float *restrict panel, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++)
        for (int m = 0; m < GROUP; m++)
            to[r * GROUP + m] = panel[r * LANES + g->lane[m]];
}

/* weights of the tile: w becomes p. */
static inline void gram_normalise(const block_system *sys, const gram *g)
{
    for (int64_t r = 0; r < sys->tile->n; r++)
        for (int m = 0; m < GROUP; m++)
            g->weights[r * GROUP + m] *= sys->inverse[g->lane[m]];
}

/* Loads the tile of keys from j on, and the weights p of the group for it. */
static inline void gram_tile(const block_system *sys, const gram *g, int64_t j)
{
    system_tile(sys, j);
    gram_gather(g, g->weights, sys->weights + (j - sys->l->first) * LANES, sys->tile->n);
    gram_normalise(sys, g);
}

static inline void gram_begin(const block_system *sys, const gram *g, const float *b, const int *picked,
                              int count)
{
    const int64_t d = sys->x->p->dim_qk, rest = factor_blocks(d) * FOUR - d;
    float *const panels[] = { g->kbar, g->lambda, g->b };
    const float *const from[] = { sys->kbar, sys->lambda, b };
    for (int m = 0; m < GROUP; m++)
        g->lane[m] = picked[m < count ? m : 0];
    for (int n = 0; n < 3; n++) {
        gram_gather(g, panels[n], from[n], d);
        memset(panels[n] + d * GROUP, 0, (size_t)(rest * GROUP) * sizeof(float));
    }
}

/* ------------------------------------------------------------------ the matrix */

/* scaled [TILE_KEYS][FOUR][GROUP] <- p kappa_c for the channels c of block n; adds the sums over keys to
 * total. */
static inline void gram_scale_keys(const block_system *sys, const gram *g, int64_t n, float *restrict scaled)
{
    const int64_t d = sys->x->p->dim_qk;
    for (int64_t i = 0; i < FOUR; i++) {
        const int64_t c = n * FOUR + i;
        for (int m = 0; m < GROUP; m += VL) {
            const vec centre = v_load(g->kbar + c * GROUP + m);
            vec sum = v_load(g->total + c * GROUP + m);
            for (int64_t r = 0; r < sys->tile->n; r++) {
                const vec key = v_set(c < d ? sys->tile->keys[r * d + c] : 0);
                const vec f = v_load(g->weights + r * GROUP + m) * (key - centre);
                sum += f;
                v_store(scaled + r * LANES + i * GROUP + m, f);
            }
            v_store(g->total + c * GROUP + m, sum);
        }
    }
}

static inline void gram_clear(const gram *g, int64_t d)
{
    const int64_t blocks = factor_blocks(d);
    memset(g->factor, 0, (size_t)factor_block_at(blocks) * sizeof(float));
    memset(g->total, 0, (size_t)(blocks * LANES) * sizeof(float));
}

/* factor += the lower triangle of sum p kappa kappa^T over the tile; adds the sums of p kappa to total. */
static inline void gram_add_tile(const block_system *sys, const gram *g)
{
    const int64_t d = sys->x->p->dim_qk;
    for (int64_t n = 0; n < factor_blocks(d); n++) {
        const int64_t columns = (n + 1) * FOUR < d ? (n + 1) * FOUR : d;
        gram_scale_keys(sys, g, n, sys->product);
        panel_product(g->factor + factor_block_at(n), columns, sys->tile->keys, 1, d, sys->product,
                      sys->tile->n, true);
    }
}

/* Subtracts total kbar^T: the compensated centring of local/cpu/system.h. */
static inline void gram_compensate(const gram *g, int64_t d)
{
    for (int64_t n = 0; n < factor_blocks(d); n++) {
        float *block = g->factor + factor_block_at(n);
        const float *total = g->total + n * LANES;
        for (int64_t c = 0; c < (n + 1) * FOUR; c++) {
            for (int i = 0; i < FOUR; i++)
                for (int m = 0; m < GROUP; m++)
                    block[c * LANES + i * GROUP + m] -= total[i * GROUP + m] * g->kbar[c * GROUP + m];
        }
    }
}

/* Adds Lambda to the diagonal, or 1 in the rows that pad the last block. */
static inline void gram_add_ridge(const gram *g, int64_t d)
{
    for (int64_t c = 0; c < factor_blocks(d) * FOUR; c++) {
        float *pivot = g->factor + factor_block_at(c / FOUR) + c * LANES + c % FOUR * GROUP;
        for (int m = 0; m < GROUP; m++)
            pivot[m] += c < d ? g->lambda[c * GROUP + m] : 1;
    }
}

/* factor <- lower triangle of Cov + Lambda. */
static inline void gram_matrix(const block_system *sys, const gram *g)
{
    const int64_t d = sys->x->p->dim_qk;
    gram_clear(g, d);
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE_KEYS) {
        gram_tile(sys, g, j);
        gram_add_tile(sys, g);
    }
    gram_compensate(g, d);
    gram_add_ridge(g, d);
}

/* ------------------------------------------------------------------ residuals in float64 */

/* Converts the tile of keys to double. */
static inline void gram_widen_keys(const block_system *sys, const gram *g)
{
    const int64_t count = sys->tile->n * sys->x->p->dim_qk;
    for (int64_t e = 0; e < count; e++)
        g->keys[e] = (double)sys->tile->keys[e];
}

/* out[m] = sum over channels of x y. */
static inline void gram_dot(double *restrict out, const double *x, const float *y, int64_t d)
{
    for (int m = 0; m < GROUP; m++)
        out[m] = 0;
    for (int64_t c = 0; c < d; c++)
        for (int m = 0; m < GROUP; m++)
            out[m] += x[c * GROUP + m] * (double)y[c * GROUP + m];
}

/* r <- b - (Cov + Lambda) x. */
static inline void gram_residual(const block_system *sys, const gram *g)
{
    const int64_t d = sys->x->p->dim_qk;
    double centre[GROUP], total[GROUP] = { 0 };
    gram_dot(centre, g->x, g->kbar, d);
    memset(g->image, 0, (size_t)(d * GROUP) * sizeof(double));
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE_KEYS) {
        gram_tile(sys, g, j);
        gram_widen_keys(sys, g);
        panel64_product(g->product, sys->tile->n, g->keys, d, 1, g->x, d, false);
        for (int64_t r = 0; r < sys->tile->n; r++) {
            for (int m = 0; m < GROUP; m++) {
                double *at = g->product + r * GROUP + m;
                *at = (double)g->weights[r * GROUP + m] * (*at - centre[m]);
                total[m] += *at;
            }
        }
        panel64_product(g->image, d, g->keys, 1, d, g->product, sys->tile->n, true);
    }
    for (int64_t c = 0; c < d; c++) {
        for (int m = 0; m < GROUP; m++) {
            const int64_t at = c * GROUP + m;
            g->r[at] = (double)g->b[at] - (g->image[at] - total[m] * (double)g->kbar[at]) -
                       (double)g->lambda[at] * g->x[at];
        }
    }
}

/* z <- (L L^T)^-1 r / unit; unit, the largest |r| of each row, keeps z within the range of float. */
static inline void gram_correct(const gram *g, int64_t d, double *restrict unit)
{
    const int64_t blocks = factor_blocks(d);
    for (int m = 0; m < GROUP; m++) {
        unit[m] = 0;
        for (int64_t c = 0; c < d; c++)
            unit[m] = fmax(unit[m], fabs(g->r[c * GROUP + m]));
        unit[m] = unit[m] > 0 && unit[m] < INFINITY ? unit[m] : 1;
    }
    for (int64_t c = 0; c < d; c++)
        for (int m = 0; m < GROUP; m++)
            g->z[c * GROUP + m] = (float)(g->r[c * GROUP + m] / unit[m]);
    memset(g->z + d * GROUP, 0, (size_t)(blocks * FOUR - d) * GROUP * sizeof(float));
    factor_solve(g->factor, blocks, g->z);
}

typedef struct gram_progress {
    double error[GROUP]; /* relative, in the norm of the system; 1 before the first step */
    double residual[GROUP];
    bool live[GROUP], done[GROUP];
} gram_progress;

/* Estimates the error of x from the residual r and its correction z, and decides which rows are
 * done or stop. */
static inline void gram_judge(const gram *g, int64_t d, const double *unit, double tolerance,
                              gram_progress *at)
{
    double rz[GROUP], xb[GROUP], steepest[GROUP];
    gram_dot(rz, g->r, g->z, d);
    gram_dot(xb, g->x, g->b, d);
    factor_steepest(g->factor, d, steepest);
    for (int m = 0; m < GROUP; m++) {
        double bb = 0, rr = 0;
        for (int64_t c = 0; c < d; c++) {
            bb += (double)g->b[c * GROUP + m] * (double)g->b[c * GROUP + m];
            rr += g->r[c * GROUP + m] * g->r[c * GROUP + m];
        }
        const double error = rr == 0 ? 0 : sqrt(rz[m] * unit[m] / xb[m]); /* NaN where the factor is bad */
        if (at->live[m]) {
            at->residual[m] = bb > 0 ? sqrt(rr / bb) : 0;
            at->done[m] = error <= tolerance && sqrt(bb / xb[m]) * GRAM_ROUNDING * steepest[m] <= tolerance;
            at->live[m] = !at->done[m] && error <= GRAM_LEAST_FALL * at->error[m];
            at->error[m] = error;
        }
    }
}

static inline void gram_start(const gram *g, int64_t d, gram_progress *at)
{
    for (int64_t e = 0; e < d * GROUP; e++) {
        g->x[e] = 0;
        g->r[e] = (double)g->b[e];
    }
    for (int m = 0; m < GROUP; m++) {
        at->error[m] = at->residual[m] = 1;
        at->live[m] = true, at->done[m] = false;
    }
}

/* Adds the corrections z of the rows in `moving`; returns whether there are any. */
static inline bool gram_advance(const gram *g, int64_t d, const double *unit, const bool *moving)
{
    bool any = false;
    for (int m = 0; m < GROUP; m++) {
        any |= moving[m];
        for (int64_t c = 0; moving[m] && c < d; c++)
            g->x[c * GROUP + m] += unit[m] * (double)g->z[c * GROUP + m];
    }
    return any;
}

/* x of the group by iterative refinement. A row that is done still adds the correction that showed it:
 * x only gains. */
static inline void gram_refine(const block_system *sys, const gram *g, gram_progress *at)
{
    const int64_t d = sys->x->p->dim_qk;
    const double tolerance = (double)block_tolerance(sys->x->p->dtype);
    double unit[GROUP];
    bool moving[GROUP];
    gram_start(g, d, at);
    gram_correct(g, d, unit);
    gram_advance(g, d, unit, at->live);
    for (int step = 1; step < GRAM_STEPS_MOST; step++) {
        memcpy(moving, at->live, sizeof moving);
        gram_residual(sys, g);
        gram_correct(g, d, unit);
        gram_judge(g, d, unit, tolerance, at);
        for (int m = 0; m < GROUP; m++)
            moving[m] &= at->live[m] || at->done[m];
        if (!gram_advance(g, d, unit, moving)) break;
    }
}

/* Solves one group. Rows that converge are written to the panel x, and in float64 to solution. */
static inline void gram_group(const block_system *sys, const gram *g, int count, float *restrict x,
                              block_result *result)
{
    const int64_t d = sys->x->p->dim_qk;
    gram_progress at;
    gram_matrix(sys, g);
    factor_make(g->factor, factor_blocks(d));
    gram_refine(sys, g, &at);
    for (int m = 0; m < count; m++) {
        const int lane = g->lane[m];
        for (int64_t c = 0; at.done[m] && c < d; c++) {
            g->solution[c * LANES + lane] = g->x[c * GROUP + m];
            x[c * LANES + lane] = (float)g->x[c * GROUP + m];
        }
        result->accepted[lane] = result->refined[lane] = result->factored[lane] = at.done[m];
        result->residual[lane] = (float)at.residual[m];
    }
}

/* Writes the indices of the lanes in `picked` to rows; returns their number. */
static inline int lanes_of(int *restrict rows, const bool *restrict picked)
{
    int count = 0;
    for (int lane = 0; lane < LANES; lane++)
        if (picked[lane]) rows[count++] = lane;
    return count;
}

/* Solves for x of the lanes in `picked`; result says which are accepted. */
static inline void gram_solve(const block_system *sys, const gram *g, const float *restrict b,
                              const bool *restrict picked, float *restrict x, block_result *result)
{
    int rows[LANES];
    const int count = lanes_of(rows, picked);
    for (int first = 0; first < count; first += GROUP) {
        const int some = count - first < GROUP ? count - first : GROUP;
        gram_begin(sys, g, b, rows + first, some);
        gram_group(sys, g, some, x, result);
    }
}

/* The refined lanes in groups, their x in float64 and x . kbar, for gram_lines. */
typedef struct gram_lines_of {
    int count, rows[LANES];
    double centre[LANES];
} gram_lines_of;

static inline gram_lines_of gram_lines_begin(const block_system *sys, const gram *g,
                                             const block_result *result)
{
    const int64_t d = sys->x->p->dim_qk;
    gram_lines_of out;
    out.count = lanes_of(out.rows, result->refined);
    for (int first = 0; first < out.count; first += GROUP) {
        for (int m = 0; m < GROUP; m++) {
            const int lane = out.rows[first + m < out.count ? first + m : first];
            double centre = 0;
            for (int64_t c = 0; c < d; c++) {
                const double x = g->solution[c * LANES + lane];
                g->lines[(first * d) + c * GROUP + m] = x;
                centre += x * (double)sys->kbar[c * LANES + lane];
            }
            out.centre[first + m] = centre;
        }
    }
    return out;
}

/* product [TILE_KEYS][LANES] <- u = x . kappa of a tile for the refined lanes, from x in float64. */
static inline void gram_lines(const block_system *sys, const gram *g, const gram_lines_of *of,
                              float *restrict product)
{
    const int64_t d = sys->x->p->dim_qk;
    if (of->count > 0) gram_widen_keys(sys, g);
    for (int first = 0; first < of->count; first += GROUP) {
        panel64_product(g->product, sys->tile->n, g->keys, d, 1, g->lines + first * d, d, false);
        for (int64_t r = 0; r < sys->tile->n; r++)
            for (int m = 0; m < GROUP && first + m < of->count; m++)
                product[r * LANES + of->rows[first + m]] = (float)(g->product[r * GROUP + m] -
                                                                   of->centre[first + m]);
    }
}

#endif
