/* SPDX-License-Identifier: MIT
 * One row of the local family (query i of one head), scalar and in float64, written from the equations:
 *
 *     x_ij = q_i . k_j (dot)  or  -|q_i - k_j|^2 / 2 (RBF)
 *     PaTH: row i sees M_t ... M_{j+1} k_j in place of k_j, M_t = I - beta_t w_t w_t^T, t = i + n_kv - n_q
 *     s_ij = map(scale x_ij) - slope |i + n_kv - n_q - j| + bias_j + G_i+n_kv-n_q - G_j, map: LOCAL_MAPS
 *     p_ij = exp(s_ij - lse_i),   kbar = sum p k,   vbar = sum p v,   kappa_ij = k_j - kbar_i
 *     Cov_i = sum p kappa kappa^T,   (Cov_i + Lambda_i) rho_i = kbar_i - q_i          (LLA)
 *     u_ij = rho_i . kappa_ij,   o_i = sum p (1 - u) v
 *
 * G_t: the sum of the log decays up to and with t, 0 without a decay; the slope is that of ALiBi. The
 * reference shares nothing with the kernels: it has its own sums and its own Cholesky factor
 * (exact/cholesky.h).
 */
#ifndef LOAM_LOCAL_REFERENCE_ROW_H
#define LOAM_LOCAL_REFERENCE_ROW_H

#include "src/local/local.h"

typedef struct ref_score {
    double x, slope, s; /* x_ij, d s / d (scale x), s_ij */
} ref_score;

typedef struct ref_row {
    int64_t lo, hi, peak; /* visible keys [lo, hi); the first key with the largest score */
    double lse, unit;     /* unit of the ridge */
    loam_row_info info;
    double *q, *kbar, *vbar, *rho, *lambda; /* lambda = ridge * unit */
    double *p, *u;                          /* [hi - lo]: of keys lo .. hi - 1 */
    double *seen;                      /* [dim_qk], or PaTH [len_kv][dim_qk]: keys as the row sees them */
    int64_t reflected_h, reflected_to; /* PaTH: the head and position that `seen` holds keys for; -1: none */
    double *key, *matrix;              /* scratch: one kappa; the factor of Cov + Lambda */
} ref_row;

ref_row ref_row_carve(const loam_problem *p, arena *pool);
/* The memory of G of all heads; the args with G, computed into it, in place of the log decays. */
double *ref_decay_carve(const loam_problem *p, arena *pool);
loam_args ref_decay_sums(const loam_problem *p, const loam_args *a, double *sums);
/* key: key j as row i sees it; k_row: its index in args.k, which is not j where args.k is a slice
 * of the keys. */
ref_score ref_row_score(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                        int64_t j, int64_t k_row, const double *key);
/* Key j as the last fitted row sees it; valid until the next call. */
const double *ref_row_key(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t j,
                          const ref_row *row);
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
/* Loads row k_row of args.k, unchanged. */
static inline void ref_load_key(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                                int64_t k_row, double *key)
{
    for (int64_t c = 0; c < p->dim_qk; c++)
        key[c] = ref_k(p, a, s, h, k_row, c);
}
static inline double ref_w(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                           int64_t t, int64_t c)
{
    return element_load(a->w.data, p->dtype, LOCAL_AT(a->w, s->b, local_kv_head(p, h), s->k0 + t) + c);
}
static inline double ref_beta(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                              int64_t t)
{
    return element_load(a->beta.data, dtype_real(p->dtype),
                        LOCAL_AT(a->beta, s->b, local_kv_head(p, h), s->k0 + t));
}
/* PaTH: key <- M_t key */
static inline void ref_reflect(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h,
                               int64_t t, double *key)
{
    double along = 0;
    for (int64_t c = 0; c < p->dim_qk; c++)
        along += ref_w(p, a, s, h, t, c) * key[c];
    for (int64_t c = 0; c < p->dim_qk; c++)
        key[c] -= ref_beta(p, a, s, h, t) * along * ref_w(p, a, s, h, t, c);
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
