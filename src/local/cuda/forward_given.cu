/* SPDX-License-Identifier: MIT
 * The launches of given_kernel. */
#include "src/local/cuda/forward.h"
#include "src/local/cuda/given.cuh"
#include "src/local/cuda/launch.cuh"

template <bool WIDE, int DIM, bool PROBED>
static loam_status launch_given(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t blocks = (p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q;
    const dim3 grid((unsigned)blocks, (unsigned)((p->dim_v + CHUNK - 1) / CHUNK));
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(given_shared<WIDE, DIM, PROBED>);
    TRY(cuda_allow_shared((const void *)given_kernel<WIDE, DIM, PROBED>, shared, error));
    given_kernel<WIDE, DIM, PROBED><<<grid, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved);
    return cuda_launched("given_kernel", error);
}

loam_status local_given_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return by_tiles(
        p,
        [&](auto wide, auto dim) {
            constexpr bool is_wide = decltype(wide)::value;
            constexpr int dimension = decltype(dim)::value;
            return p->mechanism == LOAM_PARALLAX ? launch_given<is_wide, dimension, true>(p, a, error)
                                                 : launch_given<is_wide, dimension, false>(p, a, error);
        });
}
