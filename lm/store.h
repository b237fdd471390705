/* SPDX-License-Identifier: MIT
 * The arrays of a model by their names in its files, mapped: one .gguf file, or a folder with
 * model.safetensors or its shards. */
#ifndef LOAM_LM_STORE_H
#define LOAM_LM_STORE_H

#include "io/gguf.h"

typedef struct lm_store lm_store;

/* On failure *made is NULL. */
int lm_store_open(lm_store **made, const char *path, io_error *error);
void lm_store_close(lm_store *s); /* NULL is allowed */

/* NULL: a folder. */
const gguf *lm_store_gguf(const lm_store *s);
int64_t lm_store_count(const lm_store *s);
/* *found: there is one. An array of whole numbers, say, is an error. */
int lm_store_find(const lm_store *s, const char *name, tensor *out, bool *found, io_error *error);
/* mapped_forget of what an array has. */
void lm_store_forget(const lm_store *s, const void *at, size_t bytes);
/* Stops at the first name that `visit` returns not 0 for, which is then the result. */
int lm_store_each(const lm_store *s, int (*visit)(void *context, gguf_text name), void *context);

#endif
