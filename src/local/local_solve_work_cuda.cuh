/* SPDX-License-Identifier: MIT
 * The workspace of the solvers on GPUs, and the launch of the rows that they leave to float64. */
#ifndef LOAM_LOCAL_LOCAL_SOLVE_WORK_CUDA_CUH
#define LOAM_LOCAL_LOCAL_SOLVE_WORK_CUDA_CUH

#include "src/gpu/launch.cuh"
#include "src/local/local_solved_cuda.cuh"

/* Thread blocks, each with a scratch: what the device may hold at once. */
static inline int64_t solve_blocks(const loam_problem *p)
{
    int device = 0, multiprocessors = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
        return 0;
    }
    return (local_padded_dim(p) == 64 ? 3 : 2) * (int64_t)multiprocessors;
}

/* Doubles of the workspace for float64: a lower triangle for each thread block. */
static inline size_t row64_scratch(const loam_problem *p)
{
    const size_t d = (size_t)p->dim_qk;
    return ROW64_BLOCKS * (d * (d + 1) / 2);
}

static inline solve_work solve_work_carve(const loam_problem *p, arena *pool)
{
    const size_t dim = (size_t)local_padded_dim(p), blocks = (size_t)solve_blocks(p);
    solve_work w;
    w.next_block = (int64_t *)arena_take(pool, 1, sizeof(int64_t));
    w.hard_count = (unsigned long long *)arena_take(pool, 1, sizeof(unsigned long long));
    w.hard = (hard_row *)arena_take(pool, (size_t)local_rows(p), sizeof(hard_row));
    w.scratch = (float *)arena_take(pool, size_mul(blocks, VECTORS * (dim / 2) * THREADS), sizeof(float));
    w.row_scratch = (double *)arena_take(pool, row64_scratch(p), sizeof(double));
    return w;
}

/* Both counters begin at 0. */
static inline loam_status solve_work_clear(const solve_work *work, const loam_args *a, loam_error *error)
{
    return cuda_check(cudaMemsetAsync(work->next_block, 0, 2 * LOAM_ALIGN, (cudaStream_t)a->stream),
                      "counters of the work", error);
}

#endif
