/* SPDX-License-Identifier: MIT
 *
 * A chunk of up to 64 tokens of MesaNet, with one linear system per token (von Oswald et al. 2025); pre, seg
 * as in recurrent/cpu/chunk.h:
 *
 *     (H_i + Lambda) x_i = x^_i,   H_i = e^pre_i H + sum_{j<=i} m_ji k_j k_j^T,   m_ji = e^seg_ij beta_j
 *     o_i = e^pre_i S x_i + sum_{j<=i} m_ji (k_j . x_i) v_j
 *
 * All systems of the chunk are solved together, lanes are tokens: a product with every H_i is three matrix
 * products. The method is iterative refinement: corrections by conjugate gradients in float32, residuals in
 * float64. States and reads are float64, too: a small ridge makes x large in directions that no key has,
 * where rounding errors of a float32 state are not 0. Rows whose residual does not fall are solved one by
 * one, by Cholesky in float64. If the chunk forgets nothing, its inverses are nested, and two Cholesky
 * factors serve all:
 *
 *     (H_i + Lambda)^-1 = A^-1 - sum_{j<=i} y_j y_j^T,   A = H + Lambda,
 *     Y = R^-1 K~ A^-1,   R R^T = I + K~ A^-1 K~^T,   K~ = Diag(sqrt beta) K */
#ifndef LOAM_RECURRENT_CPU_MESA_H
#define LOAM_RECURRENT_CPU_MESA_H

#include "src/base/cholesky.h"
#include "src/recurrent/cpu/chunk.h"
#include "src/simd/factor64.h"

enum {
    MESA_ROUNDS = 6,     /* of refinement: a correction, then a residual */
    MESA_ITERATIONS = 32 /* at most, of conjugate gradients in a round, besides one per channel */
};
#define MESA_CG_REDUCTION 1e-4 /* a correction stops at this part of the residual at the latest */
#define MESA_STAGNATION 0.1    /* a row stops if a round leaves more than this part of the residual */
#define MESA_LEAST_PIVOT 1e-14 /* relative to the largest diagonal entry, as in the reference */

/* The solutions of all lanes, and products with them. */
typedef struct mesa_lanes {
    double *x, *kx;      /* [width][LANES] the solution; [CHUNK][LANES]: k_j . x_i */
    double *hx;          /* [width][LANES]: e^pre_i H x_i */
    loam_row_info *info; /* [LANES] */
} mesa_lanes;

typedef struct mesa {
    chunk chunk;
    double *ridge, *k, *h;            /* [width]; [CHUNK][width]; [width][width]: the symmetric part of H */
    double *m;                        /* [CHUNK][LANES]: m_ji */
    double *rhs, *residual, *ax;      /* [width][LANES] */
    double *weighted;                 /* [CHUNK][LANES] */
    double *rhs_norm, *target, *norm; /* [LANES]: norms of rhs, of an accepted residual, of the residual */
    double *v, *o, *scaled;           /* [panels][CHUNK][LANES]; [CHUNK][LANES]; [CHUNK][width or LANES] */
    double *inverse, *y, *r;          /* [width][width] A^-1; [CHUNK][width]; [CHUNK][CHUNK] */
    double *system, *right_side;      /* [width][width], [width]: the system of one lane, by Cholesky */
    mesa_lanes query;                 /* x of the queries */
    float *h32, *ridge32, *m32;       /* as above, in float32 */
    float *cg_x, *cg_r, *cg_p, *cg_ap, *cg_kp,
        *decay_transposed; /* [width][LANES], the last two [CHUNK][LANES] */
    bool has_decay;        /* whether a log decay of the chunk is not 0 */
    bool inverted;         /* whether A^-1 and Y are computed */
    ridge_bounds bounds;
} mesa;

typedef struct mesa_array {
    double **at;
    size_t count;
} mesa_array;

static inline void mesa_carve_lanes(mesa_lanes *l, const chunk *x, arena *pool)
{
    l->x = arena_take(pool, (size_t)(x->width * LANES), sizeof(double));
    l->hx = arena_take(pool, (size_t)(x->width * LANES), sizeof(double));
    l->kx = arena_take(pool, CHUNK * LANES, sizeof(double));
    l->info = arena_take(pool, LANES, sizeof(loam_row_info));
}

