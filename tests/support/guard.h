/* SPDX-License-Identifier: MIT
 * Buffers that notice misuse: forbidden pages on both sides stop reads and writes that leave them, the
 * slack up to the page is checked for writes, and all begins as NaN (every byte 0xff). */
#ifndef TESTS_SUPPORT_GUARD_H
#define TESTS_SUPPORT_GUARD_H

#include <stddef.h>

typedef struct guard {
    unsigned char *data; /* `bytes` usable bytes */
    size_t bytes;
    unsigned char *map, *room; /* the mapping, and its accessible part */
    size_t map_bytes, room_bytes;
} guard;

enum { GUARD_POISON = 0xff };

/* at_end: data touches the forbidden page behind it, else the one before it. Ends the program where memory
 * runs out. */
guard guard_make(size_t bytes, int at_end);
/* 1 while no byte outside data was changed. */
int guard_intact(const guard *g);
/* 1 where all of data is still poison. */
int guard_untouched(const guard *g);
void guard_free(guard *g);

#endif
