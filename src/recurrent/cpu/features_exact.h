/* SPDX-License-Identifier: MIT
 * Features in float64. Rounding a key that is repeated often would add a direction of its own to H, which a
 * small ridge magnifies. */
#ifndef LOAM_RECURRENT_CPU_FEATURES_EXACT_H
#define LOAM_RECURRENT_CPU_FEATURES_EXACT_H

#include "src/recurrent/cpu/features.h"

/* to [dim_qk] <- factor * features of token t in the head of `view` that value head h reads;
 * `row` [dim_qk]: scratch. */
static inline void features_load_exact(const loam_problem *p, const loam_const_view *view,
                                       const recurrent_seq *s, int64_t h, int64_t t, double factor,
                                       float *row, double *to)
{
    const int64_t d = p->dim_qk;
    load_floats(row, view->data, p->dtype, RECURRENT_AT(*view, s->b, recurrent_key_head(p, h), s->first + t),
                d);
    for (int64_t c = 0; c < d; c++) {
        to[c] = factor * (double)row[c];
    }
    if (p->feature_map == LOAM_FEATURES_ELU) {
        for (int64_t c = 0; c < d; c++) {
            const double value = (double)row[c];
            to[c] = factor * (value > 0 ? value + 1 : exp(value));
        }
    } else if (p->feature_map == LOAM_FEATURES_UNIT) {
        double norm2 = 0;
#pragma omp simd reduction(+ : norm2)
        for (int64_t c = 0; c < d; c++) {
            norm2 += (double)row[c] * (double)row[c];
        }
        const double norm = sqrt(norm2);
        for (int64_t c = 0; c < d; c++) {
            to[c] = norm > 0 ? to[c] / norm : 0;
        }
    }
}

#endif
