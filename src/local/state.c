/* SPDX-License-Identifier: MIT
 *
 * Partial states of a row: the sums over a set of keys that determine the row's output. Second moments are
 * centred at the weighted mean of the set, so that nothing cancels. Two sets with maximum m, weight sum omega
 * and means x, y merge with f = exp(m_set - max(m1, m2)), W = f omega, r = W2 / (W1 + W2) and dx = x2 - x1
 * (Chan, Golub and LeVeque 1983, weighted):
 *
 *     XY = f1 XY1 + f2 XY2 + W1 r dx dy^T
 */
#include "src/local/local.h"

#include "src/base/cholesky.h"

#include <math.h>

typedef struct state {
    double *m, *omega;
    double *tbar; /* parallax */
    double *kbar; /* lla */
    double *vbar;
    double *tv;      /* parallax: sum w t' v' */
    double *kk, *vk; /* lla: sum w k' k'^T (rows of the lower triangle), sum w v' k'^T */
} state;

static int64_t triangle(int64_t d) { return d * (d + 1) / 2; }

size_t local_state_doubles(const loam_problem *p)
{
    const int64_t d = p->dim_qk, dv = p->dim_v;
    switch (p->mechanism) {
    case LOAM_SOFTMAX: return (size_t)(2 + dv);
    case LOAM_PARALLAX: return (size_t)(3 + 2 * dv);
    case LOAM_LLA: return (size_t)(2 + d + dv + triangle(d) + dv * d);
    default: return 0; /* another family */
    }
}

static state state_at(const loam_problem *p, double *x)
{
    const int64_t d = p->dim_qk, dv = p->dim_v;
    state s = { .m = x, .omega = x + 1 };
    x += 2;
    switch (p->mechanism) {
    case LOAM_SOFTMAX: s.vbar = x; break;
    case LOAM_PARALLAX: s.tbar = x, s.vbar = x + 1, s.tv = x + 1 + dv; break;
    case LOAM_LLA: s.kbar = x, s.vbar = x + d, s.kk = s.vbar + dv, s.vk = s.kk + triangle(d); break;
    default: break; /* another family */
    }
    return s;
}

void local_state_clear(const loam_problem *p, double *x)
{
    const size_t n = local_state_doubles(p);
    x[0] = -INFINITY;
    for (size_t e = 1; e < n; e++)
        x[e] = 0;
}

void local_state_merge(const loam_problem *p, double *restrict into, const double *restrict from)
{
    const int64_t d = p->dim_qk, dv = p->dim_v;
    const state a = state_at(p, into), b = state_at(p, (double *)(uintptr_t)from);
    if (!(*b.omega > 0)) return;
    const double m = fmax(*a.m, *b.m), fa = *a.omega > 0 ? exp(*a.m - m) : 0, fb = exp(*b.m - m);
    const double wa = fa * *a.omega, wb = fb * *b.omega, r = wb / (wa + wb), cross = wa * r;
    if (p->mechanism == LOAM_PARALLAX) {
        const double dt = *b.tbar - *a.tbar;
        for (int64_t c = 0; c < dv; c++)
            a.tv[c] = fa * a.tv[c] + fb * b.tv[c] + cross * dt * (b.vbar[c] - a.vbar[c]);
        *a.tbar += r * dt;
    }
    if (p->mechanism == LOAM_LLA) {
        for (int64_t c = 0, e = 0; c < d; c++) {
            const double x = cross * (b.kbar[c] - a.kbar[c]);
            for (int64_t c2 = 0; c2 <= c; c2++, e++)
                a.kk[e] = fa * a.kk[e] + fb * b.kk[e] + x * (b.kbar[c2] - a.kbar[c2]);
        }
        for (int64_t c = 0; c < dv; c++) {
            const double x = cross * (b.vbar[c] - a.vbar[c]);
            for (int64_t c2 = 0; c2 < d; c2++) {
                const int64_t e = c * d + c2;
                a.vk[e] = fa * a.vk[e] + fb * b.vk[e] + x * (b.kbar[c2] - a.kbar[c2]);
            }
        }
        for (int64_t c = 0; c < d; c++)
            a.kbar[c] += r * (b.kbar[c] - a.kbar[c]);
    }
    for (int64_t c = 0; c < dv; c++)
        a.vbar[c] += r * (b.vbar[c] - a.vbar[c]);
    *a.m = m;
    *a.omega = wa + wb;
}

void local_put_info(const loam_args *args, const local_seq *seq, int64_t h, int64_t i, loam_row_info info)
{
    if (args->info.data)
        ((loam_row_info *)args->info.data)[LOCAL_AT(args->info, seq->b, h, seq->q0 + i)] = info;
}

/* Doubles of the matrix, the right-hand side and the solution. */
size_t local_state_scratch(const loam_problem *p)
{
    return p->mechanism == LOAM_LLA ? (size_t)(p->dim_qk * p->dim_qk + 2 * p->dim_qk) : (size_t)p->dim_qk;
}

static double covariance(const state *s, int64_t r, int64_t c)
{
    return s->kk[r >= c ? triangle(r) + c : triangle(c) + r] / *s->omega;
}

static double ridge_unit(const loam_problem *p, const state *s)
{
    switch (p->ridge_unit) {
    case LOAM_RIDGE_MAX: return 1 / *s->omega;
    case LOAM_RIDGE_TRACE: {
        double trace = 0;
        for (int64_t c = 0; c < p->dim_qk; c++)
            trace += covariance(s, c, c);
        return trace / (double)p->dim_qk + LOCAL_TRACE_FLOOR;
    }
    default: return 1;
    }
}

