/* SPDX-License-Identifier: MIT
 * A dense array of floating-point numbers in memory, last axis contiguous, and the conversions between its
 * element types, all rounding to nearest even. */
#ifndef LOAM_IO_ARRAY_H
#define LOAM_IO_ARRAY_H

#include "io/error.h"
#include "loam.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ARRAY_MAX_RANK = 8, ARRAY_TEXT = 192 };

typedef struct array {
    loam_dtype dtype;
    int rank; /* 0: a single number */
    int64_t shape[ARRAY_MAX_RANK];
    int64_t count; /* product of shape */
    void *data;    /* owned, aligned to LOAM_ALIGN, never NULL once made */
} array;

size_t array_dtype_bytes(loam_dtype dtype);
const char *array_dtype_name(loam_dtype dtype); /* "f32" */

/* Product of shape[0..rank-1], or -1 where a size is negative, or the product or its bytes overflow. */
int64_t array_shape_count(int rank, const int64_t *shape, size_t element_bytes);
/* "(2, 8, 128, 64)" into text, which is returned. */
const char *array_shape_text(char text[ARRAY_TEXT], int rank, const int64_t *shape);

/* Contents are not set. `what` names the array in messages. On failure *out is all zero. */
int array_create(array *out, loam_dtype dtype, int rank, const int64_t *shape, const char *what,
                 io_error *error);
void array_free(array *a); /* and zeroes it */

/* Changes the element type in place. */
int array_convert(array *a, loam_dtype dtype, const char *what, io_error *error);

double array_get(const array *a, int64_t index);
void array_set(array *a, int64_t index, double value);

/* Fails, naming value and index, where an element is infinite or NaN. */
int array_check_finite(const array *a, const char *what, io_error *error);
/* "(0, 3, 17)": the place of element `index`. */
const char *array_index_text(char text[ARRAY_TEXT], const array *a, int64_t index);

#endif