static inline void mesa_carve(mesa *m, const loam_problem *p, const loam_args *a, arena *pool)
{
    chunk_carve(&m->chunk, p, a, false, pool);
    const size_t width = (size_t)m->chunk.width, lanes = width * LANES, square = CHUNK * LANES;
    const size_t wide = width > LANES ? width : LANES;
    const mesa_array parts[] = {
        { &m->ridge, width },
        { &m->k, lanes },
        { &m->h, width * width },
        { &m->m, square },
        { &m->rhs, lanes },
        { &m->residual, lanes },
        { &m->ax, lanes },
        { &m->weighted, square },
        { &m->rhs_norm, LANES },
        { &m->target, LANES },
        { &m->norm, LANES },
        { &m->v, (size_t)m->chunk.panels * square },
        { &m->o, square },
        { &m->scaled, CHUNK * wide },
        { &m->inverse, width * width },
        { &m->y, lanes },
        { &m->r, square },
        { &m->system, width * width },
        { &m->right_side, width },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i].at = arena_take(pool, parts[i].count, sizeof(double));
    const struct {
        float **at;
        size_t count;
    } floats[] = {
        { &m->h32, width * width }, { &m->ridge32, width }, { &m->m32, square },
        { &m->cg_x, lanes },        { &m->cg_r, lanes },    { &m->cg_p, lanes },
        { &m->cg_ap, lanes },       { &m->cg_kp, square },  { &m->decay_transposed, square },
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        *floats[i].at = arena_take(pool, floats[i].count, sizeof(float));
    mesa_carve_lanes(&m->query, &m->chunk, pool);
}

static inline matrix64 mesa_by_rows(const double *at, int64_t stride) { return (matrix64){ at, stride, 1 }; }
static inline matrix64 mesa_by_columns(const double *at, int64_t stride)
{
    return (matrix64){ at, 1, stride };
}

/* ------------------------------------------------------------------ states, in float64
 *
 * S^T by panels of 64 channels of v, [panels][width][LANES]; then H [width][width]. */

static inline int64_t mesa_state_doubles(const chunk *x) { return (x->panels * LANES + x->width) * x->width; }

static inline double *mesa_state_panel(const chunk *x, double *state, int64_t panel)
{
    return state + panel * x->width * LANES;
}

static inline double *mesa_state_h(const chunk *x, double *state)
{
    return state + x->panels * x->width * LANES;
}

static inline double *mesa_state_at(const chunk *x, double *state, int64_t r, int64_t c)
{
    return r < x->p->dim_v ? &state[(r / LANES * x->width + c) * LANES + r % LANES]
                           : &mesa_state_h(x, state)[(r - x->p->dim_v) * x->width + c];
}

static inline void mesa_load_state(const chunk *x, const loam_const_view *in, double *state)
{
    memset(state, 0, (size_t)mesa_state_doubles(x) * sizeof *state);
    for (int64_t r = 0; in->data && r < recurrent_state_rows(x->p); r++) {
        const float *row = (const float *)in->data + RECURRENT_AT(*in, x->seq.index, x->h, r);
        for (int64_t c = 0; c < x->d; c++)
            *mesa_state_at(x, state, r, c) = (double)row[c];
    }
}

static inline void mesa_store_state(const chunk *x, const loam_view *out, double *state)
{
    for (int64_t r = 0; out->data && r < recurrent_state_rows(x->p); r++) {
        float *row = (float *)out->data + RECURRENT_AT(*out, x->seq.index, x->h, r);
        for (int64_t c = 0; c < x->d; c++)
            row[c] = (float)*mesa_state_at(x, state, r, c);
    }
}

static inline void widen(double *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t e = 0; e < n; e++)
        to[e] = (double)from[e];
}

static inline void narrow(float *restrict to, const double *restrict from, int64_t n)
{
    for (int64_t e = 0; e < n; e++)
        to[e] = (float)from[e];
}

/* to[c][t] = from[t][c]. */
static inline void mesa_transpose(double *to, int64_t to_stride, const double *from, int64_t from_stride,
                                  int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            to[c * to_stride + r] = from[r * from_stride + c];
}

