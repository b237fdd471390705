/* SPDX-License-Identifier: MIT
 * The arrays of a case as dense arrays of double, [batch, head, token, channel]: which it has, their shapes
 * and where their tokens are. A packed case has one batch entry with all tokens. */
#ifndef TESTS_SUPPORT_SLOT_H
#define TESTS_SUPPORT_SLOT_H

#include "tests/support/spec.h"

typedef struct shape {
    int64_t batch, heads, tokens, channels;
} shape;

typedef struct values {
    spec spec;
    int64_t *cu_q, *cu_kv; /* packed: [batch + 1] */
    int64_t *lens_kv;      /* spec.lens: [batch] */
    double *x[SLOT_COUNT]; /* NULL where the case has no such array */
    loam_row_info *info;
} values;

/* Does the case have this array: an input, or an output that its pass can write? */
int slot_used(const spec *s, slot which);
shape slot_shape(const values *v, slot which);
static inline int64_t shape_size(shape a) { return a.batch * a.heads * a.tokens * a.channels; }
static inline int64_t slot_size(const values *v, slot which) { return shape_size(slot_shape(v, which)); }
/* The type in which the library stores it. */
loam_dtype slot_dtype(const spec *s, slot which);
/* Channel 0 of token t (of the array) of a head. */
double *slot_at(const values *v, slot which, int64_t batch, int64_t head, int64_t token);

#endif
