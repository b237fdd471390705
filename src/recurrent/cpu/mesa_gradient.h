/* SPDX-License-Identifier: MIT
 *
 * Backward of a chunk of MesaNet, float64. dS and dH are the gradients of the state at its end,
 * D_ji = e^seg_ij, b beta, and the rest is as in recurrent/cpu/mesa.h:
 *
 *     dx_i = e^pre_i S^T do_i + sum_{j<=i} m_ji (v_j . do_i) k_j,   (H_i + Lambda) z_i = dx_i,   dx^_i = z_i
 *     dLambda = -sum_i z_i x_i,   fit_ji = v_j . do_i - k_j . z_i
 *     dv_j = b_j (sum_{i>=j} D_ji (k_j . x_i) do_i + e^suf_j dS k_j)
 *     dk_j = b_j (sum_{i>=j} D_ji (fit_ji x_i - (k_j . x_i) z_i) + e^suf_j (dS^T v_j + (dH + dH^T) k_j))
 *     db_j = sum_{i>=j} D_ji fit_ji (k_j . x_i) + e^suf_j (v_j . dS k_j + k_j . dH k_j)
 *     dS <- e^pre_last dS + sum_i e^pre_i do_i x_i^T
 *     dH <- e^pre_last dH - sum_i e^pre_i (z_i x_i^T + x_i z_i^T) / 2
 *
 * and gates from sums over the decays that span them, as in recurrent/cpu/chunk_gradient.h. */
#ifndef LOAM_RECURRENT_CPU_MESA_GRADIENT_H
#define LOAM_RECURRENT_CPU_MESA_GRADIENT_H

#include "src/recurrent/cpu/chunk_gradient.h"
#include "src/recurrent/cpu/mesa.h"

typedef struct mesa_gradient {
    mesa_lanes adjoint;        /* z */
    double *grad_o;            /* [panels][CHUNK][LANES] */
    double *transposed;        /* [LANES][CHUNK]: grad_o or v of one panel, lanes are tokens */
    double *k_lanes;           /* [width][LANES] */
    double *sx;                /* [width][LANES]: e^pre_i S^T do_i */
    double *v_dot_do;          /* [CHUNK][LANES]: v_j . do_i */
    double *x_rows, *z_rows;   /* [CHUNK][width] */
    double *coeff_x, *coeff_z; /* [CHUNK][LANES]: D fit and -D k.x, of x_i and z_i in dk_j */
    double *pairs;             /* [CHUNK][LANES]: D fit k.x */
    double *state;             /* laid out as a state: dS, dH at the end */
    double *k_out;             /* [width][LANES]: dS^T v + (dH + dH^T) k */
    double *h_k, *h;           /* [width][LANES]: (dH + dH^T) k; [width][width]: dH + dH^T */
    double *state_terms;       /* [LANES]: v . dS k + k . dH k */
    double *ridge;             /* [width]: dLambda of the chunk */
    double *k;                 /* [CHUNK][width] */
    gradient result;           /* its q_rows, k_rows, gate, beta and w */
} mesa_gradient;

