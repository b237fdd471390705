/* SPDX-License-Identifier: MIT
 *
 * Forward of a span of up to 32 tokens of MesaNet, where the condition of its systems is small enough for
 * float32 (the systems are in recurrent/cpu/mesa.h). Rows are tokens. With H symmetric, the product of a vector
 * p_i per token with the token's matrix is
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
#define MESA_SPAN_STEP 3e-7       /* about the least residual that float32 can resolve */
#define MESA_SPAN_PART 0.8        /* of the target: where the recursive residual stops */
enum { MESA_SPAN_ROUNDS = 3 };

typedef struct mesa_span {
    chunk x;
    int64_t wide, parts; /* d in whole panels, the stride of rows; number of panels */
    float *k, *kept;     /* [parts][SPAN][LANES]: keys; keys times sqrt(e^suf beta) */
    float *h, *s;        /* [parts][width][LANES], [width][LANES]: H, and a panel of S, in float32 */
    float *ridge;        /* [wide] */
    float *m, *weighted; /* [SPAN][SPAN]: m_ij; times p_i . k_j */
    float *p, *r, *y, *step, *before; /* [SPAN][wide]; before: e^pre p */
    float *added;                     /* [LANES][LANES] */
    double *ridge64;                  /* [wide] */
    double *k64, *k_lanes64, *m64;    /* [SPAN][wide], [width][SPAN], [SPAN][SPAN] */
    double *x64, *rest, *product;     /* [SPAN][wide]: solutions, residuals, x H */
    double *weighted64;               /* [SPAN][SPAN] */
    double norm2;                     /* sum of beta |k|^2 */
    loam_row_info info[SPAN];
} mesa_span;

static inline void mesa_span_carve(mesa_span *y, const loam_problem *p, const loam_args *a, arena *pool)
{
    chunk_carve(&y->x, p, a, false, pool);
    y->parts = (y->x.d + LANES - 1) / LANES;
    y->wide = y->parts * LANES;
    const size_t wide = (size_t)y->wide, rows = SPAN * wide, square = SPAN * SPAN, width = (size_t)y->x.width;
    const struct {
        float **at;
        size_t count;
    } floats[] = {
        { &y->k, rows },
        { &y->kept, rows },
        { &y->h, width * wide },
        { &y->s, width * LANES },
        { &y->ridge, wide },
        { &y->m, square },
        { &y->weighted, square },
        { &y->p, rows },
        { &y->r, rows },
        { &y->y, rows },
        { &y->step, rows },
        { &y->before, rows },
        { &y->added, LANES * LANES },
    };
    const mesa_part doubles[] = {
        { &y->ridge64, wide }, { &y->k64, rows },          { &y->k_lanes64, width * SPAN },
        { &y->m64, square },   { &y->x64, rows },          { &y->rest, rows },
        { &y->product, rows }, { &y->weighted64, square },
    };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        *floats[i].at = arena_take(pool, floats[i].count, sizeof(float));
    }
    for (size_t i = 0; i < sizeof doubles / sizeof doubles[0]; i++) {
        *doubles[i].at = arena_take(pool, doubles[i].count, sizeof(double));
    }
}

/* ------------------------------------------------------------------ between float and double */

static inline void widen(double *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t e = 0; e < n; e++) {
        to[e] = (double)from[e];
    }
}

static inline void narrow(float *restrict to, const double *restrict from, int64_t n)
{
    for (int64_t e = 0; e < n; e++) {
        to[e] = (float)from[e];
    }
}

/* ------------------------------------------------------------------ loading */

static inline void mesa_span_load_ridge(mesa_span *y, const mesa *m)
{
    for (int64_t c = 0; c < y->wide; c++) {
        y->ridge64[c] = c < y->x.d ? m->ridge[c] : 1;
        y->ridge[c] = (float)y->ridge64[c];
    }
}

/* to [parts][SPAN][LANES] <- factor times rows; 0 beyond the last channel. */
static inline void mesa_span_panels(const mesa_span *y, float *to, const float *rows, const float *factor)
{
    for (int64_t part = 0; part < y->parts; part++) {
        FOR_SPAN(t)
        {
            FOR_LANES(lane)
            {
                const int64_t c = part * LANES + lane;
                v_store(to + (part * SPAN + t) * LANES + lane,
                        c < y->x.width ? v_load(rows + t * y->x.width + c) * factor[t] : v_set(0));
            }
        }
    }
}

