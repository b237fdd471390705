/* SPDX-License-Identifier: MIT
 * NumPy's .npy files, versions 1.0, 2.0 and 3.0: little-endian float16, float32 and float64 in C order. */
#ifndef LOAM_IO_NPY_H
#define LOAM_IO_NPY_H

#include "io/array.h"
#include "io/error.h"

#include <stdio.h>

/* The header must agree with the size of the file to the byte. On failure *out is all zero. */
int npy_read(array *out, const char *path, io_error *error);
/* The same from a seekable stream that messages call `name`. */
int npy_read_stream(array *out, FILE *stream, const char *name, io_error *error);

/* Writes version 1.0. The format has no bfloat16: such an array is written as float32. Write errors stay in
 * the stream, for out_finish or out_commit to report. */
void npy_write_stream(FILE *stream, const array *a);
int npy_write(const char *path, const array *a, io_error *error);

#endif
