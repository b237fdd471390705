/* SPDX-License-Identifier: MIT
 * The launches of solved_kernel_hopper. */
#include "src/local/cuda/forward.h"
#include "src/local/cuda/solve_work.cuh"
#include "src/local/hopper/maps.cuh"
#include "src/local/hopper/solved.cuh"

template <int PARTS, bool LISTED, int DIM, bool DECAYED>
static loam_status launch_pass(const loam_problem *p, const loam_args *a, const local_saved *saved,
                               const solve_work *work, const qkv_maps *maps, bool overlapped,
                               loam_error *error)
{
    const int64_t blocks = (int64_t)row_blocks(p), most = work->scratches;
    return cuda_launch("solved_kernel_hopper", solved_kernel_hopper<PARTS, LISTED, DIM, DECAYED>,
                       most < blocks ? most : blocks, THREADS, sizeof(solver_shared<DIM>), a->stream,
                       overlapped, error, *p, *a, *saved, *work, blocks, *maps);
}

/* Blocks with few keys in two parts; beside them all others in one part; then, in two parts, those of the
 * others for which one part was not enough. Where scores decay, all blocks in two parts. */
template <int DIM> static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)a->work, 0 };
    const solve_work work = solve_work_carve(p, &pool);
    qkv_maps maps;
    TRY(query_map_make(&maps.q, p, &a->q, TILE_SIDE, error));
    TRY(key_map_make(&maps.k, p, &a->k, TILE_SIDE, error));
    TRY(key_map_make(&maps.v, p, &a->v, TILE_SIDE, error));
    TRY(solve_work_clear(&work, a, error));
    if (p->decay) {
        return launch_pass<2, false, DIM, true>(p, a, &saved, &work, &maps, false, error);
    }
    TRY((launch_pass<2, false, DIM, false>(p, a, &saved, &work, &maps, false, error)));
    TRY((launch_pass<1, false, DIM, false>(p, a, &saved, &work, &maps, true, error)));
    return launch_pass<2, true, DIM, false>(p, a, &saved, &work, &maps, false, error);
}

bool local_solved_hopper_reads(const loam_problem *p, const loam_args *a)
{
    return !a->weights.data && query_map_fits(p, &a->q) && key_map_fits(p, &a->k) && key_map_fits(p, &a->v);
}

loam_status local_solved_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return p->dim_qk == 64 ? launch<64>(p, a, error) : launch<128>(p, a, error);
}
