/* SPDX-License-Identifier: MIT
 *
 * Forward of a span of up to 32 tokens of MesaNet, where the condition of its systems is small enough for
 * float32 (the systems are in recurrent/cpu/mesa.h). Rows are tokens. With H symmetric, the product of a
 * vector p_i per token with the token's matrix is
 *
 *     y_i = e^pre_i p_i H + Lambda p_i + sum_{j<=i} m_ij (p_i . k_j) k_j
 *
 * Conjugate gradients in float32 run until their own residual is small enough; the true residual is then
 * computed in float64. The sum that a span adds to a state is float32; the state is float64. */
#ifndef LOAM_RECURRENT_CPU_MESA_SPAN_H
#define LOAM_RECURRENT_CPU_MESA_SPAN_H

#include "src/recurrent/cpu/mesa.h"
#include "src/recurrent/cpu/span.h"

#define MESA_SPAN_CONDITION 512.0 /* the largest bound of the condition: a float32 sum costs states as much */
#define MESA_SPAN_RESOLUTION 3e-7 /* about the least residual that float32 can resolve */
#define MESA_SPAN_MARGIN 0.8      /* of the target: where the recursive residual stops */
enum { MESA_SPAN_ROUNDS = 3 };

typedef struct mesa_span {
    chunk chunk;
    int64_t stride, k_panels; /* d in whole panels, the stride of rows; number of panels */
    float *k, *k_write;       /* [k_panels][SPAN][LANES]: keys; keys times sqrt(e^suf beta) */
    float *h, *state;         /* [k_panels][width][LANES], [width][LANES]: H, and a panel of S, in float32 */
    float *ridge;             /* [stride] */
    float *m, *weighted;      /* [SPAN][SPAN]: m_ij; times p_i . k_j */
    float *p, *r, *product;   /* [SPAN][stride]: direction, recursive residual, y = A p */
    float *correction, *p_decayed; /* [SPAN][stride]: solution of a round; e^pre p */
    float *update;                 /* [LANES][LANES]: what the span adds to a block of S or H */
    double *ridge64;               /* [stride] */
    double *k64, *k_lanes64, *m64; /* [SPAN][stride], [width][SPAN], [SPAN][SPAN] */
    double *x64, *residual, *xh;   /* [SPAN][stride]: solutions, residuals, x H */
    double *weighted64;            /* [SPAN][SPAN] */
    double norm2;                  /* sum of beta |k|^2 */
    loam_row_info info[SPAN];
} mesa_span;

static inline void mesa_span_carve(mesa_span *span, const loam_problem *p, const loam_args *a, arena *pool)
{
    chunk_carve(&span->chunk, p, a, false, pool);
    span->k_panels = (span->chunk.d + LANES - 1) / LANES;
    span->stride = span->k_panels * LANES;
    const size_t wide = (size_t)span->stride, rows = SPAN * wide, square = SPAN * SPAN,
                 width = (size_t)span->chunk.width;
    const struct {
        float **at;
        size_t count;
    } floats[] = {
        { &span->k, rows },
        { &span->k_write, rows },
        { &span->h, width * wide },
        { &span->state, width * LANES },
        { &span->ridge, wide },
        { &span->m, square },
        { &span->weighted, square },
        { &span->p, rows },
        { &span->r, rows },
        { &span->product, rows },
        { &span->correction, rows },
        { &span->p_decayed, rows },
        { &span->update, LANES * LANES },
    };
    const mesa_array doubles[] = {
        { &span->ridge64, wide }, { &span->k64, rows },          { &span->k_lanes64, width * SPAN },
        { &span->m64, square },   { &span->x64, rows },          { &span->residual, rows },
        { &span->xh, rows },      { &span->weighted64, square },
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        *floats[i].at = arena_take(pool, floats[i].count, sizeof(float));
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++)
        *doubles[i].at = arena_take(pool, doubles[i].count, sizeof(double));
}

/* ------------------------------------------------------------------ loading */

