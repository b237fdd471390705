/* SPDX-License-Identifier: MIT */
#include "tests/support/compare.h"

#include <math.h>
#include <string.h>

double compare_norm(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += isinf(x[i]) ? 0 : x[i] * x[i];
    return sqrt(sum);
}

double compare_distance(const double *want, const double *got, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        const double e = want[i] == got[i] ? 0 : got[i] - want[i];
        sum += isfinite(e) ? e * e : HUGE_VAL;
    }
    return sqrt(sum);
}

difference compare(const double *want, const double *got, int64_t rows, int64_t width)
{
    difference d = { 0, 0, 0 };
    const double norm = compare_norm(want, rows * width), far = compare_distance(want, got, rows * width);
    const double mean_row = rows ? norm / sqrt((double)rows) : 0;
    d.relative = norm > 0 ? far / norm : far;
    for (int64_t r = 0; r < rows; r++) {
        const double size = fmax(compare_norm(want + r * width, width), 0.1 * mean_row);
        const double error = compare_distance(want + r * width, got + r * width, width);
        const double relative = size > 0 ? error / size : error;
        if (relative > d.worst_row) {
            d.worst_row = relative;
            d.row = r;
        }
    }
    return d;
}

int64_t compare_bits(const double *a, const double *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0) return i;
    return -1;
}
