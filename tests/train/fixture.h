/* SPDX-License-Identifier: MIT
 * Dense arrays of a machine's type for the tests of training, as doubles. */
#ifndef LOAM_TESTS_TRAIN_FIXTURE_H
#define LOAM_TESTS_TRAIN_FIXTURE_H

#include "train/machine.h"

/* Zeroed; free its data. */
matrix fixture_matrix(const machine *on, int64_t models, int64_t rows, int64_t width);
/* Standard normal numbers, the same for each type but for rounding to float. */
void fixture_fill(matrix a, uint64_t stream);
/* Element `index` of a dense array, all its models together. */
double fixture_get(matrix a, int64_t index);
void fixture_set(matrix a, int64_t index, double x);
/* sum a b over all elements. */
double fixture_dot(matrix a, matrix b);
/* |got - want| / |want|, Frobenius; |got| where want is 0. */
double fixture_distance(matrix got, matrix want);

#endif