/* rho = (Cov + Lambda)^-1 (kbar - q) */
static loam_row_info solve(const loam_problem *p, const loam_args *args, const local_seq *seq, int64_t h,
                           int64_t i, const state *s, double *scratch, double *rho)
{
    const int64_t d = p->dim_qk, at = LOCAL_AT(args->q, seq->b, h, seq->q0 + i);
    double *a = scratch, *rhs = scratch + d * d, largest = 0, mean2 = 0, error2 = 0, size2 = 0;
    const double unit = ridge_unit(p, s);
    loam_row_info info = { LOAM_ROW_SOLVED, LOAM_SOLVER_GRAM, 0, 0 };
    for (int64_t r = 0; r < d; r++) {
        for (int64_t c = 0; c <= r; c++)
            a[r * d + c] = covariance(s, r, c);
        a[r * d + r] += unit * local_ridge(p, args, seq, h, i, r);
        largest = fmax(largest, a[r * d + r]);
        mean2 = fmax(mean2, s->kbar[r] * s->kbar[r]);
        rho[r] = rhs[r] = s->kbar[r] - element_load(args->q.data, p->dtype, at + r);
    }
    if (cholesky_factor(a, d, local_least_pivot(largest, mean2))) {
        for (int64_t c = 0; c < d; c++)
            rho[c] = 0;
        info.code = LOAM_ROW_SINGULAR;
        return info;
    }
    cholesky_solve(a, d, rho);
    for (int64_t r = 0; r < d; r++) {
        double left = unit * local_ridge(p, args, seq, h, i, r) * rho[r];
        for (int64_t c = 0; c < d; c++)
            left += covariance(s, r, c) * rho[c];
        error2 += (left - rhs[r]) * (left - rhs[r]);
        size2 += rhs[r] * rhs[r];
    }
    info.residual = size2 > 0 ? (float)sqrt(error2 / size2) : 0;
    return info;
}

static double value(const loam_problem *p, const state *s, const double *rho, int64_t c)
{
    double x = s->vbar[c];
    if (p->mechanism == LOAM_PARALLAX)
        x -= s->tv[c] / *s->omega;
    else if (p->mechanism == LOAM_LLA)
        for (int64_t c2 = 0; c2 < p->dim_qk; c2++)
            x -= s->vk[c * p->dim_qk + c2] / *s->omega * rho[c2];
    return x;
}

loam_row_info local_state_probe(const loam_problem *p, const loam_args *args, const local_seq *seq, int64_t h,
                                int64_t i, const double *x, double *scratch, double *rho)
{
    const state s = state_at(p, (double *)(uintptr_t)x);
    const bool empty = !(*s.omega > 0), given = p->mechanism == LOAM_PARALLAX && !empty;
    for (int64_t c = 0; c < p->dim_qk; c++) {
        rho[c] = given ? element_load(args->probe.data, p->dtype,
                                      LOCAL_AT(args->probe, seq->b, h, seq->q0 + i) + c)
                       : 0;
    }
    if (p->mechanism == LOAM_LLA && !empty) return solve(p, args, seq, h, i, &s, scratch, rho);
    return (loam_row_info){ empty ? LOAM_ROW_EMPTY : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
}

double local_state_least_pivot(const loam_problem *p, const double *scratch)
{
    double most = 0;
    for (int64_t c = 0; c < p->dim_qk; c++)
        most = fmax(most, scratch[c * p->dim_qk + c]);
    return 1 / (most * most);
}

void local_state_put(const loam_problem *p, const loam_args *args, const local_seq *seq, int64_t h, int64_t i,
                     const double *x, const double *rho, loam_row_info info)
{
    const state s = state_at(p, (double *)(uintptr_t)x);
    const int64_t token = seq->q0 + i;
    const loam_dtype real = dtype_real(p->dtype);
    const bool empty = !(*s.omega > 0);
    double kept = 1, lse = empty ? -INFINITY : *s.m + log(*s.omega);
    if (p->sink) {
        const double sink = element_load(args->sink, real, h), m = fmax(lse, sink);
        const double total = m + log(exp(lse - m) + exp(sink - m));
        kept = exp(lse - total);
        lse = total;
    }
    for (int64_t c = 0; c < p->dim_v; c++) {
        element_store(args->o.data, p->dtype, LOCAL_AT(args->o, seq->b, h, token) + c,
                      empty ? 0 : kept * value(p, &s, rho, c));
    }
    if (args->lse.data) element_store(args->lse.data, real, LOCAL_AT(args->lse, seq->b, h, token), lse);
    for (int64_t c = 0; args->rho.data && c < p->dim_qk; c++)
        element_store(args->rho.data, real, LOCAL_AT(args->rho, seq->b, h, token) + c, rho[c]);
    local_put_info(args, seq, h, i, info);
}

void local_state_finish(const loam_problem *p, const loam_args *args, const local_seq *seq, int64_t h,
                        int64_t i, const double *x, double *scratch)
{
    double *rho = scratch + local_state_scratch(p) - p->dim_qk;
    const loam_row_info info = local_state_probe(p, args, seq, h, i, x, scratch, rho);
    local_state_put(p, args, seq, h, i, x, rho, info);
}
