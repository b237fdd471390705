/* SPDX-License-Identifier: MIT
 * The backward row local_backward_cuda (compute capability 8.0 and newer): its workspace, and the order of
 * its kernels. */
#include "src/local/cuda/backward.h"
#include "src/local/cuda/common.cuh"

row_arrays local_row_arrays_carve(const loam_problem *p, arena *pool)
{
    const size_t rows = (size_t)local_rows(p);
    const size_t solved = p->mechanism == LOAM_LLA ? size_mul(rows, (size_t)p->dim_qk) : 0;
    const size_t blocks = size_mul(((size_t)p->len_q + ROWS - 1) / ROWS, (size_t)(p->batch * p->heads_q));
    row_arrays x;
    x.record = (row_scalars *)arena_take(pool, rows, sizeof(row_scalars));
    x.y = (float *)arena_take(pool, solved, sizeof(float));
    x.sums = local_row_sums_carve(p, pool);
    x.head_sums = (double *)arena_take(pool, 2 * (size_t)p->heads_q, sizeof(double));
    x.state = (int32_t *)arena_take(pool, p->mechanism == LOAM_LLA ? blocks : 0, sizeof(int32_t));
    return x;
}

size_t local_backward_cuda_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)local_row_arrays_carve(p, &pool);
    return size_add(pool.used, p->mechanism == LOAM_LLA ? local_adjoint_cuda_work(p) : 0);
}

loam_status local_rows_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows, void *solver,
                            loam_error *error)
{
    if (p->mechanism != LOAM_SOFTMAX) TRY(local_probe_gradient_cuda(p, a, rows, error));
    if (p->mechanism == LOAM_LLA) {
        TRY(local_adjoint_cuda(p, a, rows, solver, error));
        TRY(local_adjoint_double_cuda(p, a, rows, solver, error));
    }
    return local_wide(p) ? local_query_gradient_wide_cuda(p, a, rows, error)
                         : local_query_gradient_narrow_cuda(p, a, rows, error);
}

loam_status local_keys_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                            loam_error *error)
{
    return local_wide(p) ? local_key_gradient_wide_cuda(p, a, rows, error)
                         : local_key_gradient_narrow_cuda(p, a, rows, error);
}

loam_status local_backward_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    row_arrays rows = local_row_arrays_carve(p, &pool);
    rows.state = NULL;
    if (p->batch > 0 && p->len_q > 0) TRY(local_rows_cuda(p, a, &rows, (char *)a->work + pool.used, error));
    if (p->batch > 0 && p->len_kv > 0) TRY(local_keys_cuda(p, a, &rows, error));
    TRY(local_row_sums_cuda(p, a, &rows, error));
    return loam_succeed(error);
}
