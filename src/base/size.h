/* SPDX-License-Identifier: MIT
 * Saturating arithmetic on sizes: a result that overflows is SIZE_MAX, and stays SIZE_MAX. */
#ifndef LOAM_BASE_SIZE_H
#define LOAM_BASE_SIZE_H

#include "loam.h"
#include "src/base/inline.h"

LOAM_INLINE size_t size_mul(size_t a, size_t b)
{
    return a == SIZE_MAX || b == SIZE_MAX || (b && a > SIZE_MAX / b) ? SIZE_MAX : a * b;
}

LOAM_INLINE size_t size_add(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }

/* Bytes of `count` items of `bytes` bytes, rounded up to a multiple of LOAM_ALIGN, a cache line. */
LOAM_INLINE size_t size_of(size_t count, size_t bytes)
{
    const size_t total = size_add(size_mul(count, bytes), LOAM_ALIGN - 1);
    return total == SIZE_MAX ? SIZE_MAX : total / LOAM_ALIGN * LOAM_ALIGN;
}

/* A bump allocator: consecutive pieces of one buffer, each aligned to a cache line. With base NULL it only
 * adds up sizes, so that one function both sizes a workspace and divides it. */
typedef struct arena {
    char *base;
    size_t used;
} arena;

LOAM_INLINE void *arena_take(arena *a, size_t count, size_t bytes)
{
    char *piece = a->base ? a->base + a->used : NULL;
    a->used = size_add(a->used, size_of(count, bytes));
    return piece;
}

#endif
