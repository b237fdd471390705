/* SPDX-License-Identifier: MIT
 * Features in float64: what rounding adds to a key that others repeat is a direction of its own, which a small ridge magnifies. */
#ifndef LOAM_RECURRENT_FEATURES_EXACT_H
#define LOAM_RECURRENT_FEATURES_EXACT_H

#include "src/recurrent/recurrent_features.h"

/* to [dim_qk] <- factor * features of token t of the head of `view` that value head h reads; `row` [dim_qk] is scratch */
static inline void features_load_exact(const loam_problem *p, const loam_const_view *view,
                                       const recurrent_seq *s, int64_t h, int64_t t, double factor,
                                       float *row, double *to)
{
    double norm2 = 0;
    load_floats(row, view->data, p->dtype, RECURRENT_AT(*view, s->b, recurrent_key_head(p, h), s->first + t),
                p->dim_qk);
    for (int64_t c = 0; c < p->dim_qk; c++) {
        const double value = (double)row[c];
        norm2 += value * value;
        to[c] = factor * (p->feature_map != LOAM_FEATURES_ELU ? value : value > 0 ? value + 1 : exp(value));
    }
    const double norm = p->feature_map == LOAM_FEATURES_UNIT ? sqrt(norm2) : 1;
    for (int64_t c = 0; c < p->dim_qk; c++) {
        to[c] = norm > 0 ? to[c] / norm : 0;
    }
}

#endif
