/* SPDX-License-Identifier: MIT
 * The launches of given_rows_kernel_hopper. */
#include "src/local/hopper/backward_given.cuh"
#include "src/local/hopper/maps.cuh"

template <int DIM, bool PROBED, bool SCALED, bool DECAYED>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          loam_error *error)
{
    typedef given_backward_shape<DIM, PROBED> tile_shape;
    const int64_t blocks = (p->len_q + GIVEN_ROWS - 1) / GIVEN_ROWS * p->batch * p->heads_q;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    given_backward_maps maps = {};
    TRY(query_map_make(&maps.q, p, &a->q, TILE_SIDE, error));
    TRY(query_map_make(&maps.grad_o, p, &a->grad_o, TILE_SIDE, error));
    if (PROBED) {
        TRY(query_map_make(&maps.probe, p, &a->probe, TILE_SIDE, error));
    }
    TRY(key_map_make(&maps.k, p, &a->k, tile_shape::keys, error));
    TRY(key_map_make(&maps.v, p, &a->v, tile_shape::keys, error));
    constexpr size_t shared = sizeof(given_backward_shared<DIM, PROBED, DECAYED>);
    TRY(cuda_allow_shared((const void *)given_rows_kernel_hopper<DIM, PROBED, SCALED, DECAYED>, shared,
                          error));
    given_rows_kernel_hopper<DIM, PROBED, SCALED, DECAYED>
        <<<(unsigned)blocks, GIVEN_THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, *rows, maps);
    return cuda_launched("given_rows_kernel_hopper", error);
}

template <int DIM, bool PROBED, bool SCALED>
static loam_status launch_decayed(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  loam_error *error)
{
    return p->decay ? launch<DIM, PROBED, SCALED, true>(p, a, rows, error)
                    : launch<DIM, PROBED, SCALED, false>(p, a, rows, error);
}

template <int DIM, bool PROBED>
static loam_status launch_scaled(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                 loam_error *error)
{
    return a->grad_scale ? launch_decayed<DIM, PROBED, true>(p, a, rows, error)
                         : launch_decayed<DIM, PROBED, false>(p, a, rows, error);
}

template <int DIM>
static loam_status launch_probed(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                 loam_error *error)
{
    return p->mechanism == LOAM_PARALLAX ? launch_scaled<DIM, true>(p, a, rows, error)
                                         : launch_scaled<DIM, false>(p, a, rows, error);
}

loam_status local_rows_given_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                    loam_error *error)
{
    if (p->len_q == 0) {
        return LOAM_OK;
    }
    return p->dim_qk == 64 ? launch_probed<64>(p, a, rows, error) : launch_probed<128>(p, a, rows, error);
}
