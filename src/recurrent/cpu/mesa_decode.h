/* SPDX-License-Identifier: MIT
 * Decode of MesaNet, one token of one head (von Oswald et al. 2025):
 *
 *     A x = q^,   A = e^g H + beta k k^T + Lambda,   o = e^g S x + beta (k . x) v
 *
 * then S and H are updated. Both are read as the token before wrote them: float rows of the caller, or double
 * rows between the tokens of one call. Sums over what is read are float64, and rounded only when stored. x is
 * computed by iterative refinement: conjugate gradients in float32 on A rounded, residuals in float64 with A
 * itself. If the residuals do not fall, Cholesky in float64. */
#ifndef LOAM_RECURRENT_CPU_MESA_DECODE_H
#define LOAM_RECURRENT_CPU_MESA_DECODE_H

#include "src/base/cholesky.h"
#include "src/recurrent/cpu/features.h"
#include "src/simd/factor64.h"
#include "src/simd/wide.h"

enum {
    MESA_STEP_ROUNDS = 4, /* of refinement: a correction, then a residual */
    MESA_STEP_LINE = 64   /* bytes */
};
#define MESA_STEP_LEAST 1e-4        /* a correction may always reduce the residual to this part */
#define MESA_STEP_GRAIN 5e-9        /* times the condition: the least part that float32 resolves */
#define MESA_STEP_FALLS 0.1         /* refinement ends if a round leaves more than this part */
#define MESA_STEP_WORST 1e-12       /* 1 / condition at or below which only pivots tell a singular A */
#define MESA_STEP_LEAST_PIVOT 1e-14 /* relative to the largest diagonal entry, as in the reference */

/* Rows `step` elements apart, of double if `wide`, else of float; step 0: all rows are the same row. */
typedef struct mesa_rows {
    void *at;
    int64_t step;
    bool wide;
} mesa_rows;

typedef struct mesa_step {
    int64_t d, width, dim_v;
    double *ridge, *k, *q, *x; /* [width], padded with zeros */
    double *ax, *other, *rest; /* [width] */
    double *u;                 /* [dim_v + d rounded up to whole vectors]: beta times v, then beta times k */
    double *y;                 /* [dim_v rounded up to whole vectors]: S x, then o */
    double *zeros, *spare;     /* [width]: in place of rows beyond the last, to read and to write */
    double *state;             /* [rows][width], if a call has more than one token */
    double *system;            /* [d][width]: A, or its Cholesky factor */
    float *a32;                /* [d][width]: A rounded to float */
    float *k32, *x32, *r32, *p32, *ap32;
    double decay, beta;
    double least_ridge, most_ridge;
    double goal, most; /* accepted residual: goal sqrt(1 / condition), and no more than most */
} mesa_step;

static inline mesa_step mesa_step_carve(const loam_problem *p, arena *pool)
{
    const size_t width = (size_t)features_width(p), d = (size_t)p->dim_qk;
    const size_t rows = (size_t)recurrent_state_rows(p) + VL64, f64 = sizeof(double), f32 = sizeof(float);
    const bool half = p->dtype != LOAM_F32;
    mesa_step y = { .d = p->dim_qk, .width = (int64_t)width, .dim_v = p->dim_v };
    y.goal = half ? 1e-4 : 1e-5;
    y.most = half ? 1e-5 : 1e-6;
    double **const vectors[] = { &y.ridge, &y.k, &y.q, &y.x, &y.ax, &y.other, &y.rest, &y.zeros, &y.spare };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        *vectors[i] = arena_take(pool, width, f64);
    }
    float **const floats[] = { &y.k32, &y.x32, &y.r32, &y.p32, &y.ap32 };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++) {
        *floats[i] = arena_take(pool, width, f32);
    }
    y.u = arena_take(pool, rows, f64);
    y.y = arena_take(pool, rows, f64);
    y.a32 = arena_take(pool, d * width, f32);
    y.system = arena_take(pool, d * width, f64);
    y.state = arena_take(pool, p->len_q > 1 ? (rows - VL64) * width : 0, f64);
    return y;
}

