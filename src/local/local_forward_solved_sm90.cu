/* SPDX-License-Identifier: MIT
 * The launches of solved_kernel_sm90. */
#include "src/local/local_forward_cuda.h"
#include "src/local/local_maps_sm90.cuh"
#include "src/local/local_solve_work_cuda.cuh"
#include "src/local/local_solved_sm90.cuh"

template <int DIM> static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t blocks = (p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q;
    const int64_t most = solve_blocks(p), grid = most < blocks ? most : blocks;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)a->work, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    maps_sm90 maps;
    TRY(query_map_make(&maps.q, p, &a->q, SIDE, error));
    TRY(key_map_make(&maps.k, p, &a->k, SIDE, error));
    TRY(key_map_make(&maps.v, p, &a->v, SIDE, error));
    constexpr size_t shared = sizeof(solve_shared_sm90<DIM>);
    TRY(solve_work_clear(&work, a, error));
    TRY(cuda_allow_shared((const void *)solved_kernel_sm90<DIM>, shared, error));
    solved_kernel_sm90<DIM>
        <<<(unsigned)grid, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, work, blocks, maps);
    return cuda_launched("solved_kernel_sm90", error);
}

bool local_solved_sm90_reads(const loam_problem *p, const loam_args *a)
{
    return !a->weights.data && query_map_fits(p, &a->q) && key_map_fits(p, &a->k) && key_map_fits(p, &a->v);
}

loam_status local_solved_sm90(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return p->dim_qk == 64 ? launch<64>(p, a, error) : launch<128>(p, a, error);
}
