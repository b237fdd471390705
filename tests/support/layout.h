/* SPDX-License-Identifier: MIT
 * Where the elements of an array lie: dense, or with axes in another order, gaps at every level, and for
 * inputs axes that are stored once (stride 0). */
#ifndef TESTS_SUPPORT_LAYOUT_H
#define TESTS_SUPPORT_LAYOUT_H

#include "tests/support/slot.h"

typedef struct layout {
    shape shape;
    int64_t batch, head, token; /* strides in elements; 0: broadcast (or never used) */
    int64_t elements;           /* from the first to the last, gaps included */
    int at_end;                 /* touches the forbidden page behind it */
} layout;

/* Strides of an array that is not dense are multiples of this: 8, as bulk copies of GPUs want, in a quarter
 * of the layouts. */
int64_t layout_unit(const spec *s);
layout layout_make(const values *v, slot which);
static inline int64_t layout_at(const layout *l, int64_t b, int64_t h, int64_t t)
{
    return b * l->batch + h * l->head + t * l->token;
}

#endif