static inline void mesa_step_head(const loam_problem *p, const loam_args *a, int64_t h, mesa_step *y)
{
    const int64_t each = p->ridge_axes == LOAM_RIDGE_HEAD_CHANNEL ? 1 : y->d;
    y->least_ridge = HUGE_VAL;
    y->most_ridge = 0;
    for (int64_t c = 0; c < y->d; c += each) {
        const double ridge = recurrent_ridge(p, a, h, c);
        for (int64_t e = c; e < c + each; e++) {
            y->ridge[e] = ridge;
        }
        y->least_ridge = ridge < y->least_ridge ? ridge : y->least_ridge;
        y->most_ridge = ridge > y->most_ridge ? ridge : y->most_ridge;
    }
}

/* ------------------------------------------------------------------ rows */

/* A range of memory to prefetch, line by line. */
typedef struct mesa_ahead {
    uintptr_t at, end;
} mesa_ahead;

static inline void mesa_ahead_rest(mesa_ahead *a)
{
    for (; a->at < a->end; a->at += MESA_STEP_LINE) {
        __builtin_prefetch((const void *)a->at, 0, 2);
    }
}

/* Elements from c on of a row; for a row of float, n of them. */
VEC_INLINE vec64 mesa_row_load(const bool wide, const void *row, int64_t c, int n)
{
    return wide ? v64_load((const double *)row + c) : v64_widen((const float *)row + c, n);
}

VEC_INLINE void mesa_row_store(const bool wide, void *row, int64_t c, vec64 v, int n)
{
    if (wide) {
        v64_store((double *)row + c, v);
    } else {
        v64_narrow((float *)row + c, v, n);
    }
}

VEC_INLINE void *mesa_row_at(const bool wide, mesa_rows rows, int64_t r)
{
    return wide ? (void *)((double *)rows.at + r * rows.step) : (void *)((float *)rows.at + r * rows.step);
}

/* Pointers to VL64 rows from r on; `none` for rows from `count` on. */
VEC_INLINE void mesa_rows_at(const bool wide, mesa_rows rows, int64_t r, int64_t count, double *none,
                             void **at)
{
    for (int e = 0; e < VL64; e++) {
        at[e] = r + e < count ? mesa_row_at(wide, rows, r + e) : none;
    }
}

VEC_INLINE void mesa_move_step(const bool in, const bool out, const bool read, const mesa_step *y,
                               void *const *from, void *const *to, const double *u, int64_t c, int n,
                               vec64 *sum)
{
    const vec64 k = v64_load(y->k + c), x = v64_load(y->x + c);
#pragma GCC unroll 8
    for (int e = 0; e < VL64; e++) {
        const vec64 m = mesa_row_load(in, from[e], c, n);
        mesa_row_store(out, to[e], c, m * y->decay + v64_set(u[e]) * k, n);
        sum[e] += read ? m * x : v64_set(0);
    }
}

/* Rows first .. end - 1 of a state: decayed, plus u k^T. If `read`, y <- the old rows times x. */
VEC_INLINE void mesa_move_as(const bool in, const bool out, const bool read, const mesa_step *y,
                             mesa_rows source, mesa_rows target, int64_t first, int64_t end)
{
    const int rest = (int)(y->d % VL64);
    for (int64_t r = first; r < end; r += VL64) {
        void *from[VL64], *to[VL64];
        vec64 sum[VL64];
        mesa_rows_at(in, source, r, end, y->zeros, from);
        mesa_rows_at(out, target, r, end, y->spare, to);
#pragma GCC unroll 8
        for (int e = 0; e < VL64; e++) {
            sum[e] = v64_set(0);
        }
        for (int64_t c = 0; c < y->d - rest; c += VL64) {
            mesa_move_step(in, out, read, y, from, to, y->u + r, c, VL64, sum);
        }
        if (rest > 0) {
            mesa_move_step(in, out, read, y, from, to, y->u + r, y->d - rest, rest, sum);
        }
        if (read) {
            v64_store(y->y + r, v64_sums(sum));
        }
    }
}

/* The rounding error of the decay as float. It is the same at every token and would add up. */
VEC_INLINE vec mesa_decay_rest(const mesa_step *y)
{
    return v_set((float)(y->decay - (double)(float)y->decay));
}

