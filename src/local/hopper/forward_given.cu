/* SPDX-License-Identifier: MIT
 * The launches of given_kernel_hopper. */
#include "src/local/cuda/forward.h"
#include "src/local/hopper/given.cuh"
#include "src/local/hopper/maps.cuh"

static loam_status multiprocessors(int *count, loam_error *error)
{
    int device = 0;
    TRY(cuda_check(cudaGetDevice(&device), "the current device", error));
    return cuda_check(cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device),
                      "multiprocessors of the device", error);
}

template <int DIM, bool PROBED, bool DECAYED>
static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    typedef given_forward_shape<DIM, PROBED> tile_shape;
    const int64_t blocks = (p->len_q + tile_shape::rows - 1) / tile_shape::rows * p->batch * p->heads_q;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(given_forward_shared<DIM, PROBED, DECAYED>);
    given_forward_maps maps;
    int most = 0;
    TRY(multiprocessors(&most, error));
    TRY(query_map_make(&maps.q, p, &a->q, ROWS, error));
    TRY(key_map_make(&maps.k, p, &a->k, tile_shape::keys, error));
    TRY(key_map_make(&maps.v, p, &a->v, tile_shape::keys, error));
    if (PROBED) {
        TRY(query_map_make(&maps.probe, p, &a->probe, ROWS, error));
    }
    TRY(cuda_allow_shared((const void *)given_kernel_hopper<DIM, PROBED, DECAYED>, shared, error));
    given_kernel_hopper<DIM, PROBED, DECAYED>
        <<<(unsigned)(blocks < most ? blocks : most), tile_shape::threads, shared, (cudaStream_t)a->stream>>>(
            *p, *a, saved, (unsigned)blocks, (float)(p->scale * 1.4426950408889634), maps);
    return cuda_launched("given_kernel_hopper", error);
}

template <int DIM, bool PROBED>
static loam_status launch_decayed(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return p->decay ? launch<DIM, PROBED, true>(p, a, error) : launch<DIM, PROBED, false>(p, a, error);
}

/* The kernel takes the maximum of products q . k for that of scores, which needs a positive scale. */
bool local_given_hopper_reads(const loam_problem *p, const loam_args *a)
{
    return !a->weights.data && p->scale > 0 && query_map_fits(p, &a->q) && key_map_fits(p, &a->k) &&
           key_map_fits(p, &a->v) && (p->mechanism != LOAM_PARALLAX || query_map_fits(p, &a->probe));
}

loam_status local_given_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (p->mechanism == LOAM_PARALLAX) {
        return p->dim_qk == 64 ? launch_decayed<64, true>(p, a, error)
                               : launch_decayed<128, true>(p, a, error);
    }
    return p->dim_qk == 64 ? launch_decayed<64, false>(p, a, error) : launch_decayed<128, false>(p, a, error);
}
