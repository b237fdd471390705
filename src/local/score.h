/* SPDX-License-Identifier: MIT
 *
 * The score of a pair of query and key in every kernel, from x = q . k or -|q - k|^2 / 2:
 *
 *     s = map(cut(scale x)) - slope |distance| + bias + decay
 *
 * map: those of LOCAL_MAPS (local/local.h), such as c tanh(z / c), the soft cap.
 * cut: to +-SCORE_LIMIT, so that huge products give large weights and not NaN. Kernels in float32 compute the
 * same in vectors (local/cpu/tile.h) and fragments (local/cuda/common.cuh); they cut x too, which overflows
 * in float32.
 */
#ifndef LOAM_LOCAL_SCORE_H
#define LOAM_LOCAL_SCORE_H

#include "src/local/local.h"

#include <math.h>

#define SCORE_LIMIT 1e37f

LOAM_INLINE double local_map(const loam_problem *p, double z)
{
    return p->soft_cap > 0 ? p->soft_cap * tanh(z / p->soft_cap) : z;
}

/* The score in float64, on CPUs and GPUs, but for bias and decay, which the caller adds. slope: 0 where
 * there is none. */
LOAM_INLINE double local_score(const loam_problem *p, double x, double slope, double distance)
{
    const double z = fmin(fmax(p->scale * x, (double)-SCORE_LIMIT), (double)SCORE_LIMIT);
    return local_map(p, z) - slope * fabs(distance);
}

#endif