/* One vector, or the last n channels, of float rows stored as float rows: sums with x are float64, updates
 * are float32. */
VEC_INLINE void mesa_pass_step(const bool read, const mesa_step *y, void *const *from, void *const *to,
                               const float *u, int64_t c, int n, vec64 *sum)
{
    const vec64 low = v64_load(y->x + c), high = v64_load(y->x + c + VL64);
    const vec k = v_load(y->k32 + c), decay = v_set((float)y->decay), rest = mesa_decay_rest(y);
#pragma GCC unroll 8
    for (int e = 0; e < VL64; e++) {
        const float *row = (const float *)from[e] + c;
        float part[VL] = { 0 };
        if (n < VL) {
            memcpy(part, row, (size_t)n * sizeof(float));
            row = part;
        }
        if (read) {
            sum[e] += v64_widen(row, VL64) * low;
            sum[e] += v64_widen(row + VL64, VL64) * high;
        }
        const vec m = v_load(row) * decay + (v_load(row) * rest + v_set(u[e]) * k);
        if (n < VL) {
            memcpy((float *)to[e] + c, &m, (size_t)n * sizeof(float));
        } else {
            v_store((float *)to[e] + c, m);
        }
    }
}

/* mesa_move_as for float rows. */
VEC_INLINE void mesa_pass_as(const bool read, const mesa_step *y, mesa_rows source, mesa_rows target,
                             int64_t first, int64_t end)
{
    const int rest = (int)(y->d % VL);
    for (int64_t r = first; r < end; r += VL64) {
        void *from[VL64], *to[VL64];
        float u[VL64];
        vec64 sum[VL64];
        mesa_rows_at(false, source, r, end, y->zeros, from);
        mesa_rows_at(false, target, r, end, y->spare, to);
        v64_narrow(u, v64_load(y->u + r), VL64);
#pragma GCC unroll 8
        for (int e = 0; e < VL64; e++) {
            sum[e] = v64_set(0);
        }
        for (int64_t c = 0; c < y->d - rest; c += VL) {
            mesa_pass_step(read, y, from, to, u, c, VL, sum);
        }
        if (rest > 0) {
            mesa_pass_step(read, y, from, to, u, y->d - rest, rest, sum);
        }
        if (read) {
            v64_store(y->y + r, v64_sums(sum));
        }
    }
}

VEC_INLINE void mesa_move(const bool in, const bool out, const mesa_step *y, mesa_rows source,
                          mesa_rows target)
{
    const int64_t all = y->dim_v + y->d;
    if (in || out) {
        mesa_move_as(in, out, true, y, source, target, 0, y->dim_v);
        mesa_move_as(in, out, false, y, source, target, y->dim_v, all);
    } else {
        mesa_pass_as(true, y, source, target, 0, y->dim_v);
        mesa_pass_as(false, y, source, target, y->dim_v, all);
    }
}

/* Writes the token to the state, and computes o = e^g S x + beta (k . x) v. */
static inline void mesa_step_move(const mesa_step *y, mesa_rows source, mesa_rows target)
{
    if (source.wide) {
        target.wide ? mesa_move(true, true, y, source, target) : mesa_move(true, false, y, source, target);
    } else {
        target.wide ? mesa_move(false, true, y, source, target) : mesa_move(false, false, y, source, target);
    }
    const double along = v64_dot(y->k, y->x, y->width);
    for (int64_t r = 0; r < y->dim_v; r += VL64) {
        v64_store(y->y + r, v64_load(y->y + r) * y->decay + v64_load(y->u + r) * along);
    }
}

/* ------------------------------------------------------------------ products with A */

VEC_INLINE void mesa_apply_step(const bool wide, const mesa_step *y, void *const *row, const double *x,
                                int64_t c, int n, vec64 *sum)
{
    const vec64 xc = v64_load(y->x + c);
    vec64 other = v64_load(y->other + c);
#pragma GCC unroll 8
    for (int e = 0; e < VL64; e++) {
        const vec64 h = mesa_row_load(wide, row[e], c, n);
        sum[e] += h * xc;
        other += h * v64_set(x[e]);
    }
    v64_store(y->other + c, other);
}

