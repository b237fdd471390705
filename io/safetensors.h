/* SPDX-License-Identifier: MIT
 * .safetensors files: tensors of type F16, BF16, F32 or F64, and texts. Of a file that is read the whole
 * layout is checked: the tensors must fill the data section without gap or overlap, each as large as its type
 * and shape say. */
#ifndef LOAM_IO_SAFETENSORS_H
#define LOAM_IO_SAFETENSORS_H

#include "io/array.h"
#include "io/error.h"

#include <stdio.h>

/* One tensor. An unknown or empty name fails with the names nearest to it. On failure *out is all zero. */
int safetensors_read(array *out, const char *path, const char *tensor, io_error *error);
/* The same from a seekable stream that messages call `name`. */
int safetensors_read_stream(array *out, FILE *stream, const char *name, const char *tensor, io_error *error);

/* A file of which several are read; header and layout are checked when it is opened. On failure *file is
 * NULL. `path` must outlive it. */
typedef struct safetensors safetensors;
int safetensors_open(safetensors **file, const char *path, io_error *error);
void safetensors_close(safetensors *file); /* NULL is allowed */
size_t safetensors_count(const safetensors *file);
/* The text of this name in the metadata; NULL: none. Lives as long as the file. */
const char *safetensors_text(const safetensors *file, const char *name);
int safetensors_tensor(safetensors *file, array *out, const char *tensor, io_error *error);

/* The name after this one, in the order of the header; of NULL the first. NULL: there are no more. */
const char *safetensors_next(const safetensors *file, const char *tensor);

/* A tensor of any type, where it lies in the file. */
typedef struct safetensors_place {
    const char *type; /* "I64"; lives as long as the file */
    int rank;
    int64_t shape[ARRAY_MAX_RANK];
    int64_t begin, bytes; /* from the beginning of the file */
} safetensors_place;
/* False: there is none of this name. */
bool safetensors_find(const safetensors *file, const char *tensor, safetensors_place *out);

/* What is to be written: tensors under different names, and texts, name and value by turns up to a NULL. */
typedef struct safetensors_contents {
    size_t count;
    const char *const *names;
    const array *tensors; /* their data follow each other in this order: wide types first keep them aligned */
    const char *const *texts;
} safetensors_contents;

/* Whole or not at all (io/out_file.h). The same contents give the same bytes. Names and texts are UTF-8. */
int safetensors_write(const char *path, const safetensors_contents *contents, io_error *error);

/* Writes all data of tensor `index` to the stream, and returns 0 or an exit status. What the stream does not
 * take is noticed in the end. */
typedef int safetensors_put(void *context, size_t index, FILE *stream, io_error *error);
/* The same of tensors without data, which are asked for one after another. */
int safetensors_write_by(const char *path, const safetensors_contents *contents, safetensors_put *put,
                         void *context, io_error *error);

#endif
