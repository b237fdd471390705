/* SPDX-License-Identifier: MIT
 *
 * GROUP rows of a block at once by Cholesky in float32, refined by residuals in float64. For the rows that conjugate
 * gradients leave.
 *
 *     A = Cov + Lambda ~ L L^T (float32),   x += (L L^T)^-1 r,   r = b - A x (float64), until
 *     |x - A^-1 b|_A / |x|_A ~ sqrt(r . (L L^T)^-1 r / x . b)  is below the tolerance.
 *
 * Each step divides the error by about 1e7 / condition, so the factor need not be exact: r alone says what x is.
 *
 * Rows of a block share their keys. Cov of four channels c against all others is one panel product, of the keys
 * with w kappa_c of the four channels, GROUP rows each: LANES columns. So the factor is kept by blocks of four
 * rows, [block][column][FOUR][GROUP], and is itself computed vertically, one row of attention per lane.
 */
#ifndef LOAM_LOCAL_LOCAL_GRAM_H
#define LOAM_LOCAL_LOCAL_GRAM_H

#include "src/local/local_system.h"

enum { GROUP = 16, FOUR = LANES / GROUP, GRAM_STEPS_MOST = 6 };

/* A step that leaves more than this of the error will not get there: the row is for float64 alone. */
#define GRAM_LEAST_FALL 0.25

/* b and the weights are float32: a relative error of this size is in b whatever the solver does. */
#define GRAM_ROUNDING 0x1p-20

typedef struct gram {
    float *factor;         /* see above; its diagonal holds 1 / L_cc */
    float *weights;        /* [TILE][GROUP], p */
    float *kbar, *lambda;  /* [channels of whole blocks][GROUP] */
    float *b, *z, *total;  /* likewise */
    double *x, *r, *image; /* [dim_qk][GROUP] */
    double *keys;          /* [TILE][dim_qk] */
    double *product;       /* [TILE][GROUP] */
    double *solution;      /* [dim_qk][LANES]: x of all refined lanes */
    int *lane;             /* [GROUP] whose rows these are; the last ones may repeat the first */
} gram;

static inline int64_t gram_blocks(int64_t d) { return (d + FOUR - 1) / FOUR; }

/* Where block `n` of the factor begins: after blocks of FOUR, 2 FOUR, .. columns. */
static inline int64_t gram_block_at(int64_t n) { return n * (n + 1) / 2 * FOUR * LANES; }

static inline gram gram_carve(const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, f = sizeof(float), f64 = sizeof(double);
    const size_t wide = (size_t)gram_blocks(p->dim_qk) * LANES;
    gram g = { 0 };
    g.factor = arena_take(pool, (size_t)gram_block_at(gram_blocks(p->dim_qk)), f);
    g.weights = arena_take(pool, TILE * GROUP, f);
    g.kbar = arena_take(pool, wide, f);
    g.lambda = arena_take(pool, wide, f);
    g.b = arena_take(pool, wide, f);
    g.z = arena_take(pool, wide, f);
    g.total = arena_take(pool, wide, f);
    g.x = arena_take(pool, d * GROUP, f64);
    g.r = arena_take(pool, d * GROUP, f64);
    g.image = arena_take(pool, d * GROUP, f64);
    g.keys = arena_take(pool, TILE * d, f64);
    g.product = arena_take(pool, TILE * GROUP, f64);
    g.lane = arena_take(pool, GROUP, sizeof(int));
    g.solution = arena_take(pool, d * LANES, f64);
    return g;
}

/* ------------------------------------------------------------------ lanes in and out of the group */

static inline void gram_gather(const gram *g, float *restrict to, const float *restrict panel, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int m = 0; m < GROUP; m++) {
            to[r * GROUP + m] = panel[r * LANES + g->lane[m]];
        }
    }
}

/* The tile of keys from j on, and the weights p of the group on it. */
static inline void gram_tile(const block_system *sys, const gram *g, int64_t j)
{
    key_tile_load(sys->tile, sys->x, j, sys->l->last);
    gram_gather(g, g->weights, sys->weights + (j - sys->l->first) * LANES, sys->tile->n);
    for (int64_t r = 0; r < sys->tile->n; r++) {
        for (int m = 0; m < GROUP; m++) {
            g->weights[r * GROUP + m] *= sys->inverse[g->lane[m]];
        }
    }
}

