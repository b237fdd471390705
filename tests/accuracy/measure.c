/* SPDX-License-Identifier: MIT */
#include "tests/accuracy/measure.h"

#include "tests/support/compare.h"

#include <math.h>

/* Root of the sum over queries of (q_i . dq_i / scale)^2: of what dscale is the sum
 * (softmax, Parallax), or close to it (LLA, whose dq also has the adjoint in it). */
static double scale_rows(const sample *s, const answer *want)
{
    double sum = 0;
    for (int64_t i = 0; i < s->len_q; i++) {
        double row = 0;
        for (int64_t c = 0; c < s->dim; c++)
            row += s->q[i * s->dim + c] * want->x[PART_DQ][i * s->dim + c];
        sum += row * row;
    }
    return sqrt(sum * (double)s->dim);
}

/* One number per row, a sum of products that may cancel: against its size or that of the mean row. */
static distance measure_numbers(const double *x, const double *y, int64_t rows, double whole)
{
    const double mean = compare_norm(x, rows) / sqrt((double)rows);
    distance d = { whole, 0, 0 };
    for (int64_t i = 0; i < rows; i++) {
        const double relative = fabs(y[i] - x[i]) / fmax(fabs(x[i]), mean);
        if (!(relative <= d.row)) {
            d.row = relative;
            d.at = i;
        }
    }
    return d;
}

distance measure(const sample *s, const answer *want, const answer *got, part which)
{
    const int64_t rows = part_rows(s, which), width = part_width(s, which);
    const double *x = want->x[which], *y = got->x[which];
    const double size = compare_norm(x, rows * width), far = compare_distance(x, y, rows * width);
    const double given = compare_norm(s->grad_o, s->len_q * s->dim);
    if (which != PART_O && size < 1e-9 * given) return (distance){ far / given, far / given, 0 };
    if (which == PART_DSCALE) {
        const double relative = far / fmax(size, scale_rows(s, want));
        return (distance){ relative, relative, 0 };
    }
    if (width == 1) return measure_numbers(x, y, rows, far / size);
    const difference d = compare(x, y, rows, width);
    return (distance){ d.relative, d.worst_row, d.row };
}

distance measure_gradients(const sample *s, const answer *want, const answer *got, part *which)
{
    distance worst = { 0, 0, 0 };
    *which = PART_DQ;
    for (int at = PART_DQ; at < PARTS; at++) {
        if (!want->x[at]) continue;
        const distance d = measure(s, want, got, (part)at);
        if (!(d.whole <= worst.whole)) {
            worst.whole = d.whole;
            *which = (part)at;
        }
        if (!(d.row <= worst.row)) {
            worst.row = d.row;
            worst.at = d.at;
        }
    }
    return worst;
}

double bound_of(const question *ask, bool gradient)
{
    const bool lla = ask->mechanism == LOAM_LLA;
    const double f32 = !lla                 ? (gradient ? 2e-5 : 5e-6)
                       : ask->ridge >= 0.1  ? (gradient ? 1e-4 : 2e-5)
                       : ask->ridge >= 0.01 ? (gradient ? 1e-3 : 2e-4)
                                            : (gradient ? 1e-2 : 2e-3);
    switch (ask->dtype) {
    case LOAM_BF16: return gradient ? 8e-3 : 4e-3;
    case LOAM_F16: return fmax(f32, gradient ? 1e-3 : 5e-4); /* three bits more than bfloat16 */
    default: return f32;
    }
}

bool answer_finite(const sample *s, const answer *a)
{
    for (int which = 0; which < PARTS; which++) {
        const int64_t count = part_rows(s, (part)which) * part_width(s, (part)which);
        for (int64_t i = 0; a->x[which] && i < count; i++)
            if (!isfinite(a->x[which][i])) return false;
    }
    return true;
}
