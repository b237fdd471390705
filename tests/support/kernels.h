/* SPDX-License-Identifier: MIT
 * The registry as the tests see it. */
#ifndef TESTS_SUPPORT_KERNELS_H
#define TESTS_SUPPORT_KERNELS_H

#include "loam.h"

/* Index of the row called `name`, or -1. */
int kernel_find(const char *name);
/* Does a list of words such as "f32 bf16" hold `word`? */
int kernel_lists(const char *words, const char *word);

#endif
