/* SPDX-License-Identifier: MIT */
#include "cli/experiment/moments.h"

#include <math.h>
#include <stdlib.h>

/* Welford's form: mean and sum of squared deviations, which do not cancel. */
typedef struct running {
    double *mean, *spread;
} running;

static int64_t per_estimator(const moments *m) { return 2 * (m->length + m->windows); }

static running positions_of(const moments *m, int e)
{
    double *at = m->sums + e * per_estimator(m);
    return (running){ at, at + m->length };
}

static running windows_of(const moments *m, int e)
{
    double *at = m->sums + e * per_estimator(m) + 2 * m->length;
    return (running){ at, at + m->windows };
}

/* Means over all positions, and their matrix of co-moments. */
static running totals_of(const moments *m)
{
    double *at = m->sums + ESTIMATORS * per_estimator(m);
    return (running){ at, at + ESTIMATORS };
}

int moments_create(moments *m, int64_t length, io_error *error)
{
    *m = (moments){ .length = length };
    m->window = length > MOMENT_WINDOWS ? length / MOMENT_WINDOWS : 1;
    m->windows = length / m->window;
    m->count = (size_t)(ESTIMATORS * (per_estimator(m) + 1 + ESTIMATORS));
    m->sums = calloc(m->count, sizeof *m->sums);
    return m->sums ? EXIT_OK : io_fail(error, EXIT_INTERNAL, "out of memory");
}

void moments_destroy(moments *m)
{
    free(m->sums);
    *m = (moments){ 0 };
}

static void running_add(running r, int64_t i, double value, double n)
{
    const double step = value - r.mean[i];
    r.mean[i] += step / n;
    r.spread[i] += step * (value - r.mean[i]);
}

static double average(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i];
    return sum / (double)count;
}

static void totals_add(running totals, const double whole[ESTIMATORS], double n)
{
    double step[ESTIMATORS];
    for (int e = 0; e < ESTIMATORS; e++) {
        step[e] = whole[e] - totals.mean[e];
        totals.mean[e] += step[e] / n;
    }
    for (int a = 0; a < ESTIMATORS; a++)
        for (int b = 0; b < ESTIMATORS; b++)
            totals.spread[a * ESTIMATORS + b] += step[a] * step[b] * (n - 1) / n;
}

void moments_add(moments *m, const double *const errors[ESTIMATORS])
{
    const double n = (double)++m->sequences;
    double whole[ESTIMATORS];
    for (int e = 0; e < ESTIMATORS; e++) {
        for (int64_t i = 0; i < m->length; i++)
            running_add(positions_of(m, e), i, errors[e][i], n);
        for (int64_t w = 0; w < m->windows; w++)
            running_add(windows_of(m, e), w, average(errors[e] + w * m->window, m->window), n);
        whole[e] = average(errors[e], m->length);
    }
    totals_add(totals_of(m), whole, n);
}

/* The standard error of a mean of n from the sum of squared deviations. */
static double error_of(const moments *m, double spread)
{
    const double n = (double)m->sequences;
    return n < 2 ? NAN : sqrt(fmax(spread, 0) / (n * (n - 1)));
}

mean_error moments_position(const moments *m, estimator which, int64_t position)
{
    const running r = positions_of(m, (int)which);
    return (mean_error){ r.mean[position], error_of(m, r.spread[position]) };
}

mean_error moments_window(const moments *m, estimator which, int64_t window)
{
    const running r = windows_of(m, (int)which);
    return (mean_error){ r.mean[window], error_of(m, r.spread[window]) };
}

mean_error moments_total(const moments *m, estimator which)
{
    const running totals = totals_of(m);
    return (mean_error){ totals.mean[which], error_of(m, totals.spread[(int)which * (ESTIMATORS + 1)]) };
}

mean_error moments_ratio(const moments *m, estimator which, estimator base)
{
    const running totals = totals_of(m);
    const int a = (int)which, b = (int)base;
    const double ratio = totals.mean[a] / totals.mean[b];
    const double spread = totals.spread[a * ESTIMATORS + a] +
                          ratio * ratio * totals.spread[b * ESTIMATORS + b] -
                          2 * ratio * totals.spread[a * ESTIMATORS + b];
    return (mean_error){ ratio, error_of(m, spread) / totals.mean[b] };
}

double moments_range(const moments *m, estimator which, int64_t first, int64_t last)
{
    return average(positions_of(m, (int)which).mean + first, last - first);
}

/* The 97.5 % point: exact for one and two degrees of freedom, else the expansion about the normal point z
 * (Abramowitz and Stegun, 26.7.5), good to 4e-3 at three degrees and 2e-4 from six on. */
double moments_reach(int64_t sequences)
{
    const double z = 1.959963984540054, z2 = z * z, n = (double)(sequences - 1);
    if (n < 1) return NAN;
    if (n < 2) return 12.706204736174698;
    if (n < 3) return 4.302652729749464;
    const double g1 = (z2 + 1) / 4, g2 = ((5 * z2 + 16) * z2 + 3) / 96;
    const double g3 = (((3 * z2 + 19) * z2 + 17) * z2 - 15) / 384;
    const double g4 = ((((79 * z2 + 776) * z2 + 1482) * z2 - 1920) * z2 - 945) / 92160;
    return z * (1 + (g1 + (g2 + (g3 + g4 / n) / n) / n) / n);
}
