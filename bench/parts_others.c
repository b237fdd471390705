/* SPDX-License-Identifier: MIT
 * The same products by libraries: OpenBLAS, and libxsmm where the build has found it. */
#include "bench/parts.h"

#include <cblas.h>
#include <lapacke.h>
#include <stddef.h>

#if defined PARTS_LIBXSMM
#include <libxsmm.h>
#endif

static void sgemm(const parts_product *s, float *c, const float *a, const float *b)
{
    const int across = s->t_stride == 1;
    cblas_sgemm(CblasRowMajor, across ? CblasNoTrans : CblasTrans, CblasNoTrans, (int)s->rows, PARTS_LANES,
                (int)s->t_count, 1, a, (int)(across ? s->row_stride : s->t_stride), b, PARTS_LANES,
                s->add ? 1 : 0, c, PARTS_LANES);
}

/* The upper triangle by columns is the lower one by rows. */
static void dpotrf(double *a, int64_t n)
{
    LAPACKE_dpotrf_work(LAPACK_COL_MAJOR, 'U', (lapack_int)n, a, (lapack_int)n);
}

const parts parts_openblas = { .by = "OpenBLAS", .product = sgemm, .factor = dpotrf };

#if defined PARTS_LIBXSMM

static libxsmm_smmfunction generated;

/* By columns: its rows are our lanes, its columns our rows. */
static int generate(const parts_product *s)
{
    const int across = s->t_stride == 1;
    const libxsmm_blasint lanes = PARTS_LANES,
                          stride = (libxsmm_blasint)(across ? s->row_stride : s->t_stride);
    const float alpha = 1, beta = s->add ? 1 : 0;
    const int flags = across ? LIBXSMM_GEMM_FLAG_NONE : LIBXSMM_GEMM_FLAG_TRANS_B;
    generated = libxsmm_smmdispatch(lanes, (libxsmm_blasint)s->rows, (libxsmm_blasint)s->t_count, &lanes,
                                    &stride, &lanes, &alpha, &beta, &flags, NULL);
    return generated != NULL;
}

static void run_generated(const parts_product *s, float *c, const float *a, const float *b)
{
    (void)s;
    generated(b, a, c);
}

const parts parts_libxsmm = { .by = "libxsmm", .ready = generate, .product = run_generated };

#else

const parts parts_libxsmm = { .by = "libxsmm" };

#endif
