/* SPDX-License-Identifier: MIT
 * Arrays of training: a matrix for each of the models that are trained side by side. Activations have a row
 * for each token of the batch, [models][batch * length][width]; parameters are [models][in][out], vectors
 * have one row. */
#ifndef LOAM_TRAIN_MATRIX_H
#define LOAM_TRAIN_MATRIX_H

#include "loam.h"

#include <stdint.h>

typedef struct matrix {
    void *data; /* NULL: there is no such array */
    loam_dtype dtype;
    int64_t models, rows, width;
    int64_t model, row; /* strides in elements; columns are contiguous */
} matrix;

/* A number for each row, the same for all models where the stride is 0. */
typedef struct numbers {
    const int32_t *data;
    int64_t model;
} numbers;

static inline matrix matrix_dense(void *data, loam_dtype dtype, int64_t models, int64_t rows, int64_t width)
{
    const matrix a = { data, dtype, models, rows, width, rows * width, width };
    return a;
}

static inline int64_t matrix_elements(matrix a) { return a.models * a.rows * a.width; }

static inline int64_t matrix_bytes_each(matrix a)
{
    return a.dtype == LOAM_F64 ? 8 : a.dtype == LOAM_F32 ? 4 : 2;
}

/* Elements first .. first + count - 1 of a dense array, all models together, in host memory; LOAM_F32 or
 * LOAM_F64. */
static inline void matrix_set(matrix a, int64_t first, const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (a.dtype == LOAM_F64)
            ((double *)a.data)[first + i] = x[i];
        else
            ((float *)a.data)[first + i] = (float)x[i];
}

/* That of model m alone. */
static inline matrix matrix_model(matrix a, int64_t m)
{
    a.data = (char *)a.data + m * a.model * matrix_bytes_each(a);
    a.models = 1;
    return a;
}

/* Rows first .. first + count - 1 of each model. */
static inline matrix matrix_rows(matrix a, int64_t first, int64_t count)
{
    a.data = (char *)a.data + first * a.row * matrix_bytes_each(a);
    a.rows = count;
    return a;
}

/* Columns first .. first + count - 1. */
static inline matrix matrix_columns(matrix a, int64_t first, int64_t count)
{
    a.data = (char *)a.data + first * matrix_bytes_each(a);
    a.width = count;
    return a;
}

/* Dense rows of `width` cut into rows of `part`: the heads of tokens. */
static inline matrix matrix_parts(matrix a, int64_t part)
{
    a.rows *= a.width / part;
    a.width = a.row = part;
    return a;
}

#endif
