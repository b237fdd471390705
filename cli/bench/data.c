/* SPDX-License-Identifier: MIT */
#include "cli/bench/data.h"

#include <math.h>
#include <stddef.h>

const char *const bench_data_names[] = { "normal", "unit", "anisotropic", "shifted", "rope", NULL };

static void normalise(double *x, int64_t dim)
{
    double square = 0;
    for (int64_t c = 0; c < dim; c++)
        square += x[c] * x[c];
    for (int64_t c = 0; c < dim; c++)
        x[c] /= sqrt(square);
}

static void stretch(double *x, int64_t dim)
{
    for (int64_t c = 0; c < dim; c++)
        x[c] *= 2 * pow(0.05 / 2, (double)c / (double)(dim > 1 ? dim - 1 : 1));
}

/* Neighbouring channels are a pair; a last one without a partner stays. */
static void rotate(double *x, const double *common, int64_t dim, int64_t position)
{
    for (int64_t c = 0; c < dim; c++)
        x[c] = 1.5 * common[c] + 0.7 * x[c];
    for (int64_t c = 0; c + 1 < dim; c += 2) {
        const double angle = (double)position * pow(10000, -(double)c / (double)dim), a = x[c], b = x[c + 1];
        x[c] = a * cos(angle) - b * sin(angle);
        x[c + 1] = a * sin(angle) + b * cos(angle);
    }
}

void bench_data_form(bench_data data, int is_key, double *x, const double *common, int64_t dim,
                     int64_t position)
{
    switch (data) {
    case BENCH_NORMAL:
    case BENCH_FILES: break;
    case BENCH_UNIT: normalise(x, dim); break;
    case BENCH_ANISOTROPIC:
        if (is_key) stretch(x, dim);
        break;
    case BENCH_SHIFTED:
        for (int64_t c = 0; is_key && c < dim; c++)
            x[c] += 4;
        break;
    case BENCH_ROPE: rotate(x, common, dim, position); break;
    }
}