static inline void mesa_span_load(mesa_span *y, int64_t first, int64_t tokens)
{
    chunk *x = &y->x;
    float one[SPAN], kept[SPAN];
    span_load(x, first, tokens);
    span_decays(x);
    transpose_tile(x->k_lanes, SPAN, x->k, x->width, SPAN, x->width);
    y->norm2 = 0;
    FOR_SPAN(t)
    {
        one[t] = 1;
        kept[t] = sqrtf(x->after[t] * x->beta[t]);
        y->norm2 += (double)(x->beta[t] * features_dot(x->k + t * x->width, x->k + t * x->width, x->width));
    }
    mesa_span_panels(y, y->k, x->k, one);
    mesa_span_panels(y, y->kept, x->k, kept);
    span_scale_rows(x, x->tail, x->k, x->after);
    for (int64_t i = 0; i < BLOCK; i++) { /* above the block diagonal */
        memset(x->between + i * SPAN + BLOCK, 0, BLOCK * sizeof(float));
    }
    for (int64_t e = 0; e < SPAN * SPAN; e += VL) {
        v_store(y->m + e, v_load(x->between + e) * v_load(x->beta + e % SPAN));
    }
    for (int64_t panel = 0; panel < x->panels; panel++) {
        span_load_values(x, chunk_panel(x->u, panel), panel);
    }
}

/* ------------------------------------------------------------------ the state, [panels][width][LANES],
 * [width][width] */

/* rows [n][stride] <- total rows + added [n][LANES], for `columns` columns. */
static inline void mesa_span_add(double *rows, int64_t stride, int64_t n, int64_t columns, const float *added,
                                 double total)
{
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < columns; c++) {
            rows[r * stride + c] = rows[r * stride + c] * total + (double)added[r * LANES + c];
        }
    }
}

/* Updates the state to the end of the span. */
static inline void mesa_span_advance(const mesa_span *y, double *state)
{
    const chunk *x = &y->x;
    ahead none = { 0 };
    const terms_rows added = { y->added, LANES, NULL, NULL };
    const double total = (double)x->total[0];
    for (int64_t from = 0; from < x->d; from += LANES) {
        const int64_t rows = x->d - from < LANES ? x->d - from : LANES;
        for (int64_t panel = 0; panel < x->panels; panel++) {
            const term values = { x->tail + from, 1, x->width, chunk_panel(x->u, panel), x->tokens };
            terms_sum(added, rows, 1, &values, &none);
            mesa_span_add(mesa_state_panel(x, state, panel) + from * LANES, LANES, rows, LANES, y->added,
                          total);
        }
        for (int64_t to = 0; to < x->d; to += LANES) {
            const int64_t columns = x->d - to < LANES ? x->d - to : LANES;
            const term keys = { y->kept + from * SPAN, 1, LANES, y->kept + to * SPAN, x->tokens };
            terms_sum(added, rows, 1, &keys, &none);
            mesa_span_add(mesa_state_h(x, state) + from * x->width + to, x->width, rows, columns, y->added,
                          total);
        }
    }
}

/* H in float32, by panels of 64 columns, for the products. */
static inline void mesa_span_load_h(const mesa_span *y, double *start)
{
    const chunk *x = &y->x;
    const double *h = mesa_state_h(x, start);
    for (int64_t part = 0; part < y->parts; part++) {
        for (int64_t r = 0; r < x->width; r++) {
            float *row = y->h + (part * x->width + r) * LANES;
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
        for (int e = 0; e < (int)VL; e++) {
            sums[e] = part[t + e];
        }
        v_store(to + t, v_sums(sums));
    }
}

/* p <- r + beta p; before <- e^pre p; y <- Lambda p, the first term of the product. */
static inline void mesa_span_turn(const mesa_span *y, const float *beta)
{
    FOR_SPAN(t)
    {
        for (int64_t c = 0; c < y->wide; c += VL) {
            const int64_t e = t * y->wide + c;
            const vec p = v_load(y->r + e) + v_load(y->p + e) * beta[t];
            v_store(y->p + e, p);
            v_store(y->before + e, p * y->x.before[t]);
            v_store(y->y + e, p * v_load(y->ridge + c));
        }
    }
}

/* y += the other terms of the product with p, for blocks with a row that is not finished. */
static inline void mesa_span_apply(const mesa_span *y, const bool *moves)
{
    const chunk *x = &y->x;
    ahead none = { 0 };
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        if (!moves[begin / BLOCK]) {
            continue;
        }
        const int64_t lanes = begin + BLOCK, at = begin * y->wide;
        span_block_products(y->weighted + begin * SPAN, y->p + at, y->wide, x->k_lanes, SPAN, x->d, lanes);
        for (int64_t i = begin; i < begin + BLOCK; i++) {
            for (int64_t lane = 0; lane < lanes; lane += VL) {
                float *pair = y->weighted + i * SPAN + lane;
                v_store(pair, v_load(pair) * v_load(y->m + i * SPAN + lane));
            }
        }
        for (int64_t part = 0; part < y->parts; part++) {
            const term terms[] = { { y->before + at, y->wide, 1, y->h + part * x->width * LANES, x->d },
                                   { y->weighted + begin * SPAN, SPAN, 1, y->k + part * SPAN * LANES,
                                     lanes } };
            float *rows = y->y + at + part * LANES;
            terms_sum((terms_rows){ rows, y->wide, rows, NULL }, BLOCK, 2, terms, &none);
        }
    }
}

