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

enum { MESA_DECODE_ROUNDS = 4 };        /* of refinement: a correction, then a residual */
#define MESA_DECODE_REDUCTION 1e-4      /* a correction may always reduce the residual to this part */
#define MESA_DECODE_RESOLUTION 5e-9     /* times the condition: the least part that float32 resolves */
#define MESA_DECODE_STAGNATION 0.1      /* refinement ends if a round leaves more than this part */
#define MESA_DECODE_LEAST_INVERSE 1e-12 /* 1 / condition at or below which only pivots tell a singular A */
#define MESA_DECODE_LEAST_PIVOT 1e-14   /* relative to the largest diagonal entry, as in the reference */

/* Rows `stride` elements apart, of double if `wide`, else of float; stride 0: all rows are the same row. */
typedef struct mesa_rows {
    void *at;
    int64_t stride;
    bool wide;
} mesa_rows;

typedef struct mesa_decode {
    int64_t d, width, dim_v;
    double *ridge, *k, *q, *x;   /* [width], padded with zeros */
    double *ax, *htx, *residual; /* [width]: H x or A x, H^T x, q - A x */
    double *u;             /* [dim_v + d rounded up to whole vectors]: beta times v, then beta times k */
    double *y;             /* [dim_v rounded up to whole vectors]: S x, then o */
    double *zeros, *spare; /* [width]: in place of rows beyond the last, to read and to write */
    double *state;         /* [rows][width], if a call has more than one token */
    double *system;        /* [d][width]: A, or its Cholesky factor */
    float *a32;            /* [d][width]: A rounded to float */
    float *k32, *x32, *r32, *p32, *ap32;
    double decay, beta;
    ridge_bounds bounds;
    double goal, most; /* accepted residual: goal sqrt(1 / condition), and no more than most */
} mesa_decode;

static inline mesa_decode mesa_decode_carve(const loam_problem *p, arena *pool)
{
    const size_t width = (size_t)features_width(p), d = (size_t)p->dim_qk;
    const size_t rows = (size_t)recurrent_state_rows(p) + VL64, f64 = sizeof(double), f32 = sizeof(float);
    const bool half = p->dtype != LOAM_F32;
    mesa_decode m = { .d = p->dim_qk, .width = (int64_t)width, .dim_v = p->dim_v };
    m.goal = half ? 1e-4 : 1e-5;
    m.most = half ? 1e-5 : 1e-6;
    double **const vectors[] = { &m.ridge, &m.k, &m.q, &m.x, &m.ax, &m.htx, &m.residual, &m.zeros, &m.spare };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        *vectors[i] = arena_take(pool, width, f64);
    float **const floats[] = { &m.k32, &m.x32, &m.r32, &m.p32, &m.ap32 };
    for (size_t i = 0; i < sizeof floats / sizeof floats[0]; i++)
        *floats[i] = arena_take(pool, width, f32);
    m.u = arena_take(pool, rows, f64);
    m.y = arena_take(pool, rows, f64);
    m.a32 = arena_take(pool, d * width, f32);
    m.system = arena_take(pool, d * width, f64);
    m.state = arena_take(pool, p->len_q > 1 ? (rows - VL64) * width : 0, f64);
    return m;
}

/* ------------------------------------------------------------------ rows */

/* A range of memory to prefetch, line by line. */
typedef struct prefetch_range {
    uintptr_t at, end;
} prefetch_range;

static inline void prefetch_rest(prefetch_range *a)
{
    for (; a->at < a->end; a->at += CACHE_LINE)
        __builtin_prefetch((const void *)a->at, 0, 2);
}

/* Elements from c on of a row; for a row of float, n of them. */
VEC_INLINE vec64 mesa_row_load(const bool wide, const void *row, int64_t c, int n)
{
    return wide ? v64_load((const double *)row + c) : v64_widen((const float *)row + c, n);
}

VEC_INLINE void mesa_row_store(const bool wide, void *row, int64_t c, vec64 v, int n)
{
    if (wide)
        v64_store((double *)row + c, v);
    else
        v64_narrow((float *)row + c, v, n);
}

VEC_INLINE void *mesa_row_at(const bool wide, mesa_rows rows, int64_t r)
{
    return wide ? (void *)((double *)rows.at + r * rows.stride)
                : (void *)((float *)rows.at + r * rows.stride);
}

/* Pointers to VL64 rows from r on; `none` for rows from `count` on. */
VEC_INLINE void mesa_rows_at(const bool wide, mesa_rows rows, int64_t r, int64_t count, double *none,
                             void **at)
{
    for (int e = 0; e < VL64; e++)
        at[e] = r + e < count ? mesa_row_at(wide, rows, r + e) : none;
}

