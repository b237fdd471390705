/* SPDX-License-Identifier: MIT
 * One tensor of a .safetensors file, of type F16, BF16, F32 or F64. The layout of the whole file is checked:
 * the tensors must fill the data section without gap or overlap, each as large as its type and shape say. */
#ifndef LOAM_IO_SAFETENSORS_H
#define LOAM_IO_SAFETENSORS_H

#include "io/array.h"
#include "io/error.h"

#include <stdio.h>

/* An unknown or empty tensor name fails with the names nearest to it. On failure *out is all zero. */
int safetensors_read(array *out, const char *path, const char *tensor, io_error *error);
/* The same from a seekable stream that messages call `name`. */
int safetensors_read_stream(array *out, FILE *stream, const char *name, const char *tensor, io_error *error);

#endif