/* to <- p . y for each row. */
static inline void mesa_span_along(const mesa_span *y, float *to)
{
    vec part[SPAN];
    FOR_SPAN(t)
    {
        part[t] = v_set(0);
        for (int64_t e = t * y->wide; e < (t + 1) * y->wide; e += VL) {
            part[t] += v_load(y->p + e) * v_load(y->y + e);
        }
    }
    mesa_span_sums(to, part);
}

/* step += alpha p, r -= alpha y; to <- r . r. */
static inline void mesa_span_move(const mesa_span *y, const float *alpha, float *to)
{
    vec part[SPAN];
    FOR_SPAN(t)
    {
        part[t] = v_set(0);
        for (int64_t e = t * y->wide; e < (t + 1) * y->wide; e += VL) {
            const vec r = v_load(y->r + e) - v_load(y->y + e) * alpha[t];
            v_store(y->step + e, v_load(y->step + e) + v_load(y->p + e) * alpha[t]);
            v_store(y->r + e, r);
            part[t] += r * r;
        }
    }
    mesa_span_sums(to, part);
}

/* step <- an approximate solution for the right side r, whose rows have norm 1 or 0. A row stops when |r|^2
 * is at most `least`, or when its matrix is not positive in float32. */
static inline void mesa_span_gradients(mesa_span *y, const float *least)
{
    const size_t bytes = (size_t)(SPAN * y->wide) * sizeof(float);
    float rr[SPAN], alpha[SPAN] = { 0 }, beta[SPAN] = { 0 }, next[SPAN];
    bool moving[SPAN / BLOCK] = { true, true };
    memset(y->step, 0, bytes);
    memset(y->p, 0, bytes);
    memset(y->y, 0, bytes);
    mesa_span_move(y, alpha, rr);
    for (int n = 0; n < MESA_ITERATIONS + y->x.d && (moving[0] || moving[1]); n++) {
        mesa_span_turn(y, beta);
        mesa_span_apply(y, moving);
        mesa_span_along(y, alpha);
        FOR_SPAN(t)
        {
            const bool moves = rr[t] > least[t] && alpha[t] > 0;
            alpha[t] = moves ? rr[t] / alpha[t] : 0;
            y->info[t].iterations += moves;
        }
        mesa_span_move(y, alpha, next);
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

/* rest <- q - (H_i + Lambda) x for x in x64; P <- e^seg_ij (k_j . x_i), which mesa_span_read uses. */
static inline void mesa_span_rest(mesa_span *y, double *start)
{
    const chunk *x = &y->x;
    product64(y->product, y->wide, x->tokens, mesa_by_rows(y->x64, y->wide), mesa_state_h(x, start), x->width,
              x->d, x->width, false);
    for (int64_t t = 0; t < x->tokens; t++) {
        const double before = (double)x->before[t];
        for (int64_t c = 0; c < x->d; c++) {
            const int64_t e = t * y->wide + c;
            y->rest[e] = y->ridge64[c] * y->x64[e] + before * y->product[e];
        }
    }
    for (int64_t begin = 0; begin < x->tokens; begin += BLOCK) {
        const int64_t end = begin + BLOCK < x->tokens ? begin + BLOCK : x->tokens, lanes = begin + BLOCK;
        double *pairs = y->weighted64 + begin * SPAN;
        product64(pairs, SPAN, end - begin, mesa_by_rows(y->x64 + begin * y->wide, y->wide), y->k_lanes64,
                  SPAN, x->d, lanes, false);
        for (int64_t e = begin * SPAN; e < end * SPAN; e++) { /* above the diagonal m is 0 */
            x->P[e] = (float)y->weighted64[e] * x->between[e];
            y->weighted64[e] *= y->m64[e];
        }
        product64(y->rest + begin * y->wide, y->wide, end - begin, mesa_by_rows(pairs, SPAN), y->k64, y->wide,
                  lanes, y->wide, true);
    }
    for (int64_t t = 0; t < x->tokens; t++) {
        for (int64_t c = 0; c < x->d; c++) {
            const int64_t e = t * y->wide + c;
            y->rest[e] = (double)x->q[t * x->width + c] - y->rest[e];
        }
    }
}

static inline void mesa_span_widen(const mesa_span *y)
{
    const chunk *x = &y->x;
    widen(y->k_lanes64, x->k_lanes, x->width * SPAN);
    widen(y->m64, y->m, SPAN * SPAN);
    FOR_SPAN(t)
    {
        for (int64_t part = 0; part < y->parts; part++) {
            widen(y->k64 + t * y->wide + part * LANES, y->k + (part * SPAN + t) * LANES, LANES);
        }
    }
}

/* ------------------------------------------------------------------ the solve */

/* The accepted residuals, as in mesa_targets. */
static inline void mesa_span_targets(const mesa_span *y, const mesa *m, double trace, const double *size,
                                     double *target)
{
    const chunk *x = &y->x;
    float norm2[SPAN], sum[SPAN];
    FOR_SPAN(t) { norm2[t] = features_dot(x->k + t * x->width, x->k + t * x->width, x->width); }
    FOR_SPAN(t) { sum[t] = features_dot(y->m + t * SPAN, norm2, SPAN); }
    FOR_SPAN(t) { target[t] = size[t] * mesa_target(m, (double)sum[t] + (double)x->before[t] * trace); }
}

static inline double mesa_span_norm(const mesa_span *y, int64_t t)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = t * y->wide; c < (t + 1) * y->wide; c++) {
        sum += y->rest[c] * y->rest[c];
    }
    return sqrt(sum);
}

