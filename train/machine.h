/* SPDX-License-Identifier: MIT
 * Where a model lives: its operations, and its memory. */
#ifndef LOAM_TRAIN_MACHINE_H
#define LOAM_TRAIN_MACHINE_H

#include "train/matrix.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum product_how {
    PRODUCT_A_TRANSPOSED = 1,
    PRODUCT_B_TRANSPOSED = 2,
    PRODUCT_ADD = 4 /* to what `out` holds */
} product_how;

typedef struct machine machine;

typedef struct ops {
#define OP(name, parameters) void(*name) parameters;
#include "train/ops.def"
#undef OP
} ops;

struct machine {
    const ops *op;
    loam_dtype dtype;
    int threads;
};

/* The CPU: dtype LOAM_F32, or LOAM_F64 to check by. threads 0: all that OpenMP offers. From now on OpenBLAS
 * takes one thread a call in this process: blocks of rows are shared out here, so that bits do not depend on
 * threads. */
machine machine_cpu(loam_dtype dtype, int threads);

/* What its sums depend on besides the program: "openblas Haswell". */
const char *machine_name(const machine *on, char text[64]);

/* Between memory of a machine and the host's, after all that the machine was asked for before. */
void machine_read(const machine *on, void *to, const void *from, size_t bytes);
void machine_write(const machine *on, void *to, const void *from, size_t bytes);

/* Memory in two passes of the same calls: without a base takes are added up, with one they are made. */
typedef struct memory {
    char *base;
    size_t used; /* SIZE_MAX: it overflowed */
} memory;

void *memory_take(memory *from, int64_t count, size_t bytes);
matrix memory_matrix(memory *from, const machine *on, int64_t models, int64_t rows, int64_t width);
/* Zeroed room for what was added up, and begins anew; false where there is none. */
bool memory_open(memory *m);
void memory_close(memory *m);

#endif
