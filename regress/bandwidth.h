/* SPDX-License-Identifier: MIT
 * What is estimated from the rows themselves: the bandwidth by leave-one-out cross-validation, and the
 * variance of the noise.
 *
 * Both look at the fits at the rows, which is rows^2 work: for large tables they look at a random sample of
 * the rows, each still fitted from all rows. */
#ifndef LOAM_REGRESS_BANDWIDTH_H
#define LOAM_REGRESS_BANDWIDTH_H

#include "regress/fit.h"

typedef struct regress_sample {
    int64_t *rows; /* ascending */
    int64_t count;
} regress_sample;

/* All rows where rows^2 is at most 4e8, else 4e8 / rows of them but no fewer than 250, or 4000 through
 * bins. */
int regress_sample_make(regress_sample *sample, const regress_table *table, uint64_t seed, io_error *error);
void regress_sample_free(regress_sample *sample);

typedef struct regress_choice {
    double bandwidth;
    double score;           /* mean squared leave-one-out residual on the sample */
    bool smallest, largest; /* the least, or most, bandwidth that is tried: the best may lie beyond */
} regress_choice;

/* For each estimator with wanted[e]: a grid from 0.003 to 5 standard deviations, then golden sections on
 * the logarithm. Where scores are equal the larger bandwidth wins. with.bandwidth is ignored. */
int regress_choose_bandwidth(const regress_table *table, regress_smoother with, const regress_sample *sample,
                             const bool wanted[REGRESS_ESTIMATORS],
                             regress_choice choices[REGRESS_ESTIMATORS], io_error *error);

typedef struct regress_noise {
    double score;      /* mean squared leave-one-out residual */
    double variance;   /* of y around the curve, or -1 where no degrees of freedom are left for it */
    double parameters; /* trace of L, where fits = L y */
} regress_noise;

/* variance = sum_i r_i^2 / sum_i (1 - 2 L_ii + sum_j L_ij^2), the denominator being what the numerator would
 * be on average for noise of variance 1 (Cleveland and Devlin 1988; Loader 1999, chapter 2). */
int regress_estimate_noise(const regress_table *table, regress_smoother with, const regress_sample *sample,
                           regress_estimator estimator, regress_noise *noise, io_error *error);

#endif
