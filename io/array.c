/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "io/array.h"

#include "io/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t array_dtype_bytes(loam_dtype dtype) { return dtype == LOAM_F64 ? 8 : dtype == LOAM_F32 ? 4 : 2; }

const char *array_dtype_name(loam_dtype dtype)
{
    static const char *const names[] = {
        [LOAM_F32] = "f32", [LOAM_BF16] = "bf16", [LOAM_F16] = "f16", [LOAM_F64] = "f64"
    };
    return names[dtype];
}

int64_t array_shape_count(int rank, const int64_t *shape, size_t element_bytes)
{
    /* Zeros are left to the end, so that (0, huge, huge) is no way round the check. */
    int64_t count = 1, bytes;
    bool empty = false;
    for (int axis = 0; axis < rank; axis++) {
        if (shape[axis] < 0) return -1;
        if (shape[axis] == 0)
            empty = true;
        else if (__builtin_mul_overflow(count, shape[axis], &count))
            return -1;
    }
    if (__builtin_mul_overflow(count, (int64_t)element_bytes, &bytes)) return -1;
    return empty ? 0 : count;
}

const char *array_shape_text(char text[ARRAY_TEXT], int rank, const int64_t *shape)
{
    int at = snprintf(text, ARRAY_TEXT, "(");
    for (int axis = 0; axis < rank; axis++)
        at += snprintf(text + at, ARRAY_TEXT - (size_t)at, "%s%lld", axis ? ", " : "",
                       (long long)shape[axis]);
    snprintf(text + at, ARRAY_TEXT - (size_t)at, rank == 1 ? ",)" : ")");
    return text;
}

const char *array_index_text(char text[ARRAY_TEXT], const array *a, int64_t index)
{
    int64_t place[ARRAY_MAX_RANK] = { 0 };
    for (int axis = a->rank - 1; axis >= 0; axis--) {
        place[axis] = index % a->shape[axis];
        index /= a->shape[axis];
    }
    return array_shape_text(text, a->rank, place);
}

/* Rounded up to whole lines, as aligned_alloc wants; at least one. NULL where that overflows or fails. */
static void *allocate(int64_t count, size_t element_bytes)
{
    size_t bytes, lines;
    if (__builtin_mul_overflow((size_t)count, element_bytes, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)LOAM_ALIGN, &bytes))
        return NULL;
    lines = bytes / LOAM_ALIGN;
    return aligned_alloc(LOAM_ALIGN, lines * LOAM_ALIGN);
}

int array_create(array *out, loam_dtype dtype, int rank, const int64_t *shape, const char *what,
                 io_error *error)
{
    *out = (array){ 0 };
    int64_t count = array_shape_count(rank, shape, array_dtype_bytes(dtype));
    void *data = count < 0 ? NULL : allocate(count, array_dtype_bytes(dtype));
    if (!data) {
        char text[ARRAY_TEXT];
        return io_fail(error, EXIT_INTERNAL, "out of memory for %s, shape %s of %s", what,
                       array_shape_text(text, rank, shape), array_dtype_name(dtype));
    }
    *out = (array){ .dtype = dtype, .rank = rank, .count = count, .data = data };
    for (int axis = 0; axis < rank; axis++)
        out->shape[axis] = shape[axis];
    return 0;
}

void array_free(array *a)
{
    free(a->data);
    *a = (array){ 0 };
}

double array_get(const array *a, int64_t index)
{
    switch (a->dtype) {
    case LOAM_F32: return (double)((const float *)a->data)[index];
    case LOAM_BF16: return bf16_to_double(((const uint16_t *)a->data)[index]);
    case LOAM_F16: return f16_to_double(((const uint16_t *)a->data)[index]);
    case LOAM_F64: break;
    }
    return ((const double *)a->data)[index];
}

void array_set(array *a, int64_t index, double value)
{
    switch (a->dtype) {
    case LOAM_F32: ((float *)a->data)[index] = (float)value; return;
    case LOAM_BF16: ((uint16_t *)a->data)[index] = bf16_from_double(value); return;
    case LOAM_F16: ((uint16_t *)a->data)[index] = f16_from_double(value); return;
    case LOAM_F64: ((double *)a->data)[index] = value;
    }
}

int array_convert(array *a, loam_dtype dtype, const char *what, io_error *error)
{
    if (a->dtype == dtype) return 0;
    array converted;
    int status = array_create(&converted, dtype, a->rank, a->shape, what, error);
    if (status) return status;
    for (int64_t i = 0; i < a->count; i++)
        array_set(&converted, i, array_get(a, i));
    array_free(a);
    *a = converted;
    return 0;
}

int array_check_finite(const array *a, const char *what, io_error *error)
{
    for (int64_t i = 0; i < a->count; i++) {
        double value = array_get(a, i);
        char text[ARRAY_TEXT];
        if (!isfinite(value))
            return io_fail(error, EXIT_INPUT, "%s: the value at %s is %s, not a finite %s", what,
                           array_index_text(text, a, i),
                           isnan(value) ? "NaN"
                           : value > 0  ? "infinite"
                                        : "-infinite",
                           array_dtype_name(a->dtype));
    }
    return 0;
}
