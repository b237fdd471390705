/* SPDX-License-Identifier: MIT
 * The registry as the tests see it. */
#ifndef TESTS_SUPPORT_KERNELS_H
#define TESTS_SUPPORT_KERNELS_H

#include "tests/support/spec.h"

/* Index of the row called `name`, or -1. */
int kernel_find(const char *name);
/* Does the case go to a row of CUDA, whose arguments are device memory? */
int kernel_on_device(const spec *s);
/* Brings a case within what its row takes of the family: tiled rows are for few shapes and plain scores. */
void kernel_fit(spec *s);
/* Is a row one of a GPU's generation alone? Those are tiled and take few shapes. */
int kernel_tiled(const loam_kernel_info *row);
/* Are rows of this name those whose keys are turned (problem.path)? */
int kernel_turns_keys(const char *name);
/* Are rows of this name those of positive features? */
int kernel_is_positive(const char *name);
/* Keys that are turned, with no option that does not go with them. */
void kernel_take_path(spec *s);
/* Does a list of words such as "f32 bf16" hold `word`? */
int kernel_lists(const char *words, const char *word);

#endif