/* to[t][c] = factor_t from[t][c]. */
static inline void mesa_scale_rows(double *to, const double *from, int64_t width, const double *factor)
{
    for (int64_t t = 0; t < CHUNK; t++)
        for (int64_t c = 0; c < width; c += VL64)
            v64_store(to + t * width + c, v64_load(from + t * width + c) * factor[t]);
}

/* Updates S and H to the end of the chunk. */
static inline void mesa_advance(const mesa *m, double *state)
{
    const chunk *x = &m->chunk;
    double keep[CHUNK];
    const double total = (double)x->total_decay[0];
    for (int64_t e = 0; e < mesa_state_doubles(x); e += VL64)
        v64_store(state + e, v64_load(state + e) * total);
    for (int64_t t = 0; t < CHUNK; t++)
        keep[t] = (double)x->decay_from[t] * (double)x->beta[t];
    for (int64_t panel = 0; panel < x->panels; panel++) {
        mesa_scale_rows(m->scaled, m->v + panel * CHUNK * LANES, LANES, keep);
        product64(mesa_state_panel(x, state, panel), LANES, x->d, mesa_by_columns(m->k, x->width), m->scaled,
                  LANES, x->tokens, LANES, true);
    }
    mesa_scale_rows(m->scaled, m->k, x->width, keep);
    product64(mesa_state_h(x, state), x->width, x->d, mesa_by_columns(m->k, x->width), m->scaled, x->width,
              x->tokens, x->width, true);
}

/* ------------------------------------------------------------------ loading */

static inline void mesa_load_head(mesa *m)
{
    m->bounds = ridge_load(m->chunk.p, m->chunk.a, m->chunk.h, m->ridge);
    for (int64_t c = m->chunk.d; c < m->chunk.width; c++)
        m->ridge[c] = 1;
    narrow(m->ridge32, m->ridge, m->chunk.width);
}

/* to [CHUNK][width] <- factor times the features of the tokens. */
static inline void mesa_load_features(const chunk *x, const loam_const_view *view, double factor, double *to)
{
    memset(to, 0, (size_t)(CHUNK * x->width) * sizeof *to);
    for (int64_t t = 0; t < x->tokens; t++)
        features_load64(x->p, view, &x->seq, x->h, x->first + t, factor, x->row, to + t * x->width);
}

static inline void mesa_load(mesa *m, int64_t first, int64_t tokens)
{
    chunk *x = &m->chunk;
    float one[CHUNK];
    chunk_load(x, first, tokens);
    chunk_token_decays(x);
    chunk_clear_tail(x, x->pair_decay, LANES);
    transpose_tile(m->decay_transposed, LANES, x->pair_decay, LANES, CHUNK, LANES); /* e^seg_ij at [j][i] */
    m->has_decay = false;
    for (int64_t t = 0; t < CHUNK; t++) {
        one[t] = 1;
        m->has_decay |= t < tokens && x->gate[t] != 0;
    }
    for (int64_t e = 0; e < CHUNK * LANES; e++) {
        m->m32[e] = m->decay_transposed[e] * x->beta[e / LANES];
        m->m[e] = (double)m->decay_transposed[e] * (double)x->beta[e / LANES];
    }
    mesa_load_features(x, &x->a->k, 1, m->k);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        chunk_load_values(x, &x->a->v, one, panel, x->o);
        widen(m->v + panel * CHUNK * LANES, x->o, CHUNK * LANES);
    }
}

/* Loads the symmetric part of H before the chunk. */
static inline void mesa_load_h(mesa *m, double *start)
{
    const int64_t width = m->chunk.width;
    const double *h = mesa_state_h(&m->chunk, start);
    for (int64_t r = 0; r < width; r++) {
        for (int64_t c = 0; c < width; c++) {
            const double both = (h[r * width + c] + h[c * width + r]) / 2;
            m->h[r * width + c] = both;
            m->h32[r * width + c] = (float)both;
        }
    }
    m->inverted = false;
}

/* ------------------------------------------------------------------ products with every H_i + Lambda */

