/* SPDX-License-Identifier: MIT
 * The workspace of the solvers of Local Linear Attention on GPUs, for host code. */
#ifndef LOAM_LOCAL_CUDA_SOLVE_WORK_CUH
#define LOAM_LOCAL_CUDA_SOLVE_WORK_CUH

#include "src/gpu/launch.cuh"
#include "src/local/cuda/solve.cuh"

/* 0 without a device. */
static inline int64_t solve_multiprocessors(void)
{
    int device = 0, multiprocessors = 0;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
        return 0;
    return multiprocessors;
}

/* Thread blocks of a launch, each with a scratch: as many as the device can hold at once. */
static inline int64_t solve_blocks(const loam_problem *p)
{
    return (local_padded_dim(p) == 64 ? 3 : 2) * solve_multiprocessors();
}

/* Blocks of ROWS rows. */
static inline size_t row_blocks(const loam_problem *p)
{
    return (size_t)((p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q);
}

/* Doubles of the scratch of row_double_kernel: a lower triangle for each thread block. */
static inline size_t row_double_scratch(const loam_problem *p)
{
    const size_t d = (size_t)p->dim_qk;
    return ROW64_BLOCKS * (d * (d + 1) / 2);
}

/* The scratch of the solver and that of row_double_kernel share one place: the solver has ended when
 * row_double_kernel begins. */
static inline solve_work solve_work_carve(const loam_problem *p, arena *pool)
{
    const size_t dim = (size_t)local_padded_dim(p), blocks = (size_t)solve_blocks(p);
    const size_t solver = size_mul(blocks, solver_scratch(dim) * sizeof(float)),
                 rows = row_double_scratch(p) * sizeof(double);
    solve_work w;
    w.next_block = (int64_t *)arena_take(pool, 1, sizeof(int64_t));
    w.hard_count = (unsigned long long *)arena_take(pool, 1, sizeof(unsigned long long));
    w.next_few = (int64_t *)arena_take(pool, 1, sizeof(int64_t));
    w.next_listed = (int64_t *)arena_take(pool, 1, sizeof(int64_t));
    w.next_heavy = (int64_t *)arena_take(pool, 1, sizeof(int64_t));
    w.next_solved = (int64_t *)arena_take(pool, 1, sizeof(int64_t));
    w.next_ended = (int64_t *)arena_take(pool, 1, sizeof(int64_t));
    w.listed_count = (unsigned long long *)arena_take(pool, 1, sizeof(unsigned long long));
    w.heavy_count = (unsigned long long *)arena_take(pool, 1, sizeof(unsigned long long));
    w.scratch_taken = (int32_t *)arena_take(pool, blocks, sizeof(int32_t));
    w.span = (half_span *)arena_take(pool, (size_t)p->batch * (size_t)p->heads_kv, sizeof(half_span));
    w.scratches = (int64_t)blocks;
    w.listed = (int32_t *)arena_take(pool, row_blocks(p), sizeof(int32_t));
    w.hard = (hard_row *)arena_take(pool, (size_t)local_rows(p), sizeof(hard_row));
    w.scratch = (float *)arena_take(pool, solver > rows ? solver : rows, 1);
    w.row_scratch = (double *)w.scratch;
    return w;
}

/* Clears the counters, the marks of scratches in use and the extremes of heads, which lie before `listed`. */
static inline loam_status solve_work_clear(const solve_work *work, const loam_args *a, loam_error *error)
{
    return cuda_check(cudaMemsetAsync(work->next_block, 0,
                                      (size_t)((char *)work->listed - (char *)work->next_block),
                                      (cudaStream_t)a->stream),
                      "counters of the work", error);
}

#endif
