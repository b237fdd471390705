/* SPDX-License-Identifier: MIT
 *
 * One row in float64, for rows that the block solvers do not accept or do not attempt: very few keys, a tiny
 * ridge, bad conditioning. Two direct solvers, each by a Cholesky factor, of d channels and n keys:
 *
 *     gram   (Cov + Lambda) x = b                                               d x d
 *     dual   (I + M) t = D kappa Lambda^-1 b,   M = D kappa Lambda^-1 kappa^T D,   D = diag sqrt(p)
 *            x = Lambda^-1 (b - sum_j sqrt(p_j) t_j kappa_j)                    n x n, for n <= d
 *
 * The dual costs n^2 d / 2 + n^3 / 6 against n d^2 / 2 + d^3 / 6. Its t gives u_j = t_j / sqrt(p_j) without
 * the cancellation that a huge x (small Lambda) causes in x . kappa_j.
 */
#ifndef LOAM_LOCAL_CPU_ROW_DOUBLE_H
#define LOAM_LOCAL_CPU_ROW_DOUBLE_H

#include "src/base/cholesky.h"
#include "src/local/cpu/tile.h"

typedef struct row_double {
    int64_t lo, hi, peak;
    double lse, dropped, unit; /* dropped: as in struct lanes; unit: of the ridge */
    loam_row_info info;
    bool dual;
    double *kbar, *lambda, *rho, *rhs; /* [dim_qk]; kbar relative to the origin */
    double *vbar, *o;                  /* [dim_v] */
    double *p, *u;                     /* [keys] */
    double *matrix;                    /* the factor: [dim_qk][dim_qk], or of a dual row [n][n] */
    double *kappa;                     /* [n][dim_qk] of a dual row: sqrt(p_j) kappa_j */
    double *key;                       /* scratch [4][dim_qk] */
    float *row;                        /* one key or value as float */
} row_double;

static inline row_double row_double_carve(const loam_problem *p, arena *pool)
{
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, f64 = sizeof(double);
    row_double r = { 0 };
    r.kbar = arena_take(pool, d, f64);
    r.lambda = arena_take(pool, d, f64);
    r.rho = arena_take(pool, d, f64);
    r.rhs = arena_take(pool, d, f64);
    r.vbar = arena_take(pool, dv, f64);
    r.o = arena_take(pool, dv, f64);
    r.p = arena_take(pool, (size_t)p->len_kv, f64);
    r.u = arena_take(pool, (size_t)p->len_kv, f64);
    r.matrix = arena_take(pool, d * d, f64);
    r.kappa = arena_take(pool, d * d, f64);
    r.key = arena_take(pool, 4 * d, f64);
    r.row = arena_take(pool, d > dv ? d : dv, sizeof(float));
    return r;
}

static inline void row_double_key(const row_double *r, const head *hd, int64_t j, double *restrict key)
{
    load_floats(r->row, hd->a->k.data, hd->p->dtype, LOCAL_AT(hd->a->k, hd->s.b, hd->h_kv, hd->s.k0 + j),
                hd->p->dim_qk);
    for (int64_t c = 0; c < hd->p->dim_qk; c++)
        key[c] = (double)r->row[c] - (double)hd->origin[c];
}

static inline void row_double_centred_key(const row_double *r, const head *hd, int64_t j,
                                          double *restrict key)
{
    row_double_key(r, hd, j, key);
    for (int64_t c = 0; c < hd->p->dim_qk; c++)
        key[c] -= r->kbar[c];
}

static inline double row_double_query(const head *hd, int64_t i, int64_t c)
{
    return element_load(hd->a->q.data, hd->p->dtype, LOCAL_AT(hd->a->q, hd->s.b, hd->h, hd->s.q0 + i) + c);
}

/* G_i - G_j; 0 without a decay. */
static inline double row_double_decay(const head *hd, const scoring *sc, int64_t i, int64_t j)
{
    if (!sc->decayed) return 0;
    const loam_const_view *view = &hd->a->log_decay;
    const local_decay_pair *sums = (const local_decay_pair *)view->data +
                                   LOCAL_AT(*view, hd->s.b, hd->h, hd->s.k0);
    return local_decay_between(sums[local_position(&hd->s, i) * view->token], sums[j * view->token]);
}