/* ax <- (H_i + Lambda) x_i for each lane i, with hx and kx; weighted <- m_ji (k_j . x_i). */
static inline void mesa_apply(const mesa *m, const mesa_lanes *l)
{
    const chunk *x = &m->chunk;
    product64(l->hx, LANES, x->d, mesa_by_rows(m->h, x->width), l->x, LANES, x->d, LANES, false);
    product64(l->kx, LANES, CHUNK, mesa_by_rows(m->k, x->width), l->x, LANES, x->d, LANES, false);
    for (int64_t e = 0; e < CHUNK * LANES; e += VL64)
        v64_store(m->weighted + e, v64_load(m->m + e) * v64_load(l->kx + e));
    for (int64_t c = 0; c < x->d; c++) {
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t e = c * LANES + lane;
            l->hx[e] *= (double)x->decay_to[lane];
            m->ax[e] = l->hx[e] + m->ridge[c] * l->x[e];
        }
    }
    product64(m->ax, LANES, x->d, mesa_by_columns(m->k, x->width), m->weighted, LANES, x->tokens, LANES,
              true);
}

/* cg_ap <- (H_i + Lambda) cg_p in float32. */
static inline void mesa_apply32(const mesa *m)
{
    const chunk *x = &m->chunk;
    panel_product(m->cg_ap, x->d, m->h32, x->width, 1, m->cg_p, x->d, false);
    panel_product(m->cg_kp, x->tokens, x->k, x->width, 1, m->cg_p, x->d, false);
    for (int64_t e = 0; e < x->tokens * LANES; e += VL)
        v_store(m->cg_kp + e, v_load(m->cg_kp + e) * v_load(m->m32 + e));
    for (int64_t c = 0; c < x->d; c++) {
        FOR_LANES(lane)
        {
            const int64_t e = c * LANES + lane;
            v_store(m->cg_ap + e,
                    v_load(m->cg_ap + e) * v_load(x->decay_to + lane) + v_load(m->cg_p + e) * m->ridge32[c]);
        }
    }
    panel_product(m->cg_ap, x->d, x->k, 1, x->width, m->cg_kp, x->tokens, true);
}

/* ------------------------------------------------------------------ corrections */

/* cg_x <- an approximate solution for the right side cg_r, whose columns have norm 1 or 0. A lane stops when
 * its residual is half the target, or MESA_CG_REDUCTION if that is larger, or when its matrix is not
 * positive in float32. */
static inline void mesa_cg(const mesa *m, loam_row_info *info)
{
    const int64_t d = m->chunk.d;
    float rr[LANES], pap[LANES], next[LANES], least[LANES];
    bool moving = true;
    for (int lane = 0; lane < LANES; lane++) {
        const double part = m->norm[lane] > 0 ? m->target[lane] / m->norm[lane] / 2 : 1;
        least[lane] = (float)(part > MESA_CG_REDUCTION ? part * part : MESA_CG_REDUCTION * MESA_CG_REDUCTION);
    }
    memset(m->cg_x, 0, (size_t)(d * LANES) * sizeof(float));
    memcpy(m->cg_p, m->cg_r, (size_t)(d * LANES) * sizeof(float));
    panel_dot(rr, m->cg_r, m->cg_r, d);
    for (int n = 0; n < MESA_ITERATIONS + d && moving; n++) {
        mesa_apply32(m);
        panel_dot(pap, m->cg_p, m->cg_ap, d);
        for (int lane = 0; lane < LANES; lane++) {
            const bool moves = rr[lane] > least[lane] && pap[lane] > 0;
            pap[lane] = moves ? rr[lane] / pap[lane] : 0;
            info[lane].iterations += moves;
        }
        for (int64_t c = 0; c < d; c++) {
            FOR_LANES(lane)
            {
                const int64_t e = c * LANES + lane;
                const vec alpha = v_load(pap + lane);
                v_store(m->cg_x + e, v_load(m->cg_x + e) + alpha * v_load(m->cg_p + e));
                v_store(m->cg_r + e, v_load(m->cg_r + e) - alpha * v_load(m->cg_ap + e));
            }
        }
        panel_dot(next, m->cg_r, m->cg_r, d);
        moving = false;
        for (int lane = 0; lane < LANES; lane++) {
            const bool moves = pap[lane] > 0 && next[lane] > least[lane];
            pap[lane] = moves ? next[lane] / rr[lane] : 0;
            rr[lane] = moves ? next[lane] : 0;
            moving |= moves;
        }
        for (int64_t e = 0; e < d * LANES; e += VL)
            v_store(m->cg_p + e, v_load(m->cg_r + e) + v_load(pap + e % LANES) * v_load(m->cg_p + e));
    }
}