/* ax <- H x, other <- H^T x. */
VEC_INLINE void mesa_apply_as(const bool wide, const mesa_step *y, mesa_rows source)
{
    const int rest = (int)(y->d % VL64);
    memset(y->other, 0, (size_t)y->width * sizeof *y->other);
    for (int64_t r = 0; r < y->d; r += VL64) {
        void *row[VL64];
        double x[VL64];
        vec64 sum[VL64];
        mesa_rows_at(wide, source, y->dim_v + r, y->dim_v + y->d, y->zeros, row);
#pragma GCC unroll 8
        for (int e = 0; e < VL64; e++) {
            sum[e] = v64_set(0);
            x[e] = r + e < y->d ? y->x[r + e] : 0;
        }
        for (int64_t c = 0; c < y->d - rest; c += VL64) {
            mesa_apply_step(wide, y, row, x, c, VL64, sum);
        }
        if (rest > 0) {
            mesa_apply_step(wide, y, row, x, y->d - rest, rest, sum);
        }
        v64_store(y->ax + r, v64_sums(sum));
    }
}

/* rest <- q - A x, with the symmetric part of H. Returns |rest|^2. */
static inline double mesa_step_rest(const mesa_step *y, mesa_rows source)
{
    source.wide ? mesa_apply_as(true, y, source) : mesa_apply_as(false, y, source);
    const double along = y->beta * v64_dot(y->k, y->x, y->width), half = y->decay / 2;
    vec64 square = v64_set(0);
    for (int64_t c = 0; c < y->width; c += VL64) {
        const vec64 hx = (v64_load(y->ax + c) + v64_load(y->other + c)) * half;
        const vec64 rest = v64_load(y->q + c) -
                           (hx + v64_load(y->k + c) * along + v64_load(y->ridge + c) * v64_load(y->x + c));
        v64_store(y->rest + c, rest);
        square += rest * rest;
    }
    return v64_sum(square);
}

/* a32 <- e^g H + beta k k^T from float rows, H as stored (not its symmetric part). */
static inline void mesa_round_narrow(const mesa_step *y, mesa_rows source)
{
    const int rest = (int)(y->d % VL);
    const float decay = (float)y->decay;
    for (int64_t r = 0; r < y->d; r++) {
        const float *row = mesa_row_at(false, source, y->dim_v + r), u = (float)y->u[y->dim_v + r];
        float *to = y->a32 + r * y->width;
        for (int64_t c = 0; c < y->d - rest; c += VL) {
            v_store(to + c, v_load(row + c) * decay + v_load(y->k32 + c) * u);
        }
        if (rest > 0) {
            const int64_t c = y->d - rest;
            v_store(to + c,
                    v_load_part(LOAM_F32, (const char *)(row + c), rest) * decay + v_load(y->k32 + c) * u);
        }
    }
}

/* The same from double rows. */
static inline void mesa_round_wide(const mesa_step *y, mesa_rows source)
{
    for (int64_t r = 0; r < y->d; r++) {
        const double *row = mesa_row_at(true, source, y->dim_v + r), u = y->u[y->dim_v + r];
        for (int64_t c = 0; c < y->width; c += VL64) {
            v64_narrow(y->a32 + r * y->width + c, v64_load(row + c) * y->decay + v64_load(y->k + c) * u,
                       VL64);
        }
    }
}

/* a32 <- A rounded; returns a bound on the norm of A: trace + largest ridge. */
static inline double mesa_step_round(const mesa_step *y, mesa_rows source)
{
    float trace = 0;
    for (int64_t c = 0; c < y->width; c += VL64) {
        v64_narrow(y->k32 + c, v64_load(y->k + c), VL64);
    }
    source.wide ? mesa_round_wide(y, source) : mesa_round_narrow(y, source);
    for (int64_t c = 0; c < y->d; c++) {
        float *at = y->a32 + c * y->width + c;
        trace += *at;
        *at += (float)y->ridge[c];
    }
    return (double)trace + y->most_ridge;
}

enum { MESA_PANEL = 4 };

/* p . A p and A p . A p. */
typedef struct mesa_along {
    vec pap, apap;
} mesa_along;

/* ap32 <- A p32 for `vecs` vectors of columns, and adds their part to the sums. With `asks`,
 * prefetches lines of *ahead. */
