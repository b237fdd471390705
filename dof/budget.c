/* SPDX-License-Identifier: MIT */
#include "dof/budget.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

int dof_budget_check(const dof_budget *b, io_error *error)
{
    if (b->mean < b->unit || b->mean > b->most || b->mean % b->unit != 0)
        return io_fail(error, EXIT_USAGE,
                       "--features %" PRId64 ": expected a multiple of --unit %" PRId64 ", at most %" PRId64,
                       b->mean, b->unit, b->most - b->most % b->unit);
    return 0;
}

/* Shares in units: as large as their part of `rate`, from 1 to the cap. */
static double share_of(double need, double rate, int64_t cap)
{
    return fmin(fmax(rate * need, 1), (double)cap);
}

static double sum_of(const double *needs, int64_t count, double least, double rate, int64_t cap)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += share_of(fmax(needs[i], least), rate, cap);
    return sum;
}

/* The largest rate, in double, at which the shares are not more than the units. */
static double rate_of(const double *needs, int64_t count, double least, int64_t units, int64_t cap)
{
    double low = 0, high = 1;
    while (sum_of(needs, count, least, high, cap) < (double)units)
        high *= 2;
    for (double middle = high / 2; low < middle && middle < high; middle = low + (high - low) / 2)
        if (sum_of(needs, count, least, middle, cap) > (double)units)
            high = middle;
        else
            low = middle;
    return low;
}

void dof_budget_share(const dof_budget *b, const double *needs, int64_t count, int64_t *out)
{
    const int64_t cap = b->most / b->unit, units = count * (b->mean / b->unit);
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, needs[i]);
    /* What needs nothing still takes what the cap leaves over. */
    const double least = most > 0 ? most * 1e-9 : 1;
    const double rate = rate_of(needs, count, least, units, cap);
    int64_t left = units;
    for (int64_t i = 0; i < count; i++) {
        out[i] = (int64_t)share_of(fmax(needs[i], least), rate, cap);
        left -= out[i];
    }
    assert(left >= 0);
    /* One more each, by remainder, then by need; the first of equals. Who has had it is negative. */
    for (; left > 0; left--) {
        int64_t best = -1;
        double remainder = -1;
        for (int64_t i = 0; i < count; i++) {
            if (out[i] < 0 || out[i] == cap) continue;
            const double its = share_of(fmax(needs[i], least), rate, cap) - (double)out[i];
            if (its > remainder || (!(its < remainder) && needs[i] > needs[best])) best = i, remainder = its;
        }
        assert(best >= 0);
        out[best] = -out[best] - 1;
    }
    for (int64_t i = 0; i < count; i++)
        out[i] = (out[i] < 0 ? -out[i] : out[i]) * b->unit;
}

/* Between points, and beyond the last as there. */
static double at_features(const int64_t *features, int64_t points, const double *rises, int64_t m)
{
    int64_t p = 1;
    while (p < points && features[p] < m)
        p++;
    if (p == points) return rises[points - 1];
    const double part = (double)(m - features[p - 1]) / (double)(features[p] - features[p - 1]);
    return rises[p - 1] + part * (rises[p] - rises[p - 1]);
}

static void lower_hull(const int64_t *features, int64_t points, double *rises)
{
    for (int64_t p = 1; p < points; p++)
        rises[p] = fmin(rises[p], rises[p - 1]);
    /* From each corner to the one that the steepest line leads to. */
    for (int64_t from = 0, to; from + 1 < points; from = to) {
        double steepest = HUGE_VAL;
        to = from + 1;
        for (int64_t p = from + 1; p < points; p++) {
            const double slope = (rises[p] - rises[from]) / (double)(features[p] - features[from]);
            if (slope < steepest) steepest = slope, to = p;
        }
        for (int64_t p = from + 1; p < to; p++)
            rises[p] = rises[from] + steepest * (double)(features[p] - features[from]);
    }
}

double dof_budget_measured(const dof_budget *b, const int64_t *features, int64_t points, double *rises,
                           int64_t count, int64_t *out)
{
    const int64_t cap = b->most - b->most % b->unit;
    assert(features[0] == b->unit);
    for (int64_t i = 0; i < count; i++) {
        lower_hull(features, points, rises + i * points);
        out[i] = b->unit;
    }
    for (int64_t left = count * (b->mean / b->unit - 1); left > 0; left--) {
        int64_t best = -1;
        double most = -HUGE_VAL;
        for (int64_t i = 0; i < count; i++) {
            const double *its = rises + i * points;
            const double gain = at_features(features, points, its, out[i]) -
                                at_features(features, points, its, out[i] + b->unit);
            if (out[i] == cap) continue;
            if (gain > most || (!(gain < most) && out[i] < out[best])) best = i, most = gain;
        }
        assert(best >= 0);
        out[best] += b->unit;
    }
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += at_features(features, points, rises + i * points, out[i]);
    return sum;
}

void dof_budget_clip(const dof_budget *b, int64_t dim, int64_t count, int64_t *features)
{
    const int64_t most = dim < b->unit ? b->unit : dim - dim % b->unit;
    for (int64_t i = 0; i < count; i++)
        if (features[i] > most) features[i] = most;
}
