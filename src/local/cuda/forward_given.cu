/* SPDX-License-Identifier: MIT
 * The launches of given_kernel. */
#include "src/gpu/launch.cuh"
#include "src/local/cuda/forward.h"
#include "src/local/cuda/given.cuh"

template <bool WIDE, int DIM, bool PROBED>
static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t blocks = (p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q;
    const dim3 grid((unsigned)blocks, (unsigned)((p->dim_v + CHUNK - 1) / CHUNK));
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(given_shared<WIDE, DIM, PROBED>);
    TRY(cuda_allow_shared((const void *)given_kernel<WIDE, DIM, PROBED>, shared, error));
    given_kernel<WIDE, DIM, PROBED><<<grid, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, saved);
    return cuda_launched("given_kernel", error);
}

template <bool WIDE, int DIM>
static loam_status launch_probe(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return p->mechanism == LOAM_PARALLAX ? launch<WIDE, DIM, true>(p, a, error)
                                         : launch<WIDE, DIM, false>(p, a, error);
}

template <bool WIDE>
static loam_status launch_dim(const loam_problem *p, const loam_args *a, loam_error *error)
{
    switch (local_padded_dim(p)) {
    case 64: return launch_probe<WIDE, 64>(p, a, error);
    case 128: return launch_probe<WIDE, 128>(p, a, error);
    default: return launch_probe<WIDE, 256>(p, a, error);
    }
}

loam_status local_given_cuda(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return local_wide(p) ? launch_dim<true>(p, a, error) : launch_dim<false>(p, a, error);
}