/* s_ij. key: relative to the origin; r->rhs: q - origin (RBF) or q (dot). */
static inline double row_double_score(const row_double *r, const head *hd, const scoring *sc, int64_t i,
                                      int64_t j, const double *restrict key)
{
    const int64_t d = hd->p->dim_qk;
    double product = 0;
    float bias;
    for (int64_t c = 0; c < d; c++) {
        const double e = r->rhs[c] - key[c];
        product += sc->rbf ? -0.5 * e * e : r->rhs[c] * (key[c] + (double)hd->origin[c]);
    }
    load_bias(&bias, hd, j, 1);
    const double s = local_score(hd->p, product, (double)sc->slope, (double)(i + hd->s.nk - hd->s.nq - j));
    return s + (double)bias + row_double_decay(hd, sc, i, j);
}

/* p, lse, peak, kbar and vbar. */
static inline void row_double_weights(row_double *r, const head *hd, const scoring *sc, int64_t i)
{
    const int64_t d = hd->p->dim_qk, dv = hd->p->dim_v;
    double m = -INFINITY, omega = 0, constant = 0, *key = r->key;
    for (int64_t c = 0; c < d; c++) {
        r->rhs[c] = row_double_query(hd, i, c) - (sc->rbf ? (double)hd->origin[c] : 0);
        r->kbar[c] = 0;
    }
    for (int64_t c = 0; c < dv; c++)
        r->vbar[c] = 0;
    for (int64_t j = r->lo; j < r->hi; j++) {
        row_double_key(r, hd, j, key);
        r->p[j - r->lo] = row_double_score(r, hd, sc, i, j, key);
        if (r->p[j - r->lo] > m) {
            m = r->p[j - r->lo];
            r->peak = j;
        }
    }
    for (int64_t j = r->lo; j < r->hi; j++) {
        r->p[j - r->lo] = exp(r->p[j - r->lo] - m);
        omega += r->p[j - r->lo];
    }
    for (int64_t c = 0; c < d; c++)
        constant += sc->rbf ? -0.5 * r->rhs[c] * r->rhs[c] : r->rhs[c] * (double)hd->origin[c];
    r->lse = m + log(omega);
    r->dropped = sc->mapped ? 0 : hd->p->scale * constant;
    for (int64_t j = r->lo; j < r->hi; j++) {
        const double w = r->p[j - r->lo] /= omega;
        row_double_key(r, hd, j, key);
        for (int64_t c = 0; c < d; c++)
            r->kbar[c] += w * key[c];
        load_floats(r->row, hd->a->v.data, hd->p->dtype, LOCAL_AT(hd->a->v, hd->s.b, hd->h_kv, hd->s.k0 + j),
                    dv);
        for (int64_t c = 0; c < dv; c++)
            r->vbar[c] += w * (double)r->row[c];
    }
}

/* matrix += x0 k0 k0^T + .. + x3 k3 k3^T, lower triangle: four keys per pass over the matrix save loads. */
static inline void row_double_update(double *restrict matrix, int64_t d, const double *restrict k,
                                     const double weight[restrict 4])
{
    const double *k0 = k, *k1 = k + d, *k2 = k + 2 * d, *k3 = k + 3 * d;
    for (int64_t r = 0; r < d; r++) {
        const double x0 = weight[0] * k0[r], x1 = weight[1] * k1[r], x2 = weight[2] * k2[r],
                     x3 = weight[3] * k3[r];
        double *row = matrix + r * d;
        for (int64_t c = 0; c <= r; c++)
            row[c] += x0 * k0[c] + x1 * k1[c] + x2 * k2[c] + x3 * k3[c];
    }
}

/* matrix <- lower triangle of Cov. */
static inline void row_double_covariance(row_double *r, const head *hd)
{
    const int64_t d = hd->p->dim_qk;
    memset(r->matrix, 0, (size_t)(d * d) * sizeof(double));
    for (int64_t j = r->lo; j < r->hi; j += 4) {
        double weight[4] = { 0 };
        memset(r->key, 0, (size_t)(4 * d) * sizeof(double));
        for (int64_t e = 0; e < 4 && j + e < r->hi; e++) {
            weight[e] = r->p[j + e - r->lo];
            row_double_centred_key(r, hd, j + e, r->key + e * d);
        }
        row_double_update(r->matrix, d, r->key, weight);
    }
}