VEC_INLINE void mesa_update_step(const bool in, const bool out, const bool read, const mesa_decode *m,
                                 void *const *from, void *const *to, const double *u, int64_t c, int n,
                                 vec64 *sum)
{
    const vec64 k = v64_load(m->k + c), x = v64_load(m->x + c);
#pragma GCC unroll 8
    for (int e = 0; e < VL64; e++) {
        const vec64 row = mesa_row_load(in, from[e], c, n);
        mesa_row_store(out, to[e], c, row * m->decay + v64_set(u[e]) * k, n);
        sum[e] += read ? row * x : v64_set(0);
    }
}

/* Rows first .. end - 1 of a state: decayed, plus u k^T. If `read`, y <- the old rows times x. */
VEC_INLINE void mesa_update_rows(const bool in, const bool out, const bool read, const mesa_decode *m,
                                 mesa_rows source, mesa_rows target, int64_t first, int64_t end)
{
    const int rest = (int)(m->d % VL64);
    for (int64_t r = first; r < end; r += VL64) {
        void *from[VL64], *to[VL64];
        vec64 sum[VL64];
        mesa_rows_at(in, source, r, end, m->zeros, from);
        mesa_rows_at(out, target, r, end, m->spare, to);
#pragma GCC unroll 8
        for (int e = 0; e < VL64; e++)
            sum[e] = v64_set(0);
        for (int64_t c = 0; c < m->d - rest; c += VL64)
            mesa_update_step(in, out, read, m, from, to, m->u + r, c, VL64, sum);
        if (rest > 0) mesa_update_step(in, out, read, m, from, to, m->u + r, m->d - rest, rest, sum);
        if (read) v64_store(m->y + r, v64_sums(sum));
    }
}

/* The rounding error of the decay as float. It is the same at every token and would add up. */
VEC_INLINE vec mesa_decay_error(const mesa_decode *m)
{
    return v_set((float)(m->decay - (double)(float)m->decay));
}

/* One vector, or the last n channels, of float rows stored as float rows: sums with x are float64, updates
 * are float32. */
VEC_INLINE void mesa_update_floats_step(const bool read, const mesa_decode *m, void *const *from,
                                        void *const *to, const float *u, int64_t c, int n, vec64 *sum)
{
    const vec64 x_lo = v64_load(m->x + c), x_hi = v64_load(m->x + c + VL64);
    const vec k = v_load(m->k32 + c), decay = v_set((float)m->decay), error = mesa_decay_error(m);
#pragma GCC unroll 8
    for (int e = 0; e < VL64; e++) {
        const float *row = (const float *)from[e] + c;
        float part[VL] = { 0 };
        if (n < VL) {
            memcpy(part, row, (size_t)n * sizeof(float));
            row = part;
        }
        if (read) {
            sum[e] += v64_widen(row, VL64) * x_lo;
            sum[e] += v64_widen(row + VL64, VL64) * x_hi;
        }
        const vec updated = v_load(row) * decay + (v_load(row) * error + v_set(u[e]) * k);
        if (n < VL)
            memcpy((float *)to[e] + c, &updated, (size_t)n * sizeof(float));
        else
            v_store((float *)to[e] + c, updated);
    }
}

/* mesa_update_rows for float rows. */
VEC_INLINE void mesa_update_floats(const bool read, const mesa_decode *m, mesa_rows source, mesa_rows target,
                                   int64_t first, int64_t end)
{
    const int rest = (int)(m->d % VL);
    for (int64_t r = first; r < end; r += VL64) {
        void *from[VL64], *to[VL64];
        float u[VL64];
        vec64 sum[VL64];
        mesa_rows_at(false, source, r, end, m->zeros, from);
        mesa_rows_at(false, target, r, end, m->spare, to);
        v64_narrow(u, v64_load(m->u + r), VL64);
#pragma GCC unroll 8
        for (int e = 0; e < VL64; e++)
            sum[e] = v64_set(0);
        for (int64_t c = 0; c < m->d - rest; c += VL)
            mesa_update_floats_step(read, m, from, to, u, c, VL, sum);
        if (rest > 0) mesa_update_floats_step(read, m, from, to, u, m->d - rest, rest, sum);
        if (read) v64_store(m->y + r, v64_sums(sum));
    }
}

