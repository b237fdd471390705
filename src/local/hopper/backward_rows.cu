/* SPDX-License-Identifier: MIT
 * The pass over rows of Local Linear Attention on Hopper: the launches of rows_kernel_hopper, and of the
 * kernels of cuda/ for the blocks that it leaves. */
#include "src/local/cuda/solve_work.cuh"
#include "src/local/hopper/backward_rows.cuh"
#include "src/local/hopper/maps.cuh"

template <int PARTS, bool LISTED, int DIM, bool DECAYED>
static loam_status launch_pass(const loam_problem *p, const loam_args *a, const local_saved *saved,
                               const row_arrays *rows, const solve_work *work, const row_pass_maps *maps,
                               bool overlapped, loam_error *error)
{
    const int64_t blocks = (int64_t)row_blocks(p), most = work->scratches;
    return cuda_launch("rows_kernel_hopper", rows_kernel_hopper<PARTS, LISTED, DIM, DECAYED>,
                       most < blocks ? most : blocks, THREADS, rows_shared_bytes<DIM>, a->stream, overlapped,
                       error, *p, *a, *saved, *rows, *work, blocks, *maps);
}

template <int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          const solve_work *work, loam_error *error)
{
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    row_pass_maps maps;
    TRY(query_map_make(&maps.all.q, p, &a->q, TILE_SIDE, error));
    TRY(query_map_make(&maps.grad_o, p, &a->grad_o, TILE_SIDE, error));
    TRY(key_map_make(&maps.all.k, p, &a->k, TILE_SIDE, error));
    TRY(key_map_make(&maps.all.v, p, &a->v, TILE_SIDE, error));
    TRY(solve_work_clear(work, a, error));
    if (p->decay) {
        return launch_pass<2, false, DIM, true>(p, a, &saved, rows, work, &maps, false, error);
    }
    TRY((launch_pass<2, false, DIM, false>(p, a, &saved, rows, work, &maps, false, error)));
    TRY((launch_pass<1, false, DIM, false>(p, a, &saved, rows, work, &maps, true, error)));
    return launch_pass<2, true, DIM, false>(p, a, &saved, rows, work, &maps, false, error);
}

loam_status local_rows_solved_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                     void *memory, loam_error *error)
{
    arena pool = { (char *)memory, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    TRY(p->dim_qk == 64 ? launch<64>(p, a, rows, &work, error) : launch<128>(p, a, rows, &work, error));
    TRY(local_adjoint64_cuda(p, a, rows, memory, error));
    return local_query_gradient_narrow_cuda(p, a, rows, error);
}

size_t local_rows_solved_hopper_work(const loam_problem *p) { return local_adjoint_cuda_work(p); }
