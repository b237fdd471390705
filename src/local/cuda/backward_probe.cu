/* SPDX-License-Identifier: MIT
 * The launches of probe_kernel. */
#include "src/gpu/launch.cuh"
#include "src/local/cuda/backward_probe.cuh"

template <bool WIDE, int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          loam_error *error)
{
    typedef typename probe_shared<WIDE, DIM>::of of;
    const int64_t blocks = (p->len_q + of::rows - 1) / of::rows * p->batch * p->heads_q;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(probe_shared<WIDE, DIM>);
    TRY(cuda_allow_shared((const void *)probe_kernel<WIDE, DIM>, shared, error));
    probe_kernel<WIDE, DIM>
        <<<(unsigned)blocks, of::threads, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, *rows);
    return cuda_launched("probe_kernel", error);
}

template <bool WIDE>
static loam_status launch_dim(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                              loam_error *error)
{
    switch (local_padded_dim(p)) {
    case 64: return launch<WIDE, 64>(p, a, rows, error);
    case 128: return launch<WIDE, 128>(p, a, rows, error);
    default: return launch<WIDE, 256>(p, a, rows, error);
    }
}

loam_status local_probe_gradient_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                      loam_error *error)
{
    return local_wide(p) ? launch_dim<true>(p, a, rows, error) : launch_dim<false>(p, a, rows, error);
}
