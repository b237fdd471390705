/* SPDX-License-Identifier: MIT
 * Products by OpenBLAS on blocks of rows that depend on the shape alone, one thread each. */
#include "train/cpu/real.h"

#include <cblas.h>

#if LOAM_TRAIN_F64
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

/* Rows of a block. Where a is transposed the rows of the result are few and its sums long. */
enum { BLOCK = 256, BLOCK_TRANSPOSED = 32 };

void REAL(product)(const machine *on, matrix out, matrix a, matrix b, unsigned how)
{
    const bool left = how & PRODUCT_A_TRANSPOSED, right = how & PRODUCT_B_TRANSPOSED;
    const int64_t inner = left ? a.rows : a.width, block = left ? BLOCK_TRANSPOSED : BLOCK;
    const int64_t blocks = (out.rows + block - 1) / block;
    assert(out.rows == (left ? a.width : a.rows) && out.width == (right ? b.rows : b.width));
    assert(inner == (right ? b.width : b.rows) && out.models == a.models && out.models == b.models);
#pragma omp parallel for num_threads(on->threads) schedule(static) if (out.models * blocks > 1)
    for (int64_t n = 0; n < out.models * blocks; n++) {
        const int64_t m = n / blocks, first = n % blocks * block;
        const int64_t count = out.rows - first < block ? out.rows - first : block;
        const real *from = left ? row_of(a, m, 0) + first : row_of(a, m, first);
        GEMM(CblasRowMajor, left ? CblasTrans : CblasNoTrans, right ? CblasTrans : CblasNoTrans,
             (blasint)count, (blasint)out.width, (blasint)inner, 1, from, (blasint)a.row, row_of(b, m, 0),
             (blasint)b.row, how & PRODUCT_ADD ? 1 : 0, row_of(out, m, first), (blasint)out.row);
    }
}

void REAL(product_onto)(const machine *on, matrix out, matrix base, matrix a, matrix b)
{
    REAL(copy)(on, out, base);
    REAL(product)(on, out, a, b, PRODUCT_ADD);
}