static inline void mesa_span_load_ridge(mesa_span *span, const mesa *m)
{
    for (int64_t c = 0; c < span->stride; c++) {
        span->ridge64[c] = c < span->chunk.d ? m->ridge[c] : 1;
        span->ridge[c] = (float)span->ridge64[c];
    }
}

/* to [k_panels][SPAN][LANES] <- factor times rows; 0 beyond the last channel. */
static inline void mesa_span_panels(const mesa_span *span, float *to, const float *rows, const float *factor)
{
    for (int64_t part = 0; part < span->k_panels; part++) {
        FOR_SPAN(t)
        {
            FOR_LANES(lane)
            {
                const int64_t c = part * LANES + lane;
                v_store(to + (part * SPAN + t) * LANES + lane,
                        c < span->chunk.width ? v_load(rows + t * span->chunk.width + c) * factor[t]
                                              : v_set(0));
            }
        }
    }
}

static inline void mesa_span_load(mesa_span *span, int64_t first, int64_t tokens)
{
    chunk *x = &span->chunk;
    float one[SPAN], root[SPAN];
    span_load(x, first, tokens);
    span_decays(x);
    transpose_tile(x->k_lanes, SPAN, x->k, x->width, SPAN, x->width);
    span->norm2 = 0;
    FOR_SPAN(t)
    {
        one[t] = 1;
        root[t] = sqrtf(x->decay_from[t] * x->beta[t]);
        span->norm2 += (double)(x->beta[t] *
                                features_dot(x->k + t * x->width, x->k + t * x->width, x->width));
    }
    mesa_span_panels(span, span->k, x->k, one);
    mesa_span_panels(span, span->k_write, x->k, root);
    span_scale_rows(x, x->k_out, x->k, x->decay_from);
    for (int64_t i = 0; i < BLOCK; i++) /* above the block diagonal */
        memset(x->pair_decay + i * SPAN + BLOCK, 0, BLOCK * sizeof(float));
    for (int64_t e = 0; e < SPAN * SPAN; e += VL)
        v_store(span->m + e, v_load(x->pair_decay + e) * v_load(x->beta + e % SPAN));
    for (int64_t panel = 0; panel < x->panels; panel++)
        span_load_values(x, chunk_panel(x->u, panel), panel);
}

/* ------------------------------------------------------------------ the state, [panels][width][LANES],
 * [width][width] */

/* rows [n][stride] <- total rows + added [n][LANES], for `columns` columns. */
static inline void mesa_span_add(double *rows, int64_t stride, int64_t n, int64_t columns, const float *added,
                                 double total)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < columns; c++)
            rows[r * stride + c] = rows[r * stride + c] * total + (double)added[r * LANES + c];
}

/* Updates the state to the end of the span. */
static inline void mesa_span_advance(const mesa_span *span, double *state)
{
    const chunk *x = &span->chunk;
    ahead none = { 0 };
    const terms_rows added = { span->update, LANES, NULL, NULL };
    const double total = (double)x->total_decay[0];
    for (int64_t from = 0; from < x->d; from += LANES) {
        const int64_t rows = x->d - from < LANES ? x->d - from : LANES;
        for (int64_t panel = 0; panel < x->panels; panel++) {
            const term values = { x->k_out + from, 1, x->width, chunk_panel(x->u, panel), x->tokens };
            terms_sum(added, rows, 1, &values, &none);
            mesa_span_add(mesa_state_panel(x, state, panel) + from * LANES, LANES, rows, LANES, span->update,
                          total);
        }
        for (int64_t to = 0; to < x->d; to += LANES) {
            const int64_t columns = x->d - to < LANES ? x->d - to : LANES;
            const term keys = { span->k_write + from * SPAN, 1, LANES, span->k_write + to * SPAN, x->tokens };
            terms_sum(added, rows, 1, &keys, &none);
            mesa_span_add(mesa_state_h(x, state) + from * x->width + to, x->width, rows, columns,
                          span->update, total);
        }
    }
}