/* inverse <- A^-1 = U^-1 U^-T. */
static inline bool mesa_invert_start(const mesa *m)
{
    const int64_t d = m->chunk.d, width = m->chunk.width;
    double largest = 0;
    memcpy(m->inverse, m->h, (size_t)(width * width) * sizeof(double));
    for (int64_t c = 0; c < d; c++) {
        m->inverse[c * width + c] += m->ridge[c];
        largest = fmax(largest, m->inverse[c * width + c]);
    }
    if (!factor64(m->inverse, width, d, MESA_LEAST_PIVOT * largest)) return false;
    memset(m->system, 0, (size_t)(width * width) * sizeof(double));
    for (int64_t c = 0; c < d; c++)
        m->system[c * width + c] = 1;
    factor64_rows(m->inverse, width, d, m->system, width, m->right_side);
    product64(m->inverse, width, width, mesa_by_columns(m->system, width), m->system, width, d, width, false);
    return true;
}

/* Computes A^-1 and Y; returns false if A is singular. */
static inline bool mesa_invert(mesa *m)
{
    const chunk *x = &m->chunk;
    const int64_t width = x->width;
    double root[CHUNK];
    if (!mesa_invert_start(m)) return false;
    for (int64_t t = 0; t < CHUNK; t++)
        root[t] = sqrt((double)x->beta[t]);
    mesa_scale_rows(m->scaled, m->k, width, root);
    mesa_transpose(m->ax, LANES, m->scaled, width, CHUNK, width);
    product64(m->y, width, CHUNK, mesa_by_rows(m->scaled, width), m->inverse, width, x->d, width, false);
    product64(m->r, LANES, CHUNK, mesa_by_rows(m->y, width), m->ax, LANES, x->d, LANES, false);
    for (int64_t t = 0; t < CHUNK; t++)
        m->r[t * LANES + t] += 1;
    if (!factor64(m->r, LANES, CHUNK, 0)) return false;
    factor64_rows(m->r, LANES, CHUNK, m->y, width, m->right_side);
    return true;
}

/* ax <- (A^-1 - sum_{j<=i} y_j y_j^T) rest_i. */
static inline void mesa_apply_inverse(const mesa *m)
{
    const chunk *x = &m->chunk;
    product64(m->ax, LANES, x->d, mesa_by_rows(m->inverse, x->width), m->residual, LANES, x->d, LANES, false);
    product64(m->weighted, LANES, x->tokens, mesa_by_rows(m->y, x->width), m->residual, LANES, x->d, LANES,
              false);
    for (int64_t j = 0; j < x->tokens; j++)
        for (int64_t lane = 0; lane < LANES; lane++)
            m->weighted[j * LANES + lane] *= j <= lane ? -1 : 0;
    product64(m->ax, LANES, x->d, mesa_by_columns(m->y, x->width), m->weighted, LANES, x->tokens, LANES,
              true);
}

/* x += a correction, the approximate solution for the residual in rest. */
static inline void mesa_correct(mesa *m, const mesa_lanes *l)
{
    const int64_t n = m->chunk.d * LANES;
    if (m->inverted) {
        mesa_apply_inverse(m);
        for (int64_t e = 0; e < n; e++)
            l->x[e] += m->ax[e];
        return;
    }
    double inverse[LANES];
    for (int lane = 0; lane < LANES; lane++)
        inverse[lane] = m->norm[lane] > 0 ? 1 / m->norm[lane] : 0;
    for (int64_t e = 0; e < n; e++)
        m->cg_r[e] = (float)(m->residual[e] * inverse[e % LANES]);
    mesa_cg(m, l->info);
    for (int64_t e = 0; e < n; e++)
        l->x[e] += m->norm[e % LANES] * (double)m->cg_x[e];
}

/* ------------------------------------------------------------------ the solve */

