/* SPDX-License-Identifier: MIT
 * Running means and variances over sequences of the squared errors of one cell of the sweep: at each
 * position, over windows of neighbouring positions (for pictures of few sequences) and over all positions.
 * Sequences go in one by one, so that the sums depend on their order alone. */
#ifndef LOAM_CLI_EXPERIMENT_MOMENTS_H
#define LOAM_CLI_EXPERIMENT_MOMENTS_H

#include "cli/experiment/estimate.h"

enum { MOMENT_WINDOWS = 128 };

typedef struct moments {
    int64_t length, window, windows; /* `windows` windows of `window` positions */
    int64_t sequences;
    size_t count; /* of sums */
    double *sums;
} moments;

typedef struct mean_error {
    double mean, error; /* the standard error of the mean; NaN below two sequences */
} mean_error;

int moments_create(moments *m, int64_t length, io_error *error);
void moments_destroy(moments *m);

/* errors[e]: the squared errors of one sequence under estimator e, [length]. */
void moments_add(moments *m, const double *const errors[ESTIMATORS]);

mean_error moments_position(const moments *m, estimator which, int64_t position);
mean_error moments_window(const moments *m, estimator which, int64_t window);
mean_error moments_total(const moments *m, estimator which);
/* total(which) / total(base); the error by the delta method, as the two see the same sequences. */
mean_error moments_ratio(const moments *m, estimator which, estimator base);
/* Mean over positions first .. last - 1. */
double moments_range(const moments *m, estimator which, int64_t first, int64_t last);

/* Half the width of the 95 % confidence interval in standard errors: Student's t. */
double moments_reach(int64_t sequences);

#endif
