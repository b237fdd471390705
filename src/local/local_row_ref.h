/* SPDX-License-Identifier: MIT
 * One row of the local family, scalar and in float64, written from the equations:
 *
 *     x_ij = q_i . k_j (dot)  or  -|q_i - k_j|^2 / 2 (RBF)
 *     s_ij = cap(scale x_ij) - slope |i + n_kv - n_q - j| + bias_j + G_i+n_kv-n_q - G_j,   cap(z) = c tanh(z / c)
 *     p_ij = exp(s_ij - lse_i),   kbar = sum p k,   vbar = sum p v,   kappa_ij = k_j - kbar_i
 *     Cov_i = sum p kappa kappa^T,   (Cov_i + Lambda_i) rho_i = kbar_i - q_i          (LLA)
 *     u_ij = rho_i . kappa_ij,   o_i = sum p (1 - u) v
 */
#ifndef LOAM_LOCAL_ROW_REF_H
#define LOAM_LOCAL_ROW_REF_H

#include "src/local/local.h"

typedef struct ref_score {
    double x, slope, s; /* x_ij, d s / d (scale x), s_ij */
} ref_score;

typedef struct ref_row {
    int64_t lo, hi, peak; /* visible keys; the first key with the largest score */
    double lse, unit;     /* unit of the ridge */
    loam_row_info info;
    double *q, *kbar, *vbar, *rho, *lambda; /* lambda = ridge * unit */
    double *p, *u;                          /* of key lo + index */
    double *key, *matrix;                   /* scratch: one kappa; the factor of Cov + Lambda */
} ref_row;

ref_row ref_row_carve(const loam_problem *p, arena *pool);
ref_score ref_row_score(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                        int64_t j, int64_t k_row);
void ref_row_fit(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                 ref_row *row);

static inline double ref_q(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                           int64_t i, int64_t c)
{
    return element_load(a->q.data, p->dtype, LOCAL_AT(a->q, s->b, h, s->q0 + i) + c);
}
static inline double ref_k(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                           int64_t j, int64_t c)
{
    return element_load(a->k.data, p->dtype, LOCAL_AT(a->k, s->b, local_kv_head(p, h), s->k0 + j) + c);
}
static inline double ref_v(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                           int64_t j, int64_t c)
{
    return element_load(a->v.data, p->dtype, LOCAL_AT(a->v, s->b, local_kv_head(p, h), s->k0 + j) + c);
}
static inline double ref_grad_o(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                                int64_t i, int64_t c)
{
    return element_load(a->grad_o.data, p->dtype, LOCAL_AT(a->grad_o, s->b, h, s->q0 + i) + c);
}

#endif
