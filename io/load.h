/* SPDX-License-Identifier: MIT
 * An array from any file that Loam reads: FILE.npy, or FILE.safetensors:TENSOR. */
#ifndef LOAM_IO_LOAD_H
#define LOAM_IO_LOAD_H

#include "io/array.h"
#include "io/error.h"

#include <stddef.h>

int array_load(array *out, const char *path, io_error *error);
/* How much of `path` names the file: what is left may name a tensor in it. */
size_t array_file_length(const char *path);

#endif
