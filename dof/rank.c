/* SPDX-License-Identifier: MIT */
#include "dof/rank.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void rank(const double *x, int64_t count, double *out)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t below = 0, equal = 0;
        for (int64_t j = 0; j < count; j++) {
            below += x[j] < x[i];
            equal += !(x[j] < x[i]) && !(x[j] > x[i]);
        }
        out[i] = (double)below + (double)(equal - 1) / 2;
    }
}

static double correlation(const double *x, const double *y, int64_t count)
{
    const double mean = (double)(count - 1) / 2;
    double xx = 0, xy = 0, yy = 0;
    for (int64_t i = 0; i < count; i++) {
        xx += (x[i] - mean) * (x[i] - mean);
        xy += (x[i] - mean) * (y[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    return xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : (double)NAN;
}

int dof_rank_correlation(const double *x, const double *y, int64_t count, double *rho, io_error *error)
{
    double *const ranks = calloc((size_t)count, 2 * sizeof *ranks);
    if (!ranks) return io_fail(error, EXIT_INTERNAL, "out of memory for ranks");
    rank(x, count, ranks);
    rank(y, count, ranks + count);
    *rho = correlation(ranks, ranks + count, count);
    free(ranks);
    return 0;
}

double dof_quantile(const double *x, int64_t count, double part, double *sorted)
{
    memcpy(sorted, x, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, ascending);
    const double at = part * (double)(count - 1);
    const int64_t first = (int64_t)at, next = first + 1 < count ? first + 1 : first;
    return sorted[first] + (at - (double)first) * (sorted[next] - sorted[first]);
}