VEC_INLINE void mesa_update_state(const bool in, const bool out, const mesa_decode *m, mesa_rows source,
                                  mesa_rows target)
{
    const int64_t all = m->dim_v + m->d;
    if (in || out) {
        mesa_update_rows(in, out, true, m, source, target, 0, m->dim_v);
        mesa_update_rows(in, out, false, m, source, target, m->dim_v, all);
    } else {
        mesa_update_floats(true, m, source, target, 0, m->dim_v);
        mesa_update_floats(false, m, source, target, m->dim_v, all);
    }
}

/* Writes the token to the state, and computes o = e^g S x + beta (k . x) v. */
static inline void mesa_decode_update(const mesa_decode *m, mesa_rows source, mesa_rows target)
{
    if (source.wide) {
        target.wide ? mesa_update_state(true, true, m, source, target)
                    : mesa_update_state(true, false, m, source, target);
    } else {
        target.wide ? mesa_update_state(false, true, m, source, target)
                    : mesa_update_state(false, false, m, source, target);
    }
    const double along = v64_dot(m->k, m->x, m->width);
    for (int64_t r = 0; r < m->dim_v; r += VL64)
        v64_store(m->y + r, v64_load(m->y + r) * m->decay + v64_load(m->u + r) * along);
}

/* ------------------------------------------------------------------ products with A */

VEC_INLINE void mesa_apply_step(const bool wide, const mesa_decode *m, void *const *row, const double *x,
                                int64_t c, int n, vec64 *sum)
{
    const vec64 xc = v64_load(m->x + c);
    vec64 other = v64_load(m->htx + c);
#pragma GCC unroll 8
    for (int e = 0; e < VL64; e++) {
        const vec64 h = mesa_row_load(wide, row[e], c, n);
        sum[e] += h * xc;
        other += h * v64_set(x[e]);
    }
    v64_store(m->htx + c, other);
}

/* ax <- H x, other <- H^T x. */
VEC_INLINE void mesa_apply_as(const bool wide, const mesa_decode *m, mesa_rows source)
{
    const int rest = (int)(m->d % VL64);
    memset(m->htx, 0, (size_t)m->width * sizeof *m->htx);
    for (int64_t r = 0; r < m->d; r += VL64) {
        void *row[VL64];
        double x[VL64];
        vec64 sum[VL64];
        mesa_rows_at(wide, source, m->dim_v + r, m->dim_v + m->d, m->zeros, row);
#pragma GCC unroll 8
        for (int e = 0; e < VL64; e++) {
            sum[e] = v64_set(0);
            x[e] = r + e < m->d ? m->x[r + e] : 0;
        }
        for (int64_t c = 0; c < m->d - rest; c += VL64)
            mesa_apply_step(wide, m, row, x, c, VL64, sum);
        if (rest > 0) mesa_apply_step(wide, m, row, x, m->d - rest, rest, sum);
        v64_store(m->ax + r, v64_sums(sum));
    }
}

/* rest <- q - A x, with the symmetric part of H. Returns |rest|^2. */
static inline double mesa_decode_residual(const mesa_decode *m, mesa_rows source)
{
    source.wide ? mesa_apply_as(true, m, source) : mesa_apply_as(false, m, source);
    const double along = m->beta * v64_dot(m->k, m->x, m->width), half = m->decay / 2;
    vec64 square = v64_set(0);
    for (int64_t c = 0; c < m->width; c += VL64) {
        const vec64 hx = (v64_load(m->ax + c) + v64_load(m->htx + c)) * half;
        const vec64 rest = v64_load(m->q + c) -
                           (hx + v64_load(m->k + c) * along + v64_load(m->ridge + c) * v64_load(m->x + c));
        v64_store(m->residual + c, rest);
        square += rest * rest;
    }
    return v64_sum(square);
}

/* a32 <- e^g H + beta k k^T from float rows, H as stored (not its symmetric part). */
static inline void mesa_round_narrow(const mesa_decode *m, mesa_rows source)
{
    const int rest = (int)(m->d % VL);
    const float decay = (float)m->decay;
    for (int64_t r = 0; r < m->d; r++) {
        const float *row = mesa_row_at(false, source, m->dim_v + r), u = (float)m->u[m->dim_v + r];
        float *to = m->a32 + r * m->width;
        for (int64_t c = 0; c < m->d - rest; c += VL)
            v_store(to + c, v_load(row + c) * decay + v_load(m->k32 + c) * u);
        if (rest > 0) {
            const int64_t c = m->d - rest;
            v_store(to + c,
                    v_load_part(LOAM_F32, (const char *)(row + c), rest) * decay + v_load(m->k32 + c) * u);
        }
    }
}

