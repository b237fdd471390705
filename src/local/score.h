/* SPDX-License-Identifier: MIT
 *
 * The score of a pair of query and key in every kernel, from x = q . k or -|q - k|^2 / 2:
 *
 *     s = cap(cut(scale x)) - slope |distance| + bias + decay,   cap(z) = c tanh(z / c)
 *
 * cut: to +-SCORE_LIMIT, so that huge products give large weights and not NaN. Kernels in float32 compute the
 * same in vectors (local/cpu/tile.h) and fragments (local/cuda/common.cuh); they cut x too, which overflows
 * in float32.
 */
#ifndef LOAM_LOCAL_SCORE_H
#define LOAM_LOCAL_SCORE_H

#include "src/local/local.h"

#include <math.h>

#define SCORE_LIMIT 1e37f

/* The score in float64, on CPUs and GPUs, but for bias and decay, which the caller adds. slope: 0 where
 * there is none. */
LOAM_INLINE double local_score(const loam_problem *p, double x, double slope, double distance)
{
    double s = fmin(fmax(p->scale * x, (double)-SCORE_LIMIT), (double)SCORE_LIMIT);
    if (p->soft_cap > 0) s = p->soft_cap * tanh(s / p->soft_cap);
    return s - slope * fabs(distance);
}

#endif