static inline void gram_begin(const block_system *sys, const gram *g, const float *b, const int *picked,
                              int count)
{
    const int64_t d = sys->x->p->dim_qk, rest = gram_blocks(d) * FOUR - d;
    float *const panels[] = { g->kbar, g->lambda, g->b };
    const float *const from[] = { sys->kbar, sys->lambda, b };
    for (int m = 0; m < GROUP; m++) {
        g->lane[m] = picked[m < count ? m : 0];
    }
    for (int n = 0; n < 3; n++) {
        gram_gather(g, panels[n], from[n], d);
        memset(panels[n] + d * GROUP, 0, (size_t)(rest * GROUP) * sizeof(float));
    }
}

/* ------------------------------------------------------------------ the matrix */

/* scaled [TILE][FOUR][GROUP] <- p kappa_c of the channels c of block n; total takes its sums. */
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

/* factor <- lower triangle of Cov + Lambda, and ones on the diagonal of the channels that fill up the last block. */
static inline void gram_matrix(const block_system *sys, const gram *g)
{
    const int64_t d = sys->x->p->dim_qk, blocks = gram_blocks(d);
    memset(g->factor, 0, (size_t)gram_block_at(blocks) * sizeof(float));
    memset(g->total, 0, (size_t)(blocks * LANES) * sizeof(float));
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE) {
        gram_tile(sys, g, j);
        for (int64_t n = 0; n < blocks; n++) {
            const int64_t columns = (n + 1) * FOUR < d ? (n + 1) * FOUR : d;
            gram_scale_keys(sys, g, n, sys->product);
            panel_product(g->factor + gram_block_at(n), columns, sys->tile->keys, 1, d, sys->product,
                          sys->tile->n, true);
        }
    }
    for (int64_t n = 0; n < blocks; n++) {
        float *block = g->factor + gram_block_at(n);
        for (int64_t c = 0; c < (n + 1) * FOUR; c++) {
            for (int i = 0; i < FOUR; i++) {
                const int64_t r = n * FOUR + i;
                for (int m = 0; m < GROUP; m++) {
                    float *at = block + c * LANES + i * GROUP + m;
                    *at -= g->total[r * GROUP + m] * g->kbar[c * GROUP + m];
                    *at += r == c ? (r < d ? g->lambda[c * GROUP + m] : 1) : 0;
                }
            }
        }
    }
}

/* ------------------------------------------------------------------ Cholesky, one row of attention per lane */

typedef struct gram_square {
    vec x[FOUR][FOUR];
} gram_square;

/* The square of rows of block n and columns of block k, less what the columns before say. */
VEC_INLINE gram_square gram_reduce(const float *rows, const float *columns, int64_t k)
{
    gram_square s;
    for (int i = 0; i < FOUR; i++) {
        for (int j = 0; j < FOUR; j++) {
            s.x[i][j] = v_load(rows + (k * FOUR + j) * LANES + i * GROUP);
        }
    }
    for (int64_t c = 0; c < k * FOUR; c++) {
        vec y[FOUR];
        for (int j = 0; j < FOUR; j++) {
            y[j] = v_load(columns + c * LANES + j * GROUP);
        }
        for (int i = 0; i < FOUR; i++) {
            const vec x = v_load(rows + c * LANES + i * GROUP);
            for (int j = 0; j < FOUR; j++) {
                s.x[i][j] -= x * y[j];
            }
        }
    }
    return s;
}

VEC_INLINE vec v_inverse_root(vec x)
{
    float out[VL];
    v_store(out, x);
    for (int e = 0; e < VL; e++) {
        out[e] = 1 / sqrtf(out[e]);
    }
    return v_load(out);
}