/* The same from double rows. */
static inline void mesa_round_wide(const mesa_decode *m, mesa_rows source)
{
    for (int64_t r = 0; r < m->d; r++) {
        const double *row = mesa_row_at(true, source, m->dim_v + r), u = m->u[m->dim_v + r];
        for (int64_t c = 0; c < m->width; c += VL64) {
            v64_narrow(m->a32 + r * m->width + c, v64_load(row + c) * m->decay + v64_load(m->k + c) * u,
                       VL64);
        }
    }
}

/* a32 <- A rounded; returns a bound on the norm of A: trace + largest ridge. */
static inline double mesa_decode_round(const mesa_decode *m, mesa_rows source)
{
    float trace = 0;
    for (int64_t c = 0; c < m->width; c += VL64)
        v64_narrow(m->k32 + c, v64_load(m->k + c), VL64);
    source.wide ? mesa_round_wide(m, source) : mesa_round_narrow(m, source);
    for (int64_t c = 0; c < m->d; c++) {
        float *at = m->a32 + c * m->width + c;
        trace += *at;
        *at += (float)m->ridge[c];
    }
    return (double)trace + m->bounds.most;
}

enum { MESA_PANEL = 4 };

/* p . A p and A p . A p. */
typedef struct cg_sums {
    vec pap, apap;
} cg_sums;

/* ap32 <- A p32 for `vecs` vectors of columns, and adds their part to the sums. With `prefetches`,
 * prefetches lines of *ahead. */
