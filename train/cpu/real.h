/* SPDX-License-Identifier: MIT
 * What the files of this folder are compiled for: LOAM_TRAIN_F64, or float. */
#ifndef LOAM_TRAIN_CPU_REAL_H
#define LOAM_TRAIN_CPU_REAL_H

#include "train/cpu/cpu.h"

#include <assert.h>
#include <tgmath.h>

#if LOAM_TRAIN_F64
typedef double real;
#define REAL(name) name##_f64
#else
typedef float real;
#define REAL(name) name##_f32
#endif

#define OP(name, parameters) void REAL(name) parameters;
#include "train/ops.def"
#undef OP

static inline real *row_of(matrix a, int64_t m, int64_t i)
{
    return (real *)a.data + m * a.model + i * a.row;
}

/* Rows row .. of model m of a, which may be 16-bit, to a dense array. */
void REAL(widen)(real *to, matrix a, int64_t m, int64_t row, int64_t rows);

static inline real sigmoid(real x) { return 1 / (1 + exp(-x)); }
static inline real softplus(real x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

/* Over rows n = 0, 1, ... of all models together; ROW is row n of an array with as many. */
#define PRAGMA(text) _Pragma(#text)
#define PARALLEL_ROWS(n, a) \
    PRAGMA(omp parallel for num_threads(on->threads) schedule(static) if (matrix_elements(a) > 4096)) \
    for (int64_t n = 0; n < (a).models * (a).rows; n++)
#define ROW(a, like, n) row_of(a, (n) / (like).rows, (n) % (like).rows)

#endif