/* H in float32, by panels of 64 columns, for the products. */
static inline void mesa_span_load_h(const mesa_span *span, double *start)
{
    const chunk *x = &span->chunk;
    const double *h = mesa_state_h(x, start);
    for (int64_t part = 0; part < span->k_panels; part++) {
        for (int64_t r = 0; r < x->width; r++) {
            float *row = span->h + (part * x->width + r) * LANES;
            const int64_t from = part * LANES, rest = x->width - from, n = rest < LANES ? rest : LANES;
            narrow(row, h + r * x->width + from, n);
            features_clear_tail(row, n, LANES);
        }
    }
}

/* ------------------------------------------------------------------ conjugate gradients */

/* to[t] = the horizontal sum of part[t]. */
static inline void mesa_span_sums(float *to, const vec *part)
{
    for (int64_t t = 0; t < SPAN; t += VL) {
        vec sums[VL];
#pragma GCC unroll 16
        for (int e = 0; e < (int)VL; e++)
            sums[e] = part[t + e];
        v_store(to + t, v_sums(sums));
    }
}

/* p <- r + beta p; p_decayed <- e^pre p; product <- Lambda p, its first term. */
static inline void mesa_span_direction(const mesa_span *span, const float *beta)
{
    FOR_SPAN(t)
    {
        for (int64_t c = 0; c < span->stride; c += VL) {
            const int64_t e = t * span->stride + c;
            const vec p = v_load(span->r + e) + v_load(span->p + e) * beta[t];
            v_store(span->p + e, p);
            v_store(span->p_decayed + e, p * span->chunk.decay_to[t]);
            v_store(span->product + e, p * v_load(span->ridge + c));
        }
    }
}

/* product += the other terms of A p, for blocks with a row that is not finished. */
static inline void mesa_span_apply(const mesa_span *span, const bool *moves)
{
    const chunk *x = &span->chunk;
    ahead none = { 0 };
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        if (!moves[begin / BLOCK]) continue;
        const int64_t lanes = begin + BLOCK, at = begin * span->stride;
        span_block_products(span->weighted + begin * SPAN, span->p + at, span->stride, x->k_lanes, SPAN, x->d,
                            lanes);
        for (int64_t i = begin; i < begin + BLOCK; i++) {
            for (int64_t lane = 0; lane < lanes; lane += VL) {
                float *pair = span->weighted + i * SPAN + lane;
                v_store(pair, v_load(pair) * v_load(span->m + i * SPAN + lane));
            }
        }
        for (int64_t part = 0; part < span->k_panels; part++) {
            const term terms[] = {
                { span->p_decayed + at, span->stride, 1, span->h + part * x->width * LANES, x->d },
                { span->weighted + begin * SPAN, SPAN, 1, span->k + part * SPAN * LANES, lanes }
            };
            float *rows = span->product + at + part * LANES;
            terms_sum((terms_rows){ rows, span->stride, rows, NULL }, BLOCK, 2, terms, &none);
        }
    }
}

/* to <- p . A p for each row. */
static inline void mesa_span_dots(const mesa_span *span, float *to)
{
    vec part[SPAN];
    FOR_SPAN(t)
    {
        part[t] = v_set(0);
        for (int64_t e = t * span->stride; e < (t + 1) * span->stride; e += VL)
            part[t] += v_load(span->p + e) * v_load(span->product + e);
    }
    mesa_span_sums(to, part);
}

/* correction += alpha p, r -= alpha A p; to <- r . r. */
static inline void mesa_span_update(const mesa_span *span, const float *alpha, float *to)
{
    vec part[SPAN];
    FOR_SPAN(t)
    {
        part[t] = v_set(0);
        for (int64_t e = t * span->stride; e < (t + 1) * span->stride; e += VL) {
            const vec r = v_load(span->r + e) - v_load(span->product + e) * alpha[t];
            v_store(span->correction + e, v_load(span->correction + e) + v_load(span->p + e) * alpha[t]);
            v_store(span->r + e, r);
            part[t] += r * r;
        }
    }
    mesa_span_sums(to, part);
}

/* correction <- an approximate solution for the right side r, whose rows have norm 1 or 0. A row stops when
 * |r|^2 is at most `least`, or when its matrix is not positive in float32. */
