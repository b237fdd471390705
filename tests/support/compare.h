/* SPDX-License-Identifier: MIT
 * How far an array is from what it should be. */
#ifndef TESTS_SUPPORT_COMPARE_H
#define TESTS_SUPPORT_COMPARE_H

#include <stddef.h>
#include <stdint.h>

typedef struct difference {
    double relative;  /* |got - want| / |want|, Frobenius; absolute where want is 0; inf where not finite */
    double worst_row; /* the same of one row, relative to that row or a tenth of the mean row */
    int64_t row;      /* where that is */
} difference;

/* Rows of `width`. */
difference compare(const double *want, const double *got, int64_t rows, int64_t width);
/* |x|, Frobenius. */
double compare_norm(const double *x, int64_t count);
/* |got - want|; equal infinities differ by 0, NaN by inf. */
double compare_distance(const double *want, const double *got, int64_t count);
/* Index of the first element whose bits differ, or -1. */
int64_t compare_bits(const double *a, const double *b, int64_t count);

#endif