/* out <- the diagonal of Cov. */
static inline void row_double_variances(const row_double *r, const head *hd, double *restrict out)
{
    const int64_t d = hd->p->dim_qk;
    double *key = r->key;
    for (int64_t c = 0; c < d; c++)
        out[c] = 0;
    for (int64_t j = r->lo; j < r->hi; j++) {
        row_double_centred_key(r, hd, j, key);
        for (int64_t c = 0; c < d; c++)
            out[c] += r->p[j - r->lo] * key[c] * key[c];
    }
}

/* Sets unit and lambda; returns the pivot at or below which the system is singular. */
static inline double row_double_ridge(row_double *r, const head *hd, int64_t i, double *restrict variance)
{
    const int64_t d = hd->p->dim_qk;
    double trace = 0, largest = 0, mean2 = 0;
    for (int64_t c = 0; c < d; c++)
        trace += variance[c];
    r->unit = hd->p->ridge_unit == LOAM_RIDGE_MAX     ? r->p[r->peak - r->lo]
              : hd->p->ridge_unit == LOAM_RIDGE_TRACE ? trace / (double)d + LOCAL_TRACE_FLOOR
                                                      : 1;
    for (int64_t c = 0; c < d; c++) {
        const double mean = r->kbar[c] + (double)hd->origin[c];
        r->lambda[c] = r->unit * local_ridge(hd->p, hd->a, &hd->s, hd->h, i, c);
        largest = fmax(largest, variance[c] + r->lambda[c]);
        mean2 = fmax(mean2, mean * mean);
    }
    return local_least_pivot(largest, mean2);
}

static inline bool row_double_factor_dual(row_double *r, const head *hd)
{
    const int64_t d = hd->p->dim_qk, n = r->hi - r->lo;
    for (int64_t j = 0; j < n; j++) {
        double *row = r->kappa + j * d;
        row_double_centred_key(r, hd, r->lo + j, row);
        for (int64_t c = 0; c < d; c++)
            row[c] *= sqrt(r->p[j]);
    }
    for (int64_t j = 0; j < n; j++) {
        for (int64_t c = 0; c < d; c++)
            r->key[c] = r->kappa[j * d + c] / r->lambda[c];
        for (int64_t l = 0; l <= j; l++)
            r->matrix[j * n + l] = cholesky_dot(r->key, r->kappa + l * d, d) + (l == j);
    }
    return cholesky_factor(r->matrix, n, 0) == 0;
}

/* Factors the system of the row. Returns false, and sets info.code, if it is singular. */
static inline bool row_double_factor(row_double *r, const head *hd, int64_t i)
{
    const int64_t d = hd->p->dim_qk;
    double *variance = r->rho, least_ridge = INFINITY;
    row_double_variances(r, hd, variance);
    const double least = row_double_ridge(r, hd, i, variance);
    for (int64_t c = 0; c < d; c++)
        least_ridge = fmin(least_ridge, r->lambda[c]);
    r->dual = r->hi - r->lo <= d && least_ridge > least;
    r->info.solver = r->dual ? LOAM_SOLVER_DUAL : LOAM_SOLVER_GRAM;
    bool regular;
    if (r->dual) {
        regular = row_double_factor_dual(r, hd);
    } else {
        row_double_covariance(r, hd);
        for (int64_t c = 0; c < d; c++)
            r->matrix[c * d + c] += r->lambda[c];
        regular = cholesky_factor(r->matrix, d, least) == 0;
    }
    r->info.code = regular ? LOAM_ROW_SOLVED : LOAM_ROW_SINGULAR;
    return regular;
}

