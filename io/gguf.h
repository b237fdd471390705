/* SPDX-License-Identifier: MIT
 * .gguf files, version 3: values by key, then tensors. All that the header says is checked against the size
 * of the file when it is opened: every count and length, that keys and tensors have one name each, that
 * tensors lie within the file, aligned, and do not overlap. */
#ifndef LOAM_IO_GGUF_H
#define LOAM_IO_GGUF_H

#include "io/error.h"
#include "io/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct gguf gguf;

/* Bytes of the file, not ended by a 0. */
typedef struct gguf_text {
    const char *at;
    size_t bytes;
} gguf_text;

/* On failure *made is NULL. `path` must outlive it. */
int gguf_open(gguf **made, const char *path, io_error *error);
/* The same of bytes in memory, which must outlive it, as must `name`, which messages call them. */
int gguf_open_bytes(gguf **made, const void *data, int64_t bytes, const char *name, io_error *error);
void gguf_close(gguf *g); /* NULL is allowed */
/* mapped_forget of bytes of the file, if gguf_open opened it. */
void gguf_forget(const gguf *g, const void *at, size_t bytes);

bool gguf_has(const gguf *g, const char *key);
/* The value of a key, which must be there and be such: a whole number or a truth value, also any number as
 * real, a text. */
int gguf_integer(const gguf *g, const char *key, int64_t *value, io_error *error);
int gguf_real(const gguf *g, const char *key, double *value, io_error *error);
int gguf_string(const gguf *g, const char *key, gguf_text *value, io_error *error);

/* An array, whose elements are taken one after another, each at most once. */
typedef struct gguf_array {
    int64_t count; /* of those left */
    const unsigned char *at;
    int type;
} gguf_array;

int gguf_strings(const gguf *g, const char *key, gguf_array *list, io_error *error);
int gguf_numbers(const gguf *g, const char *key, gguf_array *list, io_error *error);
gguf_text gguf_next_string(gguf_array *list);
double gguf_next_number(gguf_array *list);

int64_t gguf_tensors(const gguf *g);
/* In the order of their names. Shapes are given with the contiguous axis last. */
gguf_text gguf_tensor_name(const gguf *g, int64_t index);
tensor gguf_tensor_at(const gguf *g, int64_t index);
/* -1: none of this name. */
int64_t gguf_tensor_index(const gguf *g, const char *name);

#endif
