/* SPDX-License-Identifier: MIT
 * Where a command computes, and with which type: what --backend and --dtype say. */
#ifndef LOAM_CLI_BACKEND_H
#define LOAM_CLI_BACKEND_H

#include "io/error.h"

#include <stdbool.h>

typedef struct backend {
    bool cuda, bf16; /* the machine, and what its products and attention read */
} backend;

/* From the words of --backend and --dtype; dtype NULL: f32, on a GPU bf16. */
int backend_read(backend *b, const char *name, const char *dtype, io_error *error);
/* "on a GPU, bf16" */
const char *backend_text(backend b);

#endif
