/* SPDX-License-Identifier: MIT
 * The launches of solved_kernel_sm90. */
#include "src/gpu/tensor_map.cuh"
#include "src/local/local_forward_cuda.h"
#include "src/local/local_solve_work_cuda.cuh"
#include "src/local/local_solved_sm90.cuh"

template <int DIM> static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t blocks = (p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q;
    const int64_t most = solve_blocks(p), grid = most < blocks ? most : blocks;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    const bool packed = local_packed(p);
    const int64_t batch = packed ? 1 : p->batch, nq = packed ? p->total_q : p->len_q, nk = packed ? p->total_kv : p->len_kv;
    arena pool = { (char *)a->work, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    maps_sm90 maps;
    TRY(tensor_map_make(&maps.q, &a->q, batch, p->heads_q, nq, p->dim_qk, error));
    TRY(tensor_map_make(&maps.k, &a->k, batch, p->heads_kv, nk, p->dim_qk, error));
    TRY(tensor_map_make(&maps.v, &a->v, batch, p->heads_kv, nk, p->dim_v, error));
    constexpr size_t shared = sizeof(solve_shared_sm90<DIM>);
    TRY(solve_work_clear(&work, a, error));
    TRY(cuda_allow_shared((const void *)solved_kernel_sm90<DIM>, shared, error));
    solved_kernel_sm90<DIM><<<(unsigned)grid, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, work, blocks, maps);
    return cuda_launched("solved_kernel_sm90", error);
}

bool local_solved_sm90_fits(const loam_problem *p, const loam_args *a)
{
    const bool packed = local_packed(p);
    const int64_t batch = packed ? 1 : p->batch, nq = packed ? p->total_q : p->len_q, nk = packed ? p->total_kv : p->len_kv;
    return p->dtype == LOAM_BF16 && p->score == LOAM_DOT && p->soft_cap == 0 && !p->slope && !p->key_bias &&
           p->dim_qk == p->dim_v && (p->dim_qk == 64 || p->dim_qk == 128) && p->ridge_unit != LOAM_RIDGE_TRACE &&
           !a->weights.data && nk > 0 && tensor_map_fits(&a->q, batch, p->heads_q, nq) &&
           tensor_map_fits(&a->k, batch, p->heads_kv, nk) && tensor_map_fits(&a->v, batch, p->heads_kv, nk);
}

loam_status local_solved_sm90(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return p->dim_qk == 64 ? launch<64>(p, a, error) : launch<128>(p, a, error);
}