static inline void mesa_span_cg(mesa_span *span, const float *least)
{
    const size_t bytes = (size_t)(SPAN * span->stride) * sizeof(float);
    float rr[SPAN], alpha[SPAN] = { 0 }, beta[SPAN] = { 0 }, next[SPAN];
    bool moving[SPAN / BLOCK] = { true, true };
    memset(span->correction, 0, bytes);
    memset(span->p, 0, bytes);
    memset(span->product, 0, bytes);
    mesa_span_update(span, alpha, rr);
    for (int n = 0; n < MESA_ITERATIONS + span->chunk.d && (moving[0] || moving[1]); n++) {
        mesa_span_direction(span, beta);
        mesa_span_apply(span, moving);
        mesa_span_dots(span, alpha);
        FOR_SPAN(t)
        {
            const bool moves = rr[t] > least[t] && alpha[t] > 0;
            alpha[t] = moves ? rr[t] / alpha[t] : 0;
            span->info[t].iterations += moves;
        }
        mesa_span_update(span, alpha, next);
        moving[0] = moving[1] = false;
        FOR_SPAN(t)
        {
            const bool moves = alpha[t] > 0 && next[t] > least[t];
            beta[t] = moves ? next[t] / rr[t] : 0;
            rr[t] = moves ? next[t] : 0;
            moving[t / BLOCK] |= moves;
        }
    }
}

/* ------------------------------------------------------------------ residuals, in float64 */

/* residual <- q - (H_i + Lambda) x for x in x64; P <- e^seg_ij (k_j . x_i), which mesa_span_read uses. */
static inline void mesa_span_residual(mesa_span *span, double *start)
{
    const chunk *x = &span->chunk;
    product64(span->xh, span->stride, x->tokens, mesa_by_rows(span->x64, span->stride),
              mesa_state_h(x, start), x->width, x->d, x->width, false);
    for (int64_t t = 0; t < x->tokens; t++) {
        const double before = (double)x->decay_to[t];
        for (int64_t c = 0; c < x->d; c++) {
            const int64_t e = t * span->stride + c;
            span->residual[e] = span->ridge64[c] * span->x64[e] + before * span->xh[e];
        }
    }
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        const int64_t end = chunk_block_end(x, begin), lanes = begin + BLOCK;
        double *pairs = span->weighted64 + begin * SPAN;
        product64(pairs, SPAN, end - begin, mesa_by_rows(span->x64 + begin * span->stride, span->stride),
                  span->k_lanes64, SPAN, x->d, lanes, false);
        for (int64_t e = begin * SPAN; e < end * SPAN; e++) { /* above the diagonal m is 0 */
            x->P[e] = (float)span->weighted64[e] * x->pair_decay[e];
            span->weighted64[e] *= span->m64[e];
        }
        product64(span->residual + begin * span->stride, span->stride, end - begin, mesa_by_rows(pairs, SPAN),
                  span->k64, span->stride, lanes, span->stride, true);
    }
    for (int64_t t = 0; t < x->tokens; t++) {
        for (int64_t c = 0; c < x->d; c++) {
            const int64_t e = t * span->stride + c;
            span->residual[e] = (double)x->q[t * x->width + c] - span->residual[e];
        }
    }
}

static inline void mesa_span_widen(const mesa_span *span)
{
    const chunk *x = &span->chunk;
    widen(span->k_lanes64, x->k_lanes, x->width * SPAN);
    widen(span->m64, span->m, SPAN * SPAN);
    FOR_SPAN(t)
    {
        for (int64_t part = 0; part < span->k_panels; part++)
            widen(span->k64 + t * span->stride + part * LANES, span->k + (part * SPAN + t) * LANES, LANES);
    }
}

/* ------------------------------------------------------------------ the solve */

/* The accepted residuals, as in mesa_targets. */
static inline void mesa_span_targets(const mesa_span *span, const mesa *m, double trace, const double *size,
                                     double *target)
{
    const chunk *x = &span->chunk;
    float norm2[SPAN], sum[SPAN];
    FOR_SPAN(t) { norm2[t] = features_dot(x->k + t * x->width, x->k + t * x->width, x->width); }
    FOR_SPAN(t) { sum[t] = features_dot(span->m + t * SPAN, norm2, SPAN); }
    FOR_SPAN(t) { target[t] = size[t] * mesa_target(m, (double)sum[t] + (double)x->decay_to[t] * trace); }
}

