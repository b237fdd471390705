/* SPDX-License-Identifier: MIT */
#include "tests/support/alloc_fail.h"

#include <stdlib.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static long remaining; /* until the one that fails; 0: none does */
static bool happened;

void alloc_fail_at(long nth)
{
    remaining = nth;
    happened = false;
}

bool alloc_fail_happened(void) { return happened; }

static bool fails_now(void)
{
    if (remaining == 0 || --remaining > 0) return false;
    happened = true;
    return true;
}

void *__wrap_malloc(size_t bytes) { return fails_now() ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t count, size_t bytes) { return fails_now() ? NULL : __real_calloc(count, bytes); }

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails_now() ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return fails_now() ? NULL : __real_aligned_alloc(alignment, bytes);
}

void *alloc_fail_malloc(size_t bytes) { return __wrap_malloc(bytes); }

void alloc_fail_free(void *memory) { free(memory); }
