/* SPDX-License-Identifier: MIT */
#ifndef LOAM_TRAIN_DIVERGENCE_H
#define LOAM_TRAIN_DIVERGENCE_H

#include <math.h>

#ifdef __CUDACC__
#define DIVERGENCE_INLINE static __host__ __device__ inline
#else
#define DIVERGENCE_INLINE static inline
#endif

/* p log(p / q) - p + q of one word, log_p and log_q its logarithms. The sum over words is the divergence,
 * since p and q add up to 1. No term is negative, and each is of second order in d = log_p - log_q: where
 * distributions are close, errors of d do not add up to more than the divergence. */
DIVERGENCE_INLINE double divergence_term(double log_p, double log_q)
{
    const double p = exp(log_p), d = log_p - log_q;
    if (fabs(d) < 0.1) /* p (d - 1 + e^-d), whose next term is d^9 / 9! */
        return p * d * d *
               (1. / 2 -
                d * (1. / 6 - d * (1. / 24 - d * (1. / 120 - d * (1. / 720 - d * (1. / 5040 - d / 40320))))));
    return (p > 0 ? p * (d - 1) : 0) + exp(log_q);
}

#endif
