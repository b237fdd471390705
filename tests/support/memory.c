/* SPDX-License-Identifier: MIT */
#include "tests/support/memory.h"

#include <stdio.h>
#include <stdlib.h>

void *memory_zeroed(size_t count, size_t bytes)
{
    void *p = calloc(count ? count : 1, bytes);
    if (!p) {
        fprintf(stderr, "tests: no memory for %zu x %zu bytes\n", count, bytes);
        exit(EXIT_FAILURE);
    }
    return p;
}
