/* SPDX-License-Identifier: MIT
 * The estimators whose rates are measured, and their errors on one repetition. */
#ifndef LOAM_CLI_EXPERIMENT_RATES_FIT_H
#define LOAM_CLI_EXPERIMENT_RATES_FIT_H

#include "cli/experiment/rates_task.h"
#include "loam.h"

typedef enum rates_estimator {
    RATES_GLOBAL,   /* one affine function for all pairs, by least squares; has no bandwidth */
    RATES_CONSTANT, /* softmax with RBF scores: Nadaraya-Watson */
    RATES_LINEAR,   /* LLA with RBF scores */
    RATES_ESTIMATORS
} rates_estimator;

extern const char *const rates_estimator_names[RATES_ESTIMATORS];

typedef struct rates_engine {
    loam_backend backend; /* LOAM_BACKEND_REFERENCE works on float64, LOAM_BACKEND_CPU on float32 */
    int threads;
    double ridge; /* of LLA, relative to the square of the bandwidth */
} rates_engine;

/* Mean squared distance of the fit from f over the queries of each region, for each draw of the noise. The
 * bandwidth is in units of the points. RATES_ORDERED: `ordered`, a query sees the pairs before its own. */
int rates_errors(const rates_engine *engine, rates_estimator which, const rates_sample *sample, bool ordered,
                 double bandwidth, double errors[RATES_REGIONS][RATES_DRAWS], io_error *error);

/* What a user has in place of the error: the squared distance from values that are not in the fit, folds of
 * the pairs one after another, summed over at most RATES_QUERIES_OF_FOLDS of them. */
enum { RATES_FOLDS = 8, RATES_QUERIES_OF_FOLDS = 4096 };
int rates_cross_validate(const rates_engine *engine, rates_estimator which, const rates_sample *sample,
                         double bandwidth, double scores[RATES_DRAWS], io_error *error);

#endif
