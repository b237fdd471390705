/* SPDX-License-Identifier: MIT
 * Makes one allocation fail. Link with ALLOC_FAIL_LINK of tests/io/CMakeLists.txt, which sends malloc,
 * calloc, realloc and aligned_alloc of everything linked statically through here. What shared libraries
 * allocate is not seen, but for those that can be told whom to ask: json_set_alloc_funcs. One thread only. */
#ifndef LOAM_TESTS_SUPPORT_ALLOC_FAIL_H
#define LOAM_TESTS_SUPPORT_ALLOC_FAIL_H

#include <stdbool.h>
#include <stddef.h>

/* The nth allocation from now (1: the next) fails, once; 0: none. */
void alloc_fail_at(long nth);
/* True where the allocation that alloc_fail_at named has been asked for, and thus has failed. */
bool alloc_fail_happened(void);

/* malloc and free for json_set_alloc_funcs. */
void *alloc_fail_malloc(size_t bytes);
void alloc_fail_free(void *memory);

#endif
