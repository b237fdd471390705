/* SPDX-License-Identifier: MIT
 * A regular file in memory, read-only and shared with everybody who maps it. Whoever shortens the file
 * meanwhile ends the program. */
#ifndef LOAM_IO_MAPPED_H
#define LOAM_IO_MAPPED_H

#include "io/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mapped {
    const unsigned char *data; /* NULL where the file is empty */
    int64_t bytes;
} mapped;

/* On failure *out is all zero. */
int mapped_open(mapped *out, const char *path, io_error *error);
void mapped_close(mapped *m); /* and zeroes it */

/* Bytes of the file that will hardly be read again need not stay in memory, nor what is mapped with them.
 * They can be read all the same. */
void mapped_forget(const mapped *m, const void *at, size_t bytes);

#endif