VEC_INLINE mesa_along mesa_times_panel(const int vecs, const bool asks, const mesa_step *y, int64_t at,
                                       mesa_along sums, mesa_ahead *ahead)
{
    const float *a = y->a32 + at, *p = y->p32;
    const int64_t width = y->width, d = y->d;
    uintptr_t line = ahead->at;
    vec even[MESA_PANEL], odd[MESA_PANEL];
#pragma GCC unroll 4
    for (int n = 0; n < vecs; n++) {
        even[n] = odd[n] = v_set(0);
    }
    int64_t r = 0;
    for (; r + 2 <= d; r += 2, a += 2 * width) {
        const vec first = v_set(p[r]), second = v_set(p[r + 1]);
        if (asks) {
            __builtin_prefetch((const void *)line, 0, 2);
            __builtin_prefetch((const void *)(line + MESA_STEP_LINE), 0, 2);
            line += 2 * MESA_STEP_LINE;
        }
#pragma GCC unroll 4
        for (int n = 0; n < vecs; n++) {
            even[n] += v_load(a + n * VL) * first;
            odd[n] += v_load(a + width + n * VL) * second;
        }
    }
    ahead->at = line;
#pragma GCC unroll 4
    for (int n = 0; n < vecs; n++) {
        const vec last = r < d ? v_load(a + n * VL) * p[r] : v_set(0), ap = even[n] + odd[n] + last;
        v_store(y->ap32 + at + n * VL, ap);
        sums.pap += ap * v_load(p + at + n * VL);
        sums.apap += ap * ap;
    }
    return sums;
}

VEC_INLINE mesa_along mesa_times_as(const bool asks, const mesa_step *y, mesa_ahead *ahead)
{
    mesa_along sums = { v_set(0), v_set(0) };
    int64_t c = 0;
    for (; c + MESA_PANEL * VL <= y->width; c += MESA_PANEL * VL) {
        sums = mesa_times_panel(MESA_PANEL, asks, y, c, sums, ahead);
    }
    for (; c < y->width; c += VL) {
        sums = mesa_times_panel(1, asks, y, c, sums, ahead);
    }
    return (mesa_along){ v_total(sums.pap), v_total(sums.apap) };
}

/* ap32 <- A p32, with prefetches of the state of the next head. */
static inline mesa_along mesa_times(const mesa_step *y, mesa_ahead *ahead)
{
    return ahead->at < ahead->end ? mesa_times_as(true, y, ahead) : mesa_times_as(false, y, ahead);
}

/* x32 <- an approximate solution for the right side r32, which has norm 1. Ends when |r|^2 is at most
 * `least`, or A is not positive in float32. Returns the number of iterations.
 *
 * As r . A p = p . A p, the next |r|^2 is alpha^2 A p . A p - r . r: the next direction does not wait for the
 * sum over the new r. The test for the end and the next alpha use that sum. */
static inline int mesa_step_gradients(const mesa_step *y, float least, int64_t most, mesa_ahead *ahead)
{
    const size_t bytes = (size_t)y->width * sizeof(float);
    vec rr = v_set(0);
    int count = 0;
    memset(y->x32, 0, bytes);
    memcpy(y->p32, y->r32, bytes);
    for (int64_t c = 0; c < y->width; c += VL) {
        rr += v_load(y->r32 + c) * v_load(y->r32 + c);
    }
    rr = v_total(rr);
    while (count < most && rr[0] > least) {
        const mesa_along sums = mesa_times(y, ahead);
        if (!(sums.pap[0] > 0)) {
            break;
        }
        const vec alpha = rr / sums.pap, onward = v_max(alpha * (sums.apap / sums.pap) - 1, v_set(0));
        rr = v_set(0);
        for (int64_t c = 0; c < y->width; c += VL) {
            const vec p = v_load(y->p32 + c), r = v_load(y->r32 + c) - alpha * v_load(y->ap32 + c);
            v_store(y->x32 + c, v_load(y->x32 + c) + alpha * p);
            v_store(y->r32 + c, r);
            v_store(y->p32 + c, r + onward * p);
            rr += r * r;
        }
        rr = v_total(rr);
        count++;
    }
    return count;
}

