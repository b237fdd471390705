/* SPDX-License-Identifier: MIT
 * The launches of solved_kernel. */
#include "src/local/cuda/forward.h"
#include "src/local/cuda/solve_work.cuh"

template <bool WIDE, int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t blocks = (p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q;
    const int64_t most = solve_blocks(p), grid = most < blocks ? most : blocks;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)a->work, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    constexpr size_t shared = sizeof(solve_shared<WIDE, DIM>);
    TRY(solve_work_clear(&work, a, error));
    TRY(cuda_allow_shared((const void *)solved_kernel<WIDE, DIM>, shared, error));
    solved_kernel<WIDE, DIM>
        <<<(unsigned)grid, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, work, blocks);
    return cuda_launched("solved_kernel", error);
}

template <bool WIDE>
static loam_status launch_dim(const loam_problem *p, const loam_args *a, loam_error *error)
{
    switch (local_padded_dim(p)) {
    case 64: return launch<WIDE, 64>(p, a, error);
    case 128: return launch<WIDE, 128>(p, a, error);
    default: return launch<WIDE, 256>(p, a, error);
    }
}

loam_status local_solved_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return local_wide(p) ? launch_dim<true>(p, a, error) : launch_dim<false>(p, a, error);
}

size_t local_solved_cuda_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)solve_work_carve(p, &pool);
    return pool.used;
}