/* x64 <- the solutions for the queries. Returns false if the residual of a row stays too large. */
static inline bool mesa_span_solve(mesa_span *y, const mesa *m, double *start)
{
    const chunk *x = &y->x;
    const double *h = mesa_state_h(x, start);
    const int64_t n = SPAN * y->wide;
    double size[SPAN], target[SPAN], norm[SPAN], trace = 0;
    float least[SPAN];
    bool moving = true;
    for (int64_t c = 0; c < x->d; c++) {
        trace += h[c * x->width + c];
    }
    memset(y->x64, 0, (size_t)n * sizeof(double));
    memset(y->weighted64, 0, SPAN * SPAN * sizeof(double));
    memset(y->rest, 0, (size_t)n * sizeof(double));
    FOR_SPAN(t)
    {
        widen(y->rest + t * y->wide, x->q + t * x->width, x->d);
        norm[t] = size[t] = mesa_span_norm(y, t);
        y->info[t] = (loam_row_info){ LOAM_ROW_SOLVED, LOAM_SOLVER_CG, 0, 0 };
    }
    mesa_span_targets(y, m, trace, size, target);
    mesa_span_load_h(y, start);
    mesa_span_widen(y);
    for (int round = 0; round < MESA_SPAN_ROUNDS && moving; round++) {
        FOR_SPAN(t)
        {
            const bool moves = norm[t] > target[t];
            const double inverse = moves ? 1 / norm[t] : 0;
            const double part = moves ? MESA_SPAN_PART * target[t] * inverse : 1;
            least[t] = (float)(part > MESA_SPAN_STEP ? part * part : MESA_SPAN_STEP * MESA_SPAN_STEP);
            for (int64_t e = t * y->wide; e < (t + 1) * y->wide; e++) {
                y->r[e] = (float)(y->rest[e] * inverse);
            }
        }
        mesa_span_gradients(y, least);
        FOR_SPAN(t)
        {
            for (int64_t e = t * y->wide; e < (t + 1) * y->wide; e++) {
                y->x64[e] += norm[t] * (double)y->step[e];
            }
        }
        mesa_span_rest(y, start);
        moving = false;
        FOR_SPAN(t)
        {
            norm[t] = mesa_span_norm(y, t);
            y->info[t].residual = size[t] > 0 ? (float)(norm[t] / size[t]) : 0;
            moving |= !(norm[t] <= target[t]);
        }
    }
    return !moving;
}

/* o from the solutions, by the read of linear attention with x e^pre for q. */
static inline void mesa_span_read(mesa_span *y, double *start)
{
    chunk *x = &y->x;
    ahead none = { 0 };
    FOR_SPAN(t)
    {
        for (int64_t c = 0; c < x->width; c++) {
            x->q_in[t * x->width + c] = (float)(y->x64[t * y->wide + c] * (double)x->before[t]);
        }
    }
    for (int64_t panel = 0; panel < x->panels; panel++) {
        narrow(y->s, mesa_state_panel(x, start, panel), x->width * LANES);
        span_read(x, y->s, panel, &none);
    }
}

#endif