static inline double mesa_span_norm(const mesa_span *span, int64_t t)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = t * span->stride; c < (t + 1) * span->stride; c++)
        sum += span->residual[c] * span->residual[c];
    return sqrt(sum);
}

/* x64 <- 0, residual <- q, norm [SPAN] <- |q|, the operands in both precisions. Returns the trace of H. */
static inline double mesa_span_begin(mesa_span *span, double *start, double *norm)
{
    const chunk *x = &span->chunk;
    const double *h = mesa_state_h(x, start);
    const size_t bytes = (size_t)(SPAN * span->stride) * sizeof(double);
    double trace = 0;
    for (int64_t c = 0; c < x->d; c++)
        trace += h[c * x->width + c];
    memset(span->x64, 0, bytes);
    memset(span->weighted64, 0, SPAN * SPAN * sizeof(double));
    memset(span->residual, 0, bytes);
    FOR_SPAN(t)
    {
        widen(span->residual + t * span->stride, x->q + t * x->width, x->d);
        norm[t] = mesa_span_norm(span, t);
        span->info[t] = (loam_row_info){ LOAM_ROW_SOLVED, LOAM_SOLVER_CG, 0, 0 };
    }
    mesa_span_load_h(span, start);
    mesa_span_widen(span);
    return trace;
}

/* x64 += a correction by conjugate gradients for the residuals; rows within their target get none. */
static inline void mesa_span_refine(mesa_span *span, const double *norm, const double *target)
{
    float least[SPAN];
    FOR_SPAN(t)
    {
        const bool moves = norm[t] > target[t];
        const double inverse = moves ? 1 / norm[t] : 0;
        const double part = moves ? MESA_SPAN_MARGIN * target[t] * inverse : 1;
        least[t] = (float)(part > MESA_SPAN_RESOLUTION ? part * part
                                                       : MESA_SPAN_RESOLUTION * MESA_SPAN_RESOLUTION);
        for (int64_t e = t * span->stride; e < (t + 1) * span->stride; e++)
            span->r[e] = (float)(span->residual[e] * inverse);
    }
    mesa_span_cg(span, least);
    FOR_SPAN(t)
    {
        for (int64_t e = t * span->stride; e < (t + 1) * span->stride; e++)
            span->x64[e] += norm[t] * (double)span->correction[e];
    }
}

/* x64 <- the solutions for the queries. Returns false if the residual of a row stays too large. */
static inline bool mesa_span_solve(mesa_span *span, const mesa *m, double *start)
{
    double q_norm[SPAN], target[SPAN], norm[SPAN];
    bool moving = true;
    const double trace = mesa_span_begin(span, start, q_norm);
    mesa_span_targets(span, m, trace, q_norm, target);
    memcpy(norm, q_norm, sizeof norm);
    for (int round = 0; round < MESA_SPAN_ROUNDS && moving; round++) {
        mesa_span_refine(span, norm, target);
        mesa_span_residual(span, start);
        moving = false;
        FOR_SPAN(t)
        {
            norm[t] = mesa_span_norm(span, t);
            span->info[t].residual = q_norm[t] > 0 ? (float)(norm[t] / q_norm[t]) : 0;
            moving |= !(norm[t] <= target[t]);
        }
    }
    return !moving;
}

/* o from the solutions, by the read of linear attention with x e^pre for q. */
static inline void mesa_span_read(mesa_span *span, double *start)
{
    chunk *x = &span->chunk;
    ahead none = { 0 };
    FOR_SPAN(t)
    {
        for (int64_t c = 0; c < x->width; c++)
            x->q_in[t * x->width + c] = (float)(span->x64[t * span->stride + c] * (double)x->decay_to[t]);
    }
    for (int64_t panel = 0; panel < x->panels; panel++) {
        narrow(span->state, mesa_state_panel(x, start, panel), x->width * LANES);
        span_read(x, span->state, panel, &none);
    }
}

#endif