VEC_INLINE cg_sums mesa_product_panel(const int vecs, const bool prefetches, const mesa_decode *m, int64_t at,
                                      cg_sums sums, prefetch_range *ahead)
{
    const float *a = m->a32 + at, *p = m->p32;
    const int64_t width = m->width, d = m->d;
    uintptr_t line = ahead->at;
    vec even[MESA_PANEL], odd[MESA_PANEL];
#pragma GCC unroll 4
    for (int n = 0; n < vecs; n++)
        even[n] = odd[n] = v_set(0);
    int64_t r = 0;
    for (; r + 2 <= d; r += 2, a += 2 * width) {
        const vec first = v_set(p[r]), second = v_set(p[r + 1]);
        if (prefetches) {
            __builtin_prefetch((const void *)line, 0, 2);
            __builtin_prefetch((const void *)(line + CACHE_LINE), 0, 2);
            line += 2 * CACHE_LINE;
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
        v_store(m->ap32 + at + n * VL, ap);
        sums.pap += ap * v_load(p + at + n * VL);
        sums.apap += ap * ap;
    }
    return sums;
}

VEC_INLINE cg_sums mesa_product_as(const bool prefetches, const mesa_decode *m, prefetch_range *ahead)
{
    cg_sums sums = { v_set(0), v_set(0) };
    int64_t c = 0;
    for (; c + MESA_PANEL * VL <= m->width; c += MESA_PANEL * VL)
        sums = mesa_product_panel(MESA_PANEL, prefetches, m, c, sums, ahead);
    for (; c < m->width; c += VL)
        sums = mesa_product_panel(1, prefetches, m, c, sums, ahead);
    return (cg_sums){ v_total(sums.pap), v_total(sums.apap) };
}

/* ap32 <- A p32, with prefetches of the state of the next head. */
static inline cg_sums mesa_product(const mesa_decode *m, prefetch_range *ahead)
{
    return ahead->at < ahead->end ? mesa_product_as(true, m, ahead) : mesa_product_as(false, m, ahead);
}

/* x32 <- an approximate solution for the right side r32, which has norm 1. Ends when |r|^2 is at most
 * `least`, or A is not positive in float32. Returns the number of iterations.
 *
 * As r . A p = p . A p, the next |r|^2 is alpha^2 A p . A p - r . r: the next direction does not wait for the
 * sum over the new r. The test for the end and the next alpha use that sum. */
static inline int mesa_decode_cg(const mesa_decode *m, float least, int64_t most, prefetch_range *ahead)
{
    const size_t bytes = (size_t)m->width * sizeof(float);
    vec rr = v_set(0);
    int count = 0;
    memset(m->x32, 0, bytes);
    memcpy(m->p32, m->r32, bytes);
    for (int64_t c = 0; c < m->width; c += VL)
        rr += v_load(m->r32 + c) * v_load(m->r32 + c);
    rr = v_total(rr);
    while (count < most && rr[0] > least) {
        const cg_sums sums = mesa_product(m, ahead);
        if (!(sums.pap[0] > 0)) break;
        const vec alpha = rr / sums.pap, beta = v_max(alpha * (sums.apap / sums.pap) - 1, v_set(0));
        rr = v_set(0);
        for (int64_t c = 0; c < m->width; c += VL) {
            const vec p = v_load(m->p32 + c), r = v_load(m->r32 + c) - alpha * v_load(m->ap32 + c);
            v_store(m->x32 + c, v_load(m->x32 + c) + alpha * p);
            v_store(m->r32 + c, r);
            v_store(m->p32 + c, r + beta * p);
            rr += r * r;
        }
        rr = v_total(rr);
        count++;
    }
    return count;
}

/* ------------------------------------------------------------------ the solve */

/* system <- the upper triangle of A; returns its largest diagonal entry. */
VEC_INLINE double mesa_system_as(const bool wide, const mesa_decode *m, mesa_rows source)
{
    double largest = 0;
    memset(m->system, 0, (size_t)(m->d * m->width) * sizeof *m->system);
    for (int64_t r = 0; r < m->d; r++) {
        double *to = m->system + r * m->width;
        for (int64_t c = r; c < m->d; c++) {
            const void *one = mesa_row_at(wide, source, m->dim_v + r),
                       *other = mesa_row_at(wide, source, m->dim_v + c);
            const double both = wide ? ((const double *)one)[c] + ((const double *)other)[r]
                                     : (double)((const float *)one)[c] + (double)((const float *)other)[r];
            to[c] = m->decay * both / 2 + m->beta * m->k[r] * m->k[c] + (r == c ? m->ridge[r] : 0);
        }
        largest = to[r] > largest ? to[r] : largest;
    }
    return largest;
}

/* x by Cholesky in float64. */
static inline void mesa_decode_cholesky(const mesa_decode *m, mesa_rows source, double size,
                                        loam_row_info *info)
{
    const double largest = source.wide ? mesa_system_as(true, m, source) : mesa_system_as(false, m, source);
    info->solver = LOAM_SOLVER_GRAM;
    info->residual = 0;
    if (!factor64(m->system, m->width, m->d, MESA_DECODE_LEAST_PIVOT * largest)) {
        info->code = LOAM_ROW_SINGULAR;
        memset(m->x, 0, (size_t)m->width * sizeof *m->x);
        return;
    }
    memcpy(m->x, m->q, (size_t)m->width * sizeof *m->x);
    factor64_solve(m->system, m->width, m->d, m->x);
    const double wrong = sqrt(mesa_decode_residual(m, source));
    info->residual = size > 0 ? (float)(wrong / size) : 0;
}

/* x += a correction that leaves `part` of the residual, whose norm is `norm`. Returns the iterations. */
static inline int mesa_decode_refine(const mesa_decode *m, double norm, double part, int64_t most,
                                     prefetch_range *ahead)
{
    const double inverse = 1 / norm;
    for (int64_t c = 0; c < m->width; c += VL64)
        v64_narrow(m->r32 + c, v64_load(m->residual + c) * inverse, VL64);
    const int count = mesa_decode_cg(m, (float)(part * part), most, ahead);
    for (int64_t c = 0; c < m->width; c += VL64)
        v64_store(m->x + c, v64_load(m->x + c) + v64_widen(m->x32 + c, VL64) * norm);
    return count;
}

/* x = A^-1 q. A residual is accepted by its effect on o, which grows with the square root of the condition
 * number. The trace bounds the condition number. */
static inline loam_row_info mesa_decode_solve(const mesa_decode *m, mesa_rows source, prefetch_range *ahead)
{
    const size_t bytes = (size_t)m->width * sizeof(double);
    loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_CG, 0, 0 };
    const double size = sqrt(v64_dot(m->q, m->q, m->width));
    const double largest = mesa_decode_round(m, source), inverse = m->bounds.least / largest;
    const double accepted = size * fmin(m->goal * sqrt(inverse), m->most);
    const double resolvable = fmin(MESA_DECODE_RESOLUTION / inverse, MESA_DECODE_REDUCTION);
    double norm = size, last = HUGE_VAL;
    memset(m->x, 0, bytes);
    memcpy(m->residual, m->q, bytes);
    if (!(inverse > MESA_DECODE_LEAST_INVERSE)) {
        mesa_decode_cholesky(m, source, size, &info);
        return info;
    }
    for (int round = 0;
         round < MESA_DECODE_ROUNDS && norm > accepted && norm <= MESA_DECODE_STAGNATION * last; round++) {
        info.iterations += mesa_decode_refine(m, norm, fmax(accepted / norm / 2, resolvable), m->d, ahead);
        last = norm;
        norm = sqrt(mesa_decode_residual(m, source));
    }
    if (norm <= accepted)
        info.residual = size > 0 ? (float)(norm / size) : 0;
    else
        mesa_decode_cholesky(m, source, size, &info);
    return info;
}

#endif
