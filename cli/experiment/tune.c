/* SPDX-License-Identifier: MIT */
#include "cli/experiment/tune.h"

#include <math.h>
#include <stdlib.h>

/* Two settings of an estimator, every value of the one with every value of the other. */
typedef struct axis {
    double first, ratio; /* a geometric row */
    int count;
} axis;

typedef struct grid {
    axis outer, inner;
} grid;

static const axis bandwidths = { 0.15, 1.4142135623730951, 10 }, ridges = { 0.01, 10, 5 };
static const axis mesa_ridges = { 0.01, 10, 5 }, strengths = { 1, 0.5, 8 }, forgets = { 1, 0.1, 4 };
static const axis nothing = { 1, 1, 1 };

static grid grid_of(estimator which)
{
    switch (which) {
    case ESTIMATOR_LLA: return (grid){ bandwidths, ridges };
    case ESTIMATOR_SOFTMAX: return (grid){ bandwidths, nothing };
    case ESTIMATOR_MESA: return (grid){ mesa_ridges, nothing };
    case ESTIMATOR_DELTA: return (grid){ strengths, nothing };
    case ESTIMATOR_GATED_DELTA:
    case ESTIMATOR_KDA: return (grid){ strengths, forgets };
    default: return (grid){ nothing, nothing };
    }
}

static double value_at(axis along, int index) { return along.first * pow(along.ratio, index); }

double tune_bandwidth(const estimate_setup *setup, int64_t dim)
{
    return sqrt(setup->bandwidth * sqrt((double)dim));
}

bool tune_candidate(estimator which, int index, int64_t dim, estimate_setup *setup)
{
    const grid g = grid_of(which);
    if (index >= g.outer.count * g.inner.count) return false;
    const double outer = value_at(g.outer, index / g.inner.count);
    const double inner = value_at(g.inner, index % g.inner.count);
    if (which == ESTIMATOR_LLA || which == ESTIMATOR_SOFTMAX)
        setup->bandwidth = outer * outer / sqrt((double)dim);
    if (which == ESTIMATOR_LLA) setup->ridge = inner;
    if (which == ESTIMATOR_MESA) setup->mesa_ridge = outer;
    if (which >= ESTIMATOR_DELTA && which <= ESTIMATOR_KDA) setup->strength = outer, setup->forget = inner;
    return true;
}

int tune_estimator(estimator which, const estimate_batch *batch, const double *truth, estimate_setup *setup,
                   io_error *error)
{
    const int64_t count = batch->count * batch->task.length * batch->task.dim;
    double *outputs = calloc((size_t)count, sizeof *outputs), least = INFINITY;
    if (!outputs) return io_fail(error, EXIT_INTERNAL, "out of memory");
    estimate_setup candidate = *setup;
    int status = EXIT_OK;
    for (int i = 0; status == EXIT_OK && tune_candidate(which, i, batch->task.dim, &candidate); i++) {
        double sum = 0;
        status = estimate_outputs(&candidate, which, batch, outputs, error);
        for (int64_t n = 0; n < count; n++)
            sum += (outputs[n] - truth[n]) * (outputs[n] - truth[n]);
        if (status == EXIT_OK && sum < least) least = sum, *setup = candidate;
    }
    free(outputs);
    return status;
}
