/* SPDX-License-Identifier: MIT
 * The inputs and outputs of a case as dense arrays of double, [batch, head, token, channel]; a packed case
 * has one batch entry with all tokens. Inputs are already rounded to the type that the case stores. */
#ifndef TESTS_SUPPORT_VALUES_H
#define TESTS_SUPPORT_VALUES_H

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

/* Draws the inputs; outputs are zero. Ends the program where memory runs out. */
values values_make(const spec *s);
/* The same inputs (those that *s has too, of the same size; others are 0) and lengths for another spec. */
values values_like(const spec *s, const values *from);
void values_free(values *v);

/* Does the case have this array: an input, or an output that its pass can write? */
int slot_used(const spec *s, slot which);
shape slot_shape(const values *v, slot which);
static inline int64_t shape_size(shape a) { return a.batch * a.heads * a.tokens * a.channels; }
static inline int64_t slot_size(const values *v, slot which) { return shape_size(slot_shape(v, which)); }
/* The type in which the library stores it. */
loam_dtype slot_dtype(const spec *s, slot which);
loam_problem values_problem(const values *v);

/* One sequence: its batch index in the arrays, its tokens there. */
typedef struct sequence {
    int64_t batch, q0, len_q, k0, len_kv;
} sequence;
sequence values_sequence(const values *v, int64_t b);
/* Channel 0 of token t (of the array) of a head. */
double *values_at(const values *v, slot which, int64_t batch, int64_t head, int64_t token);

#endif
