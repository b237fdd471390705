/* SPDX-License-Identifier: MIT
 * Buffers that notice misuse: forbidden pages on both sides stop reads and writes that leave them, the
 * slack up to the page is checked for writes, and all begins as NaN (every byte 0xff).
 *
 * A twin in device memory has poisoned margins in place of the forbidden pages, and lies as
 * the buffer does within 256 bytes, so that odd alignments stay odd. Where the environment
 * has LOAM_CHECK_TIGHT there are no margins and, for contents that are nobody's, no poison:
 * compute-sanitizer then sees reads that leave the buffer and those of what nothing wrote. */
#ifndef TESTS_SUPPORT_GUARD_H
#define TESTS_SUPPORT_GUARD_H

#include <stddef.h>

typedef struct guard {
    unsigned char *data; /* `bytes` usable bytes */
    size_t bytes;
    unsigned char *map, *room; /* the mapping, and its accessible part */
    size_t map_bytes, room_bytes;
    unsigned char *twin; /* in device memory, NULL: none; it begins `before` bytes before what is used */
    size_t before, after;
    int unset;     /* the twin's contents were left as they came */
    int twin_hurt; /* a byte of its margins was changed */
} guard;

enum { GUARD_POISON = 0xff };

/* at_end: data touches the forbidden page behind it, else the one before it. Ends the program where memory
 * runs out. */
guard guard_make(size_t bytes, int at_end);
/* Makes the twin, with the contents of the buffer; `scratch`: they are nobody's. */
void guard_to_device(guard *g, int scratch);
/* The contents of the twin, where there is one, come back. */
void guard_from_device(guard *g);
/* What the library is given: the used bytes of the twin, or of the buffer where there is none. */
void *guard_address(const guard *g);
/* 1 while no byte outside data was changed. */
int guard_intact(const guard *g);
/* 1 where all of data is still poison. */
int guard_untouched(const guard *g);
void guard_free(guard *g);

#endif