static inline void mesa_norms(const mesa *m, double *to, const double *of)
{
    for (int lane = 0; lane < LANES; lane++)
        to[lane] = 0;
    for (int64_t c = 0; c < m->chunk.d; c++)
        for (int lane = 0; lane < LANES; lane++)
            to[lane] += of[c * LANES + lane] * of[c * LANES + lane];
    for (int lane = 0; lane < LANES; lane++)
        to[lane] = sqrt(to[lane]);
}

/* The accepted residual for a right side of norm 1. Its effect on gradients grows with the condition number,
 * which the trace of H_i bounds; its effect on outputs grows with the square root. */
static inline double mesa_target(const mesa *m, double trace)
{
    const loam_problem *p = m->chunk.p;
    const bool half = p->dtype != LOAM_F32, root = p->pass == LOAM_FORWARD;
    const double goal = half ? 1e-4 : 1e-5, most = root ? goal : goal / 10, least = 1e-13;
    const double inverse = m->bounds.least / (trace + m->bounds.most);
    const double part = goal * (root ? sqrt(inverse) : inverse);
    return part > most ? most : part > least ? part : least;
}

static inline void mesa_targets(const mesa *m)
{
    const chunk *x = &m->chunk;
    double trace[LANES] = { 0 }, before = 0;
    for (int64_t c = 0; c < x->d; c++)
        before += m->h[c * x->width + c];
    for (int64_t j = 0; j < x->tokens; j++) {
        const double norm2 = cholesky_dot(m->k + j * x->width, m->k + j * x->width, x->d);
        for (int lane = 0; lane < LANES; lane++)
            trace[lane] += m->m[j * LANES + lane] * norm2;
    }
    for (int lane = 0; lane < LANES; lane++) {
        m->target[lane] = m->rhs_norm[lane] *
                          mesa_target(m, trace[lane] + (double)x->decay_to[lane] * before);
    }
}

/* rest <- rhs - (H_i + Lambda) x. */
static inline void mesa_residual(const mesa *m, const mesa_lanes *l)
{
    mesa_apply(m, l);
    for (int64_t e = 0; e < m->chunk.d * LANES; e++)
        m->residual[e] = m->rhs[e] - m->ax[e];
}

/* Solves the system of lane i alone, by Cholesky in float64. */
static inline void mesa_solve_lane(const mesa *m, const mesa_lanes *l, int64_t i)
{
    const chunk *x = &m->chunk;
    const int64_t d = x->d, width = x->width;
    double largest = 0, part[CHUNK];
    for (int64_t j = 0; j < CHUNK; j++)
        part[j] = m->m[j * LANES + i];
    mesa_scale_rows(m->scaled, m->k, width, part);
    for (int64_t e = 0; e < width * width; e++)
        m->system[e] = (double)x->decay_to[i] * m->h[e];
    product64(m->system, width, d, mesa_by_columns(m->k, width), m->scaled, width, i + 1, width, true);
    for (int64_t r = 0; r < d; r++) {
        m->system[r * width + r] += m->ridge[r];
        largest = fmax(largest, m->system[r * width + r]);
        m->right_side[r] = m->rhs[r * LANES + i];
    }
    l->info[i].solver = LOAM_SOLVER_GRAM;
    if (factor64(m->system, width, d, MESA_LEAST_PIVOT * largest)) {
        factor64_solve(m->system, width, d, m->right_side);
    } else {
        l->info[i].code = LOAM_ROW_SINGULAR;
        memset(m->right_side, 0, (size_t)d * sizeof(double));
    }
    for (int64_t r = 0; r < d; r++)
        l->x[r * LANES + i] = m->right_side[r];
}

static inline void mesa_clear_lane(const mesa *m, int lane)
{
    m->norm[lane] = 0;
    for (int64_t c = 0; c < m->chunk.d; c++)
        m->residual[c * LANES + lane] = 0;
}

/* How far the lanes are. A lane stalls if a round did not reduce its residual enough. */
typedef struct mesa_progress {
    bool done[LANES], stalled[LANES];
} mesa_progress;

static inline bool mesa_moves(const mesa_progress *at, int lane)
{
    return !at->done[lane] && !at->stalled[lane];
}

