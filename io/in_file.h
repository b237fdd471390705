/* SPDX-License-Identifier: MIT
 * Binary input of known size, so that no size told by a header has to be believed. */
#ifndef LOAM_IO_IN_FILE_H
#define LOAM_IO_IN_FILE_H

#include "io/error.h"

#include <stdint.h>
#include <stdio.h>

/* Opens a regular file for reading; NULL on failure, with the reason in *error (exit status 3). */
FILE *in_open(const char *path, io_error *error);

/* Bytes of the whole stream, which must be seekable; the position is then the beginning. */
int in_size(FILE *stream, const char *name, int64_t *bytes, io_error *error);

/* Reads exactly `bytes`. */
int in_read(FILE *stream, const char *name, void *into, size_t bytes, io_error *error);

#endif
