/* SPDX-License-Identifier: MIT
 * The sums of rows of the interpolation: what host and device memory share. */
#ifndef LOAM_CORE_INTERPOLATION_H
#define LOAM_CORE_INTERPOLATION_H

#include "src/base/dtype.h"
#include "src/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SUM_TERMS = 3 };

/* factor times the channels from `channel` on of the rows of an array. */
typedef struct sum_term {
    loam_const_view view;
    int64_t channel;
    double factor;
} sum_term;

/* The channels from `channel` on of every row of `to` become the sum of the terms. */
typedef struct row_sum {
    loam_dtype dtype;
    int64_t batch, heads, tokens, channels;
    loam_view to;
    int64_t channel;
    sum_term terms[SUM_TERMS];
    int count;
} row_sum;

LOAM_INLINE void row_sum_element(const row_sum *s, int64_t b, int64_t h, int64_t t, int64_t c)
{
    double sum = 0;
    for (int i = 0; i < s->count; i++) {
        const sum_term *term = &s->terms[i];
        const loam_const_view *v = &term->view;
        sum += term->factor *
               element_load(v->data, s->dtype, b * v->batch + h * v->head + t * v->token + term->channel + c);
    }
    element_store(s->to.data, s->dtype, b * s->to.batch + h * s->to.head + t * s->to.token + s->channel + c,
                  sum);
}

loam_status row_sum_cuda(const row_sum *sum, void *stream, loam_error *error);

#ifdef __cplusplus
}
#endif

#endif
