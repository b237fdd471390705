/* SPDX-License-Identifier: MIT
 * Features without learning: z and alpha of phi_m(x) = sqrt(alpha_m / M) exp(z_m.x - |x|^2 / 2), drawn to fit
 * the queries and keys of a head; x is times the root of the scale of scores, as in dof/degrees.h. tau is
 * N(0, I), for which alpha is 1. All numbers are functions of a stream and
 * the two after it.
 *
 * Pair attention: tau(z) phi(x; z) phi(y; z) = exp(x.y) N(z; x + y, I), so that z is drawn from
 * N(q_t + k_i, I) for pairs (t, i) that are drawn from the attention itself, and now and then from tau. */
#ifndef LOAM_DOF_DRAW_H
#define LOAM_DOF_DRAW_H

#include "dof/degrees.h"
#include "random/random.h"

/* Sums q_t + k_i, [count][dim] and their squares; whose mixture z is drawn from. */
typedef struct draw_pairs {
    int64_t count, dim;
    double *sums, *squares;
} draw_pairs;

/* `count` sums of pairs of a text: t uniform from `first` on, i by row t of the attention. On failure *p is
 * all zero. */
int draw_pairs_open(draw_pairs *p, const dof_text *text, int64_t dim, int64_t first, int64_t count,
                    random_stream from, io_error *error);
void draw_pairs_close(draw_pairs *p);

/* log q(z) / tau(z) of z [dim], where q is .95 of the mean of N(sum, I) and .05 of tau. */
double draw_log_ratio(const draw_pairs *p, const double *z);

/* z [features][dim] from q, and log alpha = -log q / tau. */
void draw_features(const draw_pairs *p, int64_t features, random_stream from, double *z, double *log_alpha);

/* z from the leverage density tau(z) l(z) / N, of which l(z) = h' (C + Lam)^-1 h with
 * h_j = exp(z.x_j - |x_j|^2): `candidates` of q, or of tau where p is NULL, are drawn again with
 * probability l tau / q. alpha = N / l. *n: the estimate of N, which is E_tau l; *effective: the number of
 * candidates that as many equal ones stand for. x [count][dim] is a sample for dof_sample, lambda that of
 * DOF_ABS. */
typedef struct draw_leverage {
    const draw_pairs *pairs;
    const float *x;
    int64_t count, dim, candidates;
    double factor, lambda;
} draw_leverage;
int draw_by_leverage(const draw_leverage *by, int64_t features, random_stream from, double *z,
                     double *log_alpha, double *n, double *effective, io_error *error);

#endif
