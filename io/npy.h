/* SPDX-License-Identifier: MIT
 * NumPy's .npy files, versions 1.0, 2.0 and 3.0, little-endian and in C order: float16, float32 and float64;
 * of vectors of whole numbers also int32 and int64. */
#ifndef LOAM_IO_NPY_H
#define LOAM_IO_NPY_H

#include "io/array.h"
#include "io/error.h"

#include <stdio.h>

/* The header must agree with the size of the file to the byte. On failure *out is all zero. */
int npy_read(array *out, const char *path, io_error *error);
/* The same from a seekable stream that messages call `name`. */
int npy_read_stream(array *out, FILE *stream, const char *name, io_error *error);

/* A vector of int32 or int64; *out is malloc's, and never NULL once read. On failure it is NULL and *count
 * 0. */
int npy_read_integers(int64_t **out, int64_t *count, const char *path, io_error *error);
int npy_read_integers_stream(int64_t **out, int64_t *count, FILE *stream, const char *name, io_error *error);

/* Writes version 1.0. The format has no bfloat16: such an array is written as float32. Write errors stay in
 * the stream, for out_finish or out_commit to report. */
void npy_write_stream(FILE *stream, const array *a);
int npy_write(const char *path, const array *a, io_error *error);

#endif
