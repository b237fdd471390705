/* SPDX-License-Identifier: MIT
 * Memory of the tests themselves: zeroed, never NULL; where none is left the program ends. */
#ifndef TESTS_SUPPORT_MEMORY_H
#define TESTS_SUPPORT_MEMORY_H

#include <stddef.h>

void *memory_zeroed(size_t count, size_t bytes);

#endif