static inline void row_double_solve_dual(row_double *r, int64_t d, int64_t n, const double *restrict b,
                                         double *restrict out)
{
    for (int64_t c = 0; c < d; c++)
        out[c] = b[c] / r->lambda[c];
    for (int64_t j = 0; j < n; j++)
        r->u[j] = cholesky_dot(r->kappa + j * d, out, d);
    cholesky_solve(r->matrix, n, r->u);
    for (int64_t j = 0; j < n; j++)
        for (int64_t c = 0; c < d; c++)
            out[c] -= r->u[j] * r->kappa[j * d + c] / r->lambda[c];
}

/* out <- (Cov + Lambda)^-1 b and u_j = out . kappa_j. As sum_j p_j u_j = 0, the rounding error of that
 * sum is subtracted. */
static inline void row_double_solve(row_double *r, const head *hd, const double *restrict b,
                                    double *restrict out)
{
    const int64_t d = hd->p->dim_qk, n = r->hi - r->lo;
    double mean = 0;
    if (r->dual) {
        row_double_solve_dual(r, d, n, b, out);
    } else {
        memcpy(out, b, (size_t)d * sizeof(double));
        cholesky_solve(r->matrix, d, out);
    }
    for (int64_t j = 0; j < n; j++) {
        if (r->dual && r->p[j] > 1e-200) {
            r->u[j] /= sqrt(r->p[j]);
        } else {
            row_double_centred_key(r, hd, r->lo + j, r->key);
            r->u[j] = cholesky_dot(r->key, out, d);
        }
        mean += r->p[j] * r->u[j];
    }
    for (int64_t j = 0; j < n; j++)
        r->u[j] -= mean;
}

/* |(Cov + Lambda) x - b| / |b|, computed from u: Cov x = sum p u kappa. */
static inline float row_double_residual(const row_double *r, const head *hd, const double *restrict b,
                                        const double *restrict solution)
{
    const int64_t d = hd->p->dim_qk;
    double *left = r->key + d, error2 = 0, size2 = 0;
    for (int64_t c = 0; c < d; c++)
        left[c] = r->lambda[c] * solution[c];
    for (int64_t j = r->lo; j < r->hi; j++) {
        row_double_centred_key(r, hd, j, r->key);
        for (int64_t c = 0; c < d; c++)
            left[c] += r->p[j - r->lo] * r->u[j - r->lo] * r->key[c];
    }
    for (int64_t c = 0; c < d; c++) {
        error2 += (left[c] - b[c]) * (left[c] - b[c]);
        size2 += b[c] * b[c];
    }
    return size2 > 0 ? (float)sqrt(error2 / size2) : 0;
}

/* Weights, means and the factor of one LLA row that sees at least one key; returns false if the
 * row is singular. */
static inline bool row_double_begin(row_double *r, const head *hd, const scoring *sc, int64_t i)
{
    local_visible(hd->p, &hd->s, i, &r->lo, &r->hi);
    r->info = (loam_row_info){ LOAM_ROW_SOLVED, LOAM_SOLVER_GRAM, 0, 0 };
    row_double_weights(r, hd, sc, i);
    return row_double_factor(r, hd, i);
}

/* Whether float32 can hold the solution; if not, the row is treated as singular. */
static inline bool row_double_fits_float(const double *x, int64_t d)
{
    for (int64_t c = 0; c < d; c++)
        if (!(fabs(x[c]) < 1e38)) return false;
    return true;
}

/* The forward of one row: rho, u, o = sum p (1 - u) v. */
static inline void row_double_forward(row_double *r, const head *hd, const scoring *sc, int64_t i)
{
    const int64_t d = hd->p->dim_qk, dv = hd->p->dim_v;
    const bool regular = row_double_begin(r, hd, sc, i);
    for (int64_t c = 0; c < d; c++) {
        r->rhs[c] = r->kbar[c] + (double)hd->origin[c] - row_double_query(hd, i, c);
        r->rho[c] = 0;
    }
    memset(r->u, 0, (size_t)(r->hi - r->lo) * sizeof(double));
    if (regular) {
        row_double_solve(r, hd, r->rhs, r->rho);
        r->info.residual = row_double_residual(r, hd, r->rhs, r->rho);
    }
    if (!row_double_fits_float(r->rho, d)) {
        r->info.code = LOAM_ROW_SINGULAR;
        memset(r->rho, 0, (size_t)d * sizeof(double));
        memset(r->u, 0, (size_t)(r->hi - r->lo) * sizeof(double));
    }
    memcpy(r->o, r->vbar, (size_t)dv * sizeof(double));
    for (int64_t j = r->lo; j < r->hi; j++) {
        const double weight = r->p[j - r->lo] * r->u[j - r->lo];
        load_floats(r->row, hd->a->v.data, hd->p->dtype, LOCAL_AT(hd->a->v, hd->s.b, hd->h_kv, hd->s.k0 + j),
                    dv);
        for (int64_t c = 0; c < dv; c++)
            r->o[c] -= weight * (double)r->row[c];
    }
}