/* Lanes m .. m + VL - 1. Where a pivot is not above 0 the lane's factor is of no use, which its residuals will say. */
static inline void gram_factor_lanes(const gram *g, int64_t blocks, int m)
{
    for (int64_t n = 0; n < blocks; n++) {
        float *rows = g->factor + gram_block_at(n) + m;
        for (int64_t k = 0; k <= n; k++) {
            const float *columns = g->factor + gram_block_at(k) + m;
            const float *corner = columns + k * FOUR * LANES; /* of block k, its diagonal inverted */
            gram_square s = gram_reduce(rows, columns, k);
            for (int j = 0; j < FOUR; j++) {
                vec inverse;
                for (int e = 0; e < j; e++) {
                    const vec y = k < n ? v_load(corner + e * LANES + j * GROUP) : s.x[j][e];
                    for (int i = k < n ? 0 : j; i < FOUR; i++) {
                        s.x[i][j] -= s.x[i][e] * y;
                    }
                }
                if (k < n) {
                    inverse = v_load(corner + j * LANES + j * GROUP);
                } else {
                    inverse = v_inverse_root(v_select(s.x[j][j] > 0, s.x[j][j], v_set(1)));
                    s.x[j][j] = v_set(1);
                }
                for (int i = k < n ? 0 : j; i < FOUR; i++) {
                    s.x[i][j] *= inverse;
                }
            }
            for (int i = 0; i < FOUR; i++) {
                for (int j = 0; j < FOUR; j++) {
                    v_store(rows + (k * FOUR + j) * LANES + i * GROUP, s.x[i][j]);
                }
            }
        }
    }
}

/* z <- (L L^T)^-1 z */
static inline void gram_solve_lanes(const gram *g, int64_t blocks, int m)
{
    for (int64_t n = 0; n < blocks; n++) {
        const float *rows = g->factor + gram_block_at(n) + m, *corner = rows + n * FOUR * LANES;
        float *z = g->z + m, *here = z + n * FOUR * GROUP;
        vec y[FOUR];
        for (int i = 0; i < FOUR; i++) {
            y[i] = v_load(here + i * GROUP);
        }
        for (int64_t c = 0; c < n * FOUR; c++) {
            for (int i = 0; i < FOUR; i++) {
                y[i] -= v_load(rows + c * LANES + i * GROUP) * v_load(z + c * GROUP);
            }
        }
        for (int i = 0; i < FOUR; i++) {
            for (int e = 0; e < i; e++) {
                y[i] -= v_load(corner + e * LANES + i * GROUP) * y[e];
            }
            y[i] *= v_load(corner + i * LANES + i * GROUP);
            v_store(here + i * GROUP, y[i]);
        }
    }
    for (int64_t n = blocks - 1; n >= 0; n--) {
        const float *rows = g->factor + gram_block_at(n) + m, *corner = rows + n * FOUR * LANES;
        float *z = g->z + m, *here = z + n * FOUR * GROUP;
        vec y[FOUR];
        for (int i = FOUR - 1; i >= 0; i--) {
            y[i] = v_load(here + i * GROUP);
            for (int e = i + 1; e < FOUR; e++) {
                y[i] -= v_load(corner + i * LANES + e * GROUP) * y[e];
            }
            y[i] *= v_load(corner + i * LANES + i * GROUP);
            v_store(here + i * GROUP, y[i]);
        }
        for (int64_t c = 0; c < n * FOUR; c++) {
            vec x = v_load(z + c * GROUP);
            for (int i = 0; i < FOUR; i++) {
                x -= v_load(rows + c * LANES + i * GROUP) * y[i];
            }
            v_store(z + c * GROUP, x);
        }
    }
}

/* ------------------------------------------------------------------ residuals in float64 */

enum { PANEL64_ROWS = 6, PANEL64_VECS = 2 };