static inline void mesa_gradient_carve(mesa_gradient *g, const chunk *x, arena *pool)
{
    const size_t width = (size_t)x->width, lanes = width * LANES, square = CHUNK * LANES;
    const mesa_array parts[] = {
        { &g->grad_o, (size_t)x->panels * square },
        { &g->transposed, square },
        { &g->k_lanes, lanes },
        { &g->sx, lanes },
        { &g->v_dot_do, square },
        { &g->x_rows, lanes },
        { &g->z_rows, lanes },
        { &g->coeff_x, square },
        { &g->coeff_z, square },
        { &g->pairs, square },
        { &g->state, (size_t)mesa_state_doubles(x) },
        { &g->k_out, lanes },
        { &g->h_k, lanes },
        { &g->h, width * width },
        { &g->state_terms, LANES },
        { &g->ridge, width },
        { &g->k, lanes },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        *parts[i].at = arena_take(pool, parts[i].count, sizeof(double));
    mesa_carve_lanes(&g->adjoint, x, pool);
    g->result = (gradient){ 0 };
    g->result.q_rows = arena_take(pool, lanes, sizeof(float));
    g->result.k_rows = arena_take(pool, lanes, sizeof(float));
    g->result.gate = arena_take(pool, CHUNK, sizeof(float));
    g->result.beta = arena_take(pool, CHUNK, sizeof(float));
    g->result.w = arena_take(pool, (size_t)x->panels * square, sizeof(float));
}

/* ------------------------------------------------------------------ of any chunk, from S and H
 * at its start */

/* Rows that were not solved have no gradients. */
static inline void mesa_load_grad_o(mesa_gradient *g, const mesa *m)
{
    const chunk *x = &m->chunk;
    float solved[CHUNK];
    for (int64_t t = 0; t < CHUNK; t++)
        solved[t] = m->query.info[t].code == LOAM_ROW_SOLVED ? 1 : 0;
    for (int64_t panel = 0; panel < x->panels; panel++) {
        chunk_load_values(x, &x->a->grad_o, solved, panel, x->o);
        widen(g->grad_o + panel * CHUNK * LANES, x->o, CHUNK * LANES);
    }
}

/* x, z and dLambda. */
static inline void mesa_gradient_prepare(mesa_gradient *g, mesa *m, double *start)
{
    const chunk *x = &m->chunk;
    mesa_load_h(m, start);
    mesa_solve_queries(m);
    mesa_load_grad_o(g, m);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        const int64_t at = panel * CHUNK * LANES;
        mesa_transpose(g->transposed, LANES, g->grad_o + at, LANES, CHUNK, LANES);
        product64(g->sx, LANES, x->d, mesa_by_rows(mesa_state_panel(x, start, panel), LANES), g->transposed,
                  LANES, LANES, LANES, panel > 0);
        product64(g->v_dot_do, LANES, CHUNK, mesa_by_rows(m->v + at, LANES), g->transposed, LANES, LANES,
                  LANES, panel > 0);
    }
    for (int64_t e = 0; e < x->d * LANES; e++)
        g->sx[e] *= (double)x->decay_to[e % LANES];
    for (int64_t e = 0; e < CHUNK * LANES; e++)
        m->weighted[e] = m->m[e] * g->v_dot_do[e];
    memset(m->rhs, 0, (size_t)(x->width * LANES) * sizeof(double));
    memcpy(m->rhs, g->sx, (size_t)(x->d * LANES) * sizeof(double));
    product64(m->rhs, LANES, x->d, mesa_by_columns(m->k, x->width), m->weighted, LANES, x->tokens, LANES,
              true);
    mesa_solve(m, &g->adjoint);
    mesa_transpose(g->x_rows, x->width, m->query.x, LANES, x->width, CHUNK);
    mesa_transpose(g->z_rows, x->width, g->adjoint.x, LANES, x->width, CHUNK);
    for (int64_t c = 0; c < x->width; c++)
        g->ridge[c] = -cholesky_dot(g->adjoint.x + c * LANES, m->query.x + c * LANES, x->tokens);
}

/* ------------------------------------------------------------------ chunk after chunk */

/* On entry `state` is the gradient at the end, which is copied to g->state; `state` becomes the
 * gradient at the start. */
static inline void mesa_gradient_advance(mesa_gradient *g, const mesa *m, double *state)
{
    const chunk *x = &m->chunk;
    const double total = (double)x->total_decay[0];
    double reads[CHUNK], halves[CHUNK];
    memcpy(g->state, state, (size_t)mesa_state_doubles(x) * sizeof *state);
    for (int64_t e = 0; e < mesa_state_doubles(x); e += VL64)
        v64_store(state + e, v64_load(state + e) * total);
    for (int64_t t = 0; t < CHUNK; t++) {
        reads[t] = (double)x->decay_to[t];
        halves[t] = (double)x->decay_to[t] / -2;
    }
    for (int64_t panel = 0; panel < x->panels; panel++) {
        mesa_scale_rows(m->scaled, g->grad_o + panel * CHUNK * LANES, LANES, reads);
        product64(mesa_state_panel(x, state, panel), LANES, x->d, mesa_by_rows(m->query.x, LANES), m->scaled,
                  LANES, x->tokens, LANES, true);
    }
    double *h = mesa_state_h(x, state);
    mesa_scale_rows(m->scaled, g->x_rows, x->width, halves);
    product64(h, x->width, x->d, mesa_by_rows(g->adjoint.x, LANES), m->scaled, x->width, x->tokens, x->width,
              true);
    mesa_scale_rows(m->scaled, g->z_rows, x->width, halves);
    product64(h, x->width, x->d, mesa_by_rows(m->query.x, LANES), m->scaled, x->width, x->tokens, x->width,
              true);
}

/* ------------------------------------------------------------------ of any chunk, from dS and dH
 * at its end */

/* The factors of pairs of tokens. */
static inline void mesa_gradient_pairs(mesa_gradient *g, const mesa *m)
{
    for (int64_t e = 0; e < CHUNK * LANES; e++) {
        const double decay = (double)m->decay_transposed[e], kx = m->query.kx[e];
        const double fit = g->v_dot_do[e] - g->adjoint.kx[e];
        g->coeff_x[e] = decay * fit;
        g->coeff_z[e] = -decay * kx;
        g->pairs[e] = decay * fit * kx;
    }
}

