/* SPDX-License-Identifier: MIT
 * Where models are trained. */
#ifndef LOAM_CLI_TRAINING_BACKEND_H
#define LOAM_CLI_TRAINING_BACKEND_H

#include "io/error.h"
#include "train/machine.h"

typedef struct backend {
    bool cuda, bf16; /* the machine, and what its products and attention read */
} backend;

/* From the words of --backend and --dtype; dtype NULL: f32, on a GPU bf16. */
int backend_read(backend *b, const char *name, const char *dtype, io_error *error);
/* threads 0: all. */
int backend_open(backend b, int threads, machine *on, io_error *error);
/* "on a GPU, bf16" */
const char *backend_text(backend b);

#endif
