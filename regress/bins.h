/* SPDX-License-Identifier: MIT
 * Local regression on one column of many rows, through bins.
 *
 * Rows are sorted by x, rows of equal x are one. A bin is a run of them no wider than a share of the
 * bandwidth h; centre c, s = (x_j - c)/h, and q = c + t h a point:
 *
 *     exp(-(x_j - q)^2 / 2h^2) = exp(-t^2/2) sum_k t^k [s^k exp(-s^2/2) / k!]
 *
 * A bin keeps the sums over its rows of what is in brackets, so that a point needs one pass over the bins in
 * its reach, not over the rows. This is binning (Fan and Marron 1994) with as many moments as it takes for
 * the place of a row in its bin not to be lost: the expansion of the fast Gauss transform (Greengard and
 * Strain 1991). */
#ifndef LOAM_REGRESS_BINS_H
#define LOAM_REGRESS_BINS_H

#include "io/error.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    REGRESS_BINS_DEFAULT = 4, /* bins per bandwidth */
    REGRESS_BINS_MOST = 64,
    REGRESS_BINS_REACH = 9, /* bandwidths */
    REGRESS_TERMS = 10,     /* of the expansion */
    REGRESS_SERIES = 3      /* of the weights, of weights times y, of squared weights */
};

typedef struct regress_sorted {
    int64_t count;
    double *x, *rows, *y; /* [count] each: distinct x, ascending; its rows; the sum of their y */
} regress_sorted;

int regress_sorted_make(regress_sorted *sorted, const double *x, const double *y, int64_t rows,
                        io_error *error);
void regress_sorted_free(regress_sorted *sorted);

typedef struct regress_bins {
    const regress_sorted *sorted;
    double bandwidth;
    int64_t count, room; /* room: count and some empty bins, for vectors to read */
    double *centre;      /* [room] */
    double *moments;     /* [series][term][room] */
} regress_bins;

int64_t regress_bins_count(const regress_sorted *sorted, double bandwidth, int per_bandwidth);
int regress_bins_make(regress_bins *bins, const regress_sorted *sorted, double bandwidth, int per_bandwidth,
                      bool squares, int threads, io_error *error);
void regress_bins_free(regress_bins *bins);

/* The bins first .. end - 1 that `point` sees: beyond, weights are below 1e-17. */
void regress_bins_reach(const regress_bins *bins, double point, int64_t *first, int64_t *end);

#endif