/* rows.w <- dv; out <- dS^T v. */
static inline void mesa_gradient_values(mesa_gradient *g, mesa *m)
{
    const chunk *x = &m->chunk;
    double keep[CHUNK];
    for (int64_t t = 0; t < CHUNK; t++)
        keep[t] = -(double)x->decay_from[t];
    mesa_scale_rows(g->k, m->k, x->width, keep);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        const int64_t at = panel * CHUNK * LANES;
        const double *grad = mesa_state_panel(x, g->state, panel);
        product64(m->o, LANES, x->tokens, mesa_by_rows(g->coeff_z, LANES), g->grad_o + at, LANES, x->tokens,
                  LANES, false);
        product64(m->o, LANES, x->tokens, mesa_by_rows(g->k, x->width), grad, LANES, x->d, LANES, true);
        for (int64_t e = 0; e < x->tokens * LANES; e++)
            g->result.w[at + e] = (float)(m->o[e] * -(double)x->beta[e / LANES]);
        mesa_transpose(g->transposed, LANES, m->v + at, LANES, CHUNK, LANES);
        product64(g->k_out, LANES, x->d, mesa_by_rows(grad, LANES), g->transposed, LANES, LANES, LANES,
                  panel > 0);
    }
}

/* keep <- v . dS k + k . dH k; out += (dH + dH^T) k. */
static inline void mesa_gradient_keys(mesa_gradient *g, const mesa *m)
{
    const chunk *x = &m->chunk;
    const double *h = mesa_state_h(x, g->state);
    for (int64_t r = 0; r < x->width; r++)
        for (int64_t c = 0; c < x->width; c++)
            g->h[r * x->width + c] = h[r * x->width + c] + h[c * x->width + r];
    mesa_transpose(g->k_lanes, LANES, m->k, x->width, CHUNK, x->width);
    product64(g->h_k, LANES, x->d, mesa_by_rows(g->h, x->width), g->k_lanes, LANES, x->d, LANES, false);
    memset(g->state_terms, 0, LANES * sizeof(double));
    for (int64_t c = 0; c < x->d; c++) {
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t e = c * LANES + lane;
            g->state_terms[lane] += (g->k_out[e] + g->h_k[e] / 2) * g->k_lanes[e];
            g->k_out[e] += g->h_k[e];
        }
    }
}

/* Rows of dq^ and dk, and dbeta. */
static inline void mesa_gradient_rows(mesa_gradient *g, const mesa *m)
{
    const chunk *x = &m->chunk;
    const int64_t width = x->width;
    product64(g->k, width, x->tokens, mesa_by_rows(g->coeff_x, LANES), g->x_rows, width, x->tokens, width,
              false);
    product64(g->k, width, x->tokens, mesa_by_rows(g->coeff_z, LANES), g->z_rows, width, x->tokens, width,
              true);
    for (int64_t t = 0; t < x->tokens; t++) {
        const double after = (double)x->decay_from[t], beta = (double)x->beta[t];
        double pairs = 0;
        for (int64_t i = t; i < x->tokens; i++)
            pairs += g->pairs[t * LANES + i];
        g->result.beta[t] = (float)(pairs + after * g->state_terms[t]);
        for (int64_t c = 0; c < width; c++) {
            const double out = c < x->d ? after * g->k_out[c * LANES + t] : 0;
            g->result.q_rows[t * width + c] = (float)g->z_rows[t * width + c];
            g->result.k_rows[t * width + c] = (float)(beta * (g->k[t * width + c] + out));
        }
    }
}

static inline void mesa_gradient_gates(const mesa_gradient *g, const mesa *m, const double *start)
{
    const chunk *x = &m->chunk;
    double reads[LANES] = { 0 }, over[CHUNK] = { 0 }, later = 0, earlier = 0;
    const double state_term = (double)x->total_decay[0] *
                              cholesky_dot(start, g->state, mesa_state_doubles(x));
    for (int64_t c = 0; c < x->d; c++) {
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t e = c * LANES + lane;
            reads[lane] += g->sx[e] * m->query.x[e] - m->query.hx[e] * g->adjoint.x[e];
        }
    }
    double gate[CHUNK];
    for (int64_t t = x->tokens - 1; t >= 0; t--) {
        double pairs = 0;
        for (int64_t j = 0; j < t; j++) {
            over[j] += (double)x->beta[j] * g->pairs[j * LANES + t];
            pairs += over[j];
        }
        later += reads[t];
        gate[t] = state_term + later + pairs;
    }
    for (int64_t t = 0; t < x->tokens; t++) {
        g->result.gate[t] = (float)(gate[t] + earlier);
        earlier += (double)x->decay_from[t] * (double)x->beta[t] * g->state_terms[t];
    }
}

static inline void mesa_gradient_finish(mesa_gradient *g, mesa *m, const double *start)
{
    mesa_gradient_pairs(g, m);
    mesa_gradient_values(g, m);
    mesa_gradient_keys(g, m);
    mesa_gradient_rows(g, m);
    mesa_gradient_gates(g, m, start);
}

#endif
