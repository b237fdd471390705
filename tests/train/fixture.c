/* SPDX-License-Identifier: MIT */
#include "tests/train/fixture.h"

#include "random/random.h"
#include "tests/support/memory.h"

#include <math.h>

matrix fixture_matrix(const machine *on, int64_t models, int64_t rows, int64_t width)
{
    const size_t count = (size_t)(models * rows * width);
    return matrix_dense(memory_zeroed(count, on->dtype == LOAM_F64 ? 8 : 4), on->dtype, models, rows, width);
}

double fixture_get(matrix a, int64_t index)
{
    return a.dtype == LOAM_F64 ? ((const double *)a.data)[index] : (double)((const float *)a.data)[index];
}

void fixture_set(matrix a, int64_t index, double x) { matrix_set(a, index, &x, 1); }

/* Rounded to float in both types, so that both compute the same thing. */
void fixture_fill(matrix a, uint64_t stream)
{
    for (int64_t i = 0; i < matrix_elements(a); i++) {
        double x;
        random_normals((random_stream){ 20261123, stream }, (uint64_t)i, 1, &x);
        fixture_set(a, i, (double)(float)x);
    }
}

double fixture_dot(matrix a, matrix b)
{
    double sum = 0;
    for (int64_t i = 0; i < matrix_elements(a); i++)
        sum += fixture_get(a, i) * fixture_get(b, i);
    return sum;
}

double fixture_distance(matrix got, matrix want)
{
    double miss = 0, size = 0;
    for (int64_t i = 0; i < matrix_elements(want); i++) {
        miss += pow(fixture_get(got, i) - fixture_get(want, i), 2);
        size += pow(fixture_get(want, i), 2);
    }
    return size > 0 ? sqrt(miss / size) : sqrt(miss);
}
