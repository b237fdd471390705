/* SPDX-License-Identifier: MIT
 * A tiny model with positive features of any numbers in the place of its softmax. */
#ifndef LOAM_TESTS_LM_FEATURED_H
#define LOAM_TESTS_LM_FEATURED_H

#include <stdbool.h>
#include <stdint.h>

/* Into the folder `to`, of the model at `path`: `first` features in layer 0, or softmax where that is 0, and
 * 24 in the others. */
void write_featured(const char *to, const char *path, int64_t first, bool shared);
/* Likewise, of query heads whose keys have features of their own. */
void write_untied(const char *to, const char *path, int64_t first);

#endif
