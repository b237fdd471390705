/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs: the order of the kernels of the backward pass. */
#include "src/local/cuda/path/backward.cuh"

extern "C" size_t local_path_backward_cuda_work(const loam_problem *p)
{
    arena pool = {};
    path_grads_carve(p, NULL, &pool);
    return pool.used;
}

extern "C" loam_status local_path_backward_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    const path_grads g = path_grads_carve(p, a, &pool);
    if (p->batch > 0 && p->len_kv > 0) TRY(local_path_prepare_cuda(p, a, &g.w, error));
    if (p->batch > 0) /* also without queries: keys read the arrays of a block without rows */
        TRY(local_path_rows_cuda(p, a, &g, error));
    if (p->batch > 0 && p->len_kv > 0) {
        TRY(local_path_keys_cuda(p, a, &g, error));
        TRY(local_path_groups_cuda(p, a, &g, error));
        TRY(local_path_tiles_cuda(p, a, &g, error));
    }
    return local_row_sums_cuda(p, a, &g.rows, error);
}