VEC_INLINE void panel64_rows(const int rows, double *restrict c, const double *restrict a, int64_t row_stride,
                             int64_t t_stride, const double *restrict b, int64_t t_count, bool add)
{
    for (int m = 0; m < GROUP; m += PANEL64_VECS * VL64) {
        vec64 sum[PANEL64_ROWS][PANEL64_VECS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (int n = 0; n < PANEL64_VECS; n++) {
                sum[r][n] = add ? v64_load(c + r * GROUP + m + n * VL64) : v64_set(0);
            }
        }
        for (int64_t t = 0; t < t_count; t++) {
            vec64 x[PANEL64_VECS];
#pragma GCC unroll 2
            for (int n = 0; n < PANEL64_VECS; n++) {
                x[n] = v64_load(b + t * GROUP + m + n * VL64);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const vec64 y = v64_set(a[r * row_stride + t * t_stride]);
#pragma GCC unroll 2
                for (int n = 0; n < PANEL64_VECS; n++) {
                    sum[r][n] += y * x[n];
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 2
            for (int n = 0; n < PANEL64_VECS; n++) {
                v64_store(c + r * GROUP + m + n * VL64, sum[r][n]);
            }
        }
    }
}

/* As panel_product, GROUP doubles wide. */
static inline void panel64_product(double *restrict c, int64_t rows, const double *restrict a,
                                   int64_t row_stride, int64_t t_stride, const double *restrict b,
                                   int64_t t_count, bool add)
{
    int64_t r = 0;
    for (; r + PANEL64_ROWS <= rows; r += PANEL64_ROWS) {
        panel64_rows(PANEL64_ROWS, c + r * GROUP, a + r * row_stride, row_stride, t_stride, b, t_count, add);
    }
    for (; r < rows; r++) {
        panel64_rows(1, c + r * GROUP, a + r * row_stride, row_stride, t_stride, b, t_count, add);
    }
}

/* The tile of keys as doubles. */
static inline void gram_widen_keys(const block_system *sys, const gram *g)
{
    const int64_t count = sys->tile->n * sys->x->p->dim_qk;
    for (int64_t e = 0; e < count; e++) {
        g->keys[e] = (double)sys->tile->keys[e];
    }
}

/* out[m] = sum over channels of x y */
static inline void gram_dot(double *restrict out, const double *x, const float *y, int64_t d)
{
    for (int m = 0; m < GROUP; m++) {
        out[m] = 0;
    }
    for (int64_t c = 0; c < d; c++) {
        for (int m = 0; m < GROUP; m++) {
            out[m] += x[c * GROUP + m] * (double)y[c * GROUP + m];
        }
    }
}

/* r <- b - (Cov + Lambda) x */
static inline void gram_residual(const block_system *sys, const gram *g)
{
    const int64_t d = sys->x->p->dim_qk;
    double centre[GROUP], total[GROUP] = { 0 };
    gram_dot(centre, g->x, g->kbar, d);
    memset(g->image, 0, (size_t)(d * GROUP) * sizeof(double));
    for (int64_t j = sys->l->first; j < sys->l->last; j += TILE) {
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

/* z <- (L L^T)^-1 r / unit, unit the largest |r| of each lane, which keeps it within the range of float. */
static inline void gram_correct(const gram *g, int64_t d, double *restrict unit)
{
    const int64_t blocks = gram_blocks(d);
    for (int m = 0; m < GROUP; m++) {
        unit[m] = 0;
        for (int64_t c = 0; c < d; c++) {
            unit[m] = fmax(unit[m], fabs(g->r[c * GROUP + m]));
        }
        unit[m] = unit[m] > 0 && unit[m] < INFINITY ? unit[m] : 1;
    }
    for (int64_t c = 0; c < d; c++) {
        for (int m = 0; m < GROUP; m++) {
            g->z[c * GROUP + m] = (float)(g->r[c * GROUP + m] / unit[m]);
        }
    }
    memset(g->z + d * GROUP, 0, (size_t)(blocks * FOUR - d) * GROUP * sizeof(float));
    for (int m = 0; m < GROUP; m += VL) {
        gram_solve_lanes(g, blocks, m);
    }
}

/* 1 / the smallest L_cc, near 1 / sqrt(the least eigenvalue): what an error of b becomes in the norm of the system. */
static inline void gram_steepest(const gram *g, int64_t d, double *restrict out)
{
    for (int m = 0; m < GROUP; m++) {
        out[m] = 0;
        for (int64_t c = 0; c < d; c++) {
            const int64_t row = c / FOUR, at = c * LANES + c % FOUR * GROUP + m;
            out[m] = fmax(out[m], (double)g->factor[gram_block_at(row) + at]);
        }
    }
}

typedef struct gram_progress {
    double error[GROUP]; /* relative, in the norm of the system; 1 before the first step */
    double residual[GROUP];
    bool live[GROUP], done[GROUP];
} gram_progress;

/* What the residual and its correction z say of x. */
static inline void gram_judge(const gram *g, int64_t d, const double *unit, double tolerance,
                              gram_progress *at)
{
    double rz[GROUP], xb[GROUP], steepest[GROUP];
    gram_dot(rz, g->r, g->z, d);
    gram_dot(xb, g->x, g->b, d);
    gram_steepest(g, d, steepest);
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

/* One group: solves and puts x of the lanes that made it into the panel and into solution. */
static inline void gram_group(const block_system *sys, const gram *g, int count, float *restrict x,
                              block_result *result)
{
    const double tolerance = (double)block_tolerance(sys->x->p->dtype);
    const int64_t d = sys->x->p->dim_qk;
    double unit[GROUP];
    bool taken[GROUP] = { false };
    gram_progress at;
    gram_matrix(sys, g);
    for (int m = 0; m < GROUP; m += VL) {
        gram_factor_lanes(g, gram_blocks(d), m);
    }
    for (int64_t e = 0; e < d * GROUP; e++) {
        g->x[e] = 0;
        g->r[e] = (double)g->b[e];
    }
    for (int m = 0; m < GROUP; m++) {
        at.error[m] = at.residual[m] = 1;
        at.live[m] = true, at.done[m] = false;
    }
    for (int step = 0; step < GRAM_STEPS_MOST; step++) {
        bool any = false;
        gram_correct(g, d, unit);
        if (step > 0) {
            gram_judge(g, d, unit, tolerance, &at);
        }
        for (int m = 0; m < GROUP; m++) {
            any |= at.live[m];
            const bool last = at.done[m] && !taken[m]; /* the correction is there: x only gains from it */
            for (int64_t c = 0; (at.live[m] || last) && c < d; c++) {
                g->x[c * GROUP + m] += unit[m] * (double)g->z[c * GROUP + m];
            }
            taken[m] = at.done[m];
        }
        if (!any) {
            break;
        }
        gram_residual(sys, g);
    }
    for (int m = 0; m < count; m++) {
        const int lane = g->lane[m];
        for (int64_t c = 0; at.done[m] && c < d; c++) {
            g->solution[c * LANES + lane] = g->x[c * GROUP + m];
            x[c * LANES + lane] = (float)g->x[c * GROUP + m];
        }
        result->accepted[lane] = result->refined[lane] = at.done[m];
        result->residual[lane] = (float)at.residual[m];
    }
}

/* The lanes that are picked, and how many. */
static inline int lanes_of(int *restrict rows, const bool *restrict picked)
{
    int count = 0;
    for (int lane = 0; lane < LANES; lane++) {
        if (picked[lane]) {
            rows[count++] = lane;
        }
    }
    return count;
}

/* x of the lanes in `picked`, those that can be. */
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

/* u of a tile, centred, of the lanes that were refined: from x as it is in float64. product: [TILE][LANES] */
static inline void gram_lines(const block_system *sys, const gram *g, const block_result *result,
                              float *restrict product)
{
    const int64_t d = sys->x->p->dim_qk;
    int rows[LANES];
    const int count = lanes_of(rows, result->refined);
    double centre[GROUP];
    if (count > 0) {
        gram_widen_keys(sys, g);
    }
    for (int first = 0; first < count; first += GROUP) {
        for (int m = 0; m < GROUP; m++) {
            const int lane = rows[first + m < count ? first + m : first];
            centre[m] = 0;
            for (int64_t c = 0; c < d; c++) {
                g->x[c * GROUP + m] = g->solution[c * LANES + lane];
                centre[m] += g->x[c * GROUP + m] * (double)sys->kbar[c * LANES + lane];
            }
        }
        panel64_product(g->product, sys->tile->n, g->keys, d, 1, g->x, d, false);
        for (int64_t r = 0; r < sys->tile->n; r++) {
            for (int m = 0; m < GROUP && first + m < count; m++) {
                product[r * LANES + rows[first + m]] = (float)(g->product[r * GROUP + m] - centre[m]);
            }
        }
    }
}

#endif