/* r->rho <- the shortest vector that has the products of the probe with all centred keys. u is computed from
 * it where the probe has a huge part orthogonal to the keys (fewer keys than channels, tiny ridge): that part
 * adds only rounding errors to u. Returns false where the row is singular. */
static inline bool row_double_span_probe(row_double *r, const head *hd, const scoring *sc, int64_t i)
{
    row_double_forward(r, hd, sc, i);
    const int64_t d = hd->p->dim_qk, n = r->hi - r->lo;
    double trace = 0;
    if (r->info.code != LOAM_ROW_SOLVED || n > d) return false;
    for (int64_t j = 0; j < n; j++) {
        row_double_centred_key(r, hd, r->lo + j, r->kappa + j * d);
        /* The u of the dual solver does not serve here: only sqrt(p) u is exact there. */
        r->u[j] = cholesky_dot(r->kappa + j * d, r->rho, d);
        trace += cholesky_dot(r->kappa + j * d, r->kappa + j * d, d);
        for (int64_t l = 0; l <= j; l++)
            r->matrix[j * n + l] = cholesky_dot(r->kappa + j * d, r->kappa + l * d, d);
    }
    for (int64_t j = 0; j < n; j++)
        r->matrix[j * n + j] += 1e-13 * trace; /* centred keys are linearly dependent: sum p kappa = 0 */
    if (cholesky_factor(r->matrix, n, 0)) return false;
    cholesky_solve(r->matrix, n, r->u);
    memset(r->rho, 0, (size_t)d * sizeof(double));
    for (int64_t j = 0; j < n; j++)
        for (int64_t c = 0; c < d; c++)
            r->rho[c] += r->u[j] * r->kappa[j * d + c];
    return true;
}

/* r->rho <- y, the adjoint solution of one row: (Cov + Lambda) y = -sum_j p_j (do . v_j - gbar) kappa_j; 0 if
 * the system is singular. */
static inline void row_double_adjoint(row_double *r, const head *hd, const scoring *sc, int64_t i)
{
    const int64_t d = hd->p->dim_qk, dv = hd->p->dim_v;
    const loam_const_view *grad = &hd->a->grad_o;
    const bool regular = row_double_begin(r, hd, sc, i);
    double gbar = 0;
    for (int64_t c = 0; c < dv; c++) {
        r->o[c] = element_load(grad->data, hd->p->dtype, LOCAL_AT(*grad, hd->s.b, hd->h, hd->s.q0 + i) + c);
        gbar += r->o[c] * r->vbar[c];
    }
    for (int64_t c = 0; c < d; c++)
        r->rhs[c] = r->rho[c] = 0;
    for (int64_t j = r->lo; j < r->hi; j++) {
        double g = -gbar;
        load_floats(r->row, hd->a->v.data, hd->p->dtype, LOCAL_AT(hd->a->v, hd->s.b, hd->h_kv, hd->s.k0 + j),
                    dv);
        for (int64_t c = 0; c < dv; c++)
            g += r->o[c] * (double)r->row[c];
        row_double_centred_key(r, hd, j, r->key);
        for (int64_t c = 0; c < d; c++)
            r->rhs[c] -= r->p[j - r->lo] * g * r->key[c];
    }
    if (regular) row_double_solve(r, hd, r->rhs, r->rho);
    if (!row_double_fits_float(r->rho, d)) memset(r->rho, 0, (size_t)d * sizeof(double));
}

#endif
