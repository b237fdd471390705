/* SPDX-License-Identifier: MIT
 * JSON objects from text, with errors that tell a wrong text from memory that ran out. */
#ifndef LOAM_IO_JSON_H
#define LOAM_IO_JSON_H

#include "io/error.h"

#include <jansson.h>

/* `name` is the file's, `what` the text's within it: "the header". A key twice is an error. On failure *root
 * is NULL. */
int json_object_of(json_t **root, const char *text, size_t bytes, const char *name, const char *what,
                   io_error *error);
/* The same of a whole file. */
int json_object_in(json_t **root, const char *path, io_error *error);

#endif