/* x <- 0; residuals, targets, infos. Returns whether there is a lane to solve. */
static inline bool mesa_begin_solve(const mesa *m, const mesa_lanes *l, mesa_progress *at)
{
    bool moving = false;
    memset(l->x, 0, (size_t)(m->chunk.width * LANES) * sizeof(double));
    memcpy(m->residual, m->rhs, (size_t)(m->chunk.d * LANES) * sizeof(double));
    mesa_norms(m, m->rhs_norm, m->rhs);
    mesa_targets(m);
    memcpy(m->norm, m->rhs_norm, LANES * sizeof(double));
    for (int lane = 0; lane < LANES; lane++) {
        at->done[lane] = m->rhs_norm[lane] == 0;
        at->stalled[lane] = false;
        moving |= !at->done[lane];
        l->info[lane] = (loam_row_info){ LOAM_ROW_SOLVED, m->inverted ? LOAM_SOLVER_GRAM : LOAM_SOLVER_CG, 0,
                                         0 };
    }
    return moving;
}

/* A round of refinement: a correction of the lanes that move, and their residuals. Returns whether any still
 * moves. */
static inline bool mesa_refine(mesa *m, const mesa_lanes *l, mesa_progress *at)
{
    double last[LANES];
    bool moving = false;
    memcpy(last, m->norm, sizeof last);
    mesa_correct(m, l);
    mesa_residual(m, l);
    mesa_norms(m, m->norm, m->residual);
    for (int lane = 0; lane < LANES; lane++) {
        if (mesa_moves(at, lane)) {
            l->info[lane].residual = (float)(m->norm[lane] / m->rhs_norm[lane]);
            at->done[lane] = m->norm[lane] <= m->target[lane];
            at->stalled[lane] = !at->done[lane] && !(m->norm[lane] <= MESA_STAGNATION * last[lane]);
        }
        moving |= mesa_moves(at, lane);
        if (!mesa_moves(at, lane)) mesa_clear_lane(m, lane);
    }
    return moving;
}

/* l <- the solutions for rhs, with hx and kx. The steps of a lane do not depend on the other lanes: while
 * others still run, its corrections are 0. */
static inline void mesa_solve(mesa *m, const mesa_lanes *l)
{
    mesa_progress at;
    m->inverted = m->inverted || (!m->has_decay && mesa_invert(m));
    bool moving = mesa_begin_solve(m, l, &at),
         current = false; /* current: hx, kx and weighted are those of x */
    for (int round = 0; round < MESA_ROUNDS && moving; round++) {
        moving = mesa_refine(m, l, &at);
        current = true;
    }
    for (int lane = 0; lane < LANES; lane++) {
        if (!at.done[lane]) {
            mesa_solve_lane(m, l, lane);
            current = false;
        }
    }
    if (!current) {
        mesa_residual(m, l);
        mesa_norms(m, m->norm, m->residual);
    }
    for (int lane = 0; lane < LANES; lane++) {
        if (!at.done[lane]) {
            const bool solved = l->info[lane].code == LOAM_ROW_SOLVED;
            l->info[lane].residual = solved ? (float)(m->norm[lane] / m->rhs_norm[lane]) : 0;
        }
    }
}

/* Solves the systems of the queries. */
static inline void mesa_solve_queries(mesa *m)
{
    const chunk *x = &m->chunk;
    mesa_load_features(x, &x->a->q, x->p->scale, m->scaled);
    mesa_transpose(m->rhs, LANES, m->scaled, x->width, CHUNK, x->width);
    mesa_solve(m, &m->query);
}

/* ------------------------------------------------------------------ the read */

/* m->o <- o of a panel, from the state before the chunk; m->weighted is still that of mesa_solve_queries. */
static inline void mesa_read(const mesa *m, double *start, int64_t panel)
{
    const chunk *x = &m->chunk;
    product64(m->o, LANES, x->tokens, mesa_by_columns(m->query.x, LANES), mesa_state_panel(x, start, panel),
              LANES, x->d, LANES, false);
    for (int64_t t = 0; t < x->tokens; t++) {
        for (int64_t lane = 0; lane < LANES; lane += VL64) {
            double *o = m->o + t * LANES + lane;
            v64_store(o, v64_load(o) * (double)x->decay_to[t]);
        }
    }
    product64(m->o, LANES, x->tokens, mesa_by_columns(m->weighted, LANES), m->v + panel * CHUNK * LANES,
              LANES, x->tokens, LANES, true);
}

#endif
