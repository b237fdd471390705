/* SPDX-License-Identifier: MIT
 * An array from any file that Loam reads: FILE.npy, or FILE.safetensors:TENSOR. */
#ifndef LOAM_IO_LOAD_H
#define LOAM_IO_LOAD_H

#include "io/array.h"
#include "io/error.h"

int array_load(array *out, const char *path, io_error *error);

#endif
