/* SPDX-License-Identifier: MIT
 * The contents of a case, from its seed and its kind of data. */
#ifndef TESTS_SUPPORT_DATA_H
#define TESTS_SUPPORT_DATA_H

#include "tests/support/slot.h"

/* Lengths of packed sequences (zero among them) and of caches; allocated already. */
void data_lengths(values *v);
/* The inputs, rounded to what the library will read. */
void data_fill(values *v);

#endif