/* ------------------------------------------------------------------ the solve */

/* system <- the upper triangle of A; returns its largest diagonal entry. */
VEC_INLINE double mesa_system_as(const bool wide, const mesa_step *y, mesa_rows source)
{
    double largest = 0;
    memset(y->system, 0, (size_t)(y->d * y->width) * sizeof *y->system);
    for (int64_t r = 0; r < y->d; r++) {
        double *to = y->system + r * y->width;
        for (int64_t c = r; c < y->d; c++) {
            const void *one = mesa_row_at(wide, source, y->dim_v + r),
                       *other = mesa_row_at(wide, source, y->dim_v + c);
            const double both = wide ? ((const double *)one)[c] + ((const double *)other)[r]
                                     : (double)((const float *)one)[c] + (double)((const float *)other)[r];
            to[c] = y->decay * both / 2 + y->beta * y->k[r] * y->k[c] + (r == c ? y->ridge[r] : 0);
        }
        largest = to[r] > largest ? to[r] : largest;
    }
    return largest;
}

/* x by Cholesky in float64. */
static inline void mesa_step_exact(const mesa_step *y, mesa_rows source, double size, loam_row_info *info)
{
    const double largest = source.wide ? mesa_system_as(true, y, source) : mesa_system_as(false, y, source);
    info->solver = LOAM_SOLVER_GRAM;
    info->residual = 0;
    if (!factor64(y->system, y->width, y->d, MESA_STEP_LEAST_PIVOT * largest)) {
        info->code = LOAM_ROW_SINGULAR;
        memset(y->x, 0, (size_t)y->width * sizeof *y->x);
        return;
    }
    memcpy(y->x, y->q, (size_t)y->width * sizeof *y->x);
    factor64_solve(y->system, y->width, y->d, y->x);
    const double wrong = sqrt(mesa_step_rest(y, source));
    info->residual = size > 0 ? (float)(wrong / size) : 0;
}

/* x += a correction that leaves `part` of the residual, whose norm is `norm`. Returns the iterations. */
static inline int mesa_step_towards(const mesa_step *y, double norm, double part, int64_t most,
                                    mesa_ahead *ahead)
{
    const double inverse = 1 / norm;
    for (int64_t c = 0; c < y->width; c += VL64) {
        v64_narrow(y->r32 + c, v64_load(y->rest + c) * inverse, VL64);
    }
    const int count = mesa_step_gradients(y, (float)(part * part), most, ahead);
    for (int64_t c = 0; c < y->width; c += VL64) {
        v64_store(y->x + c, v64_load(y->x + c) + v64_widen(y->x32 + c, VL64) * norm);
    }
    return count;
}

/* x = A^-1 q. A residual is accepted by its effect on o, which grows with the square root of the condition
 * number. The trace bounds the condition number. */
static inline loam_row_info mesa_step_solve(const mesa_step *y, mesa_rows source, mesa_ahead *ahead)
{
    const size_t bytes = (size_t)y->width * sizeof(double);
    loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, 0, 0 };
    const double size = sqrt(v64_dot(y->q, y->q, y->width));
    const double largest = mesa_step_round(y, source), inverse = y->least_ridge / largest;
    const double enough = size * fmin(y->goal * sqrt(inverse), y->most);
    const double told = fmin(MESA_STEP_GRAIN / inverse, MESA_STEP_LEAST);
    double norm = size, last = HUGE_VAL;
    memset(y->x, 0, bytes);
    memcpy(y->rest, y->q, bytes);
    if (!(inverse > MESA_STEP_WORST)) {
        mesa_step_exact(y, source, size, &info);
        return info;
    }
    for (int round = 0; round < MESA_STEP_ROUNDS && norm > enough && norm <= MESA_STEP_FALLS * last;
         round++) {
        info.iterations += mesa_step_towards(y, norm, fmax(enough / norm / 2, told), y->d, ahead);
        last = norm;
        norm = sqrt(mesa_step_rest(y, source));
    }
    if (norm <= enough) {
        info.residual = size > 0 ? (float)(norm / size) : 0;
    } else {
        mesa_step_exact(y, source, size, &info);
    }
    return info;
}

#endif
