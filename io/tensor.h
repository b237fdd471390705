/* SPDX-License-Identifier: MIT
 * Numbers as model files hold them, plain or in quantised blocks, where they lie in a mapped file. */
#ifndef LOAM_IO_TENSOR_H
#define LOAM_IO_TENSOR_H

#include "io/array.h"

#include <stdbool.h>
#include <stdint.h>

/* A block holds 32 numbers and, as float16, a scale d (and a least value m), then whole numbers q:
 * Q8_0 is d q, Q4_0 d (q - 8), Q4_1 d q + m; of a byte of two, the low half is of the block's first half. */
typedef enum tensor_type {
    TENSOR_F32,
    TENSOR_BF16,
    TENSOR_F16,
    TENSOR_F64,
    TENSOR_Q8_0,
    TENSOR_Q4_0,
    TENSOR_Q4_1,
    TENSOR_TYPES
} tensor_type;

const char *tensor_type_name(tensor_type type); /* "BF16" */
/* Numbers in a block, 1 for plain types, and its bytes. */
int tensor_block(tensor_type type);
int tensor_block_bytes(tensor_type type);
/* The plain type of these elements. */
tensor_type tensor_type_of(loam_dtype dtype);

typedef struct tensor {
    tensor_type type;
    int rank;
    int64_t shape[ARRAY_MAX_RANK]; /* the last axis is contiguous, and whole blocks */
    int64_t count;                 /* product of shape */
    const unsigned char *data;     /* not owned, of any alignment, little-endian */
} tensor;

int64_t tensor_bytes(const tensor *t);

/* Elements first .. first + count - 1, whole blocks, as LOAM_F32, LOAM_BF16 or LOAM_F16, rounded to nearest
 * even; quantised ones are float32 before that. */
void tensor_read(const tensor *t, int64_t first, int64_t count, loam_dtype dtype, void *out);

#endif
