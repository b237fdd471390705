/* SPDX-License-Identifier: MIT
 * The inputs and outputs of a case. Inputs are already rounded to the type that the case stores. */
#ifndef TESTS_SUPPORT_VALUES_H
#define TESTS_SUPPORT_VALUES_H

#include "tests/support/slot.h"

/* Draws the inputs; outputs are zero. Ends the program where memory runs out. */
values values_make(const spec *s);
/* The same inputs (those that *s has too, of the same size; others are 0) and lengths for another spec. */
values values_like(const spec *s, const values *from);
void values_free(values *v);

loam_problem values_problem(const values *v);

/* One sequence: its batch index in the arrays, its tokens there. */
typedef struct sequence {
    int64_t batch, q0, len_q, k0, len_kv;
} sequence;
sequence values_sequence(const values *v, int64_t b);

#endif
