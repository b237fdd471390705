/* SPDX-License-Identifier: MIT
 * The launches of key_kernel on narrow tiles. */
#include "src/gpu/launch.cuh"
#include "src/local/local_backward_key_cuda.cuh"

constexpr bool WIDE = false;

template <int DIM, int DIRECTIONS>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                          loam_error *error)
{
    typedef backward_shape<WIDE, DIM, DIRECTIONS> of;
    const int64_t blocks = (p->len_kv + of::key_rows - 1) / of::key_rows * p->batch * p->heads_kv;
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    const dim3 grid((unsigned)blocks, DIM / of::columns);
    constexpr size_t shared = sizeof(key_shared<WIDE, DIM, DIRECTIONS>);
    TRY(cuda_allow_shared((const void *)key_kernel<WIDE, DIM, DIRECTIONS>, shared, error));
    key_kernel<WIDE, DIM, DIRECTIONS>
        <<<grid, of::key_threads, shared, (cudaStream_t)a->stream>>>(*p, *a, saved, *rows);
    return cuda_launched("key_kernel", error);
}

template <int DIM>
static loam_status launch_directions(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                     loam_error *error)
{
    switch (p->mechanism) {
    case LOAM_SOFTMAX: return launch<DIM, NO_DIRECTION>(p, a, rows, error);
    case LOAM_PARALLAX: return launch<DIM, GIVEN_PROBE>(p, a, rows, error);
    default:
        return p->ridge_unit == LOAM_RIDGE_TRACE ? launch<DIM, SOLVED_BY_TRACE>(p, a, rows, error)
                                                 : launch<DIM, SOLVED_PROBE>(p, a, rows, error);
    }
}

loam_status local_key_gradient_narrow_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                           loam_error *error)
{
    switch (local_padded_dim(p)) {
    case 64: return launch_directions<64>(p, a, rows, error);
    case 128: return launch_directions<128>(p, a, rows, error);
    default: return launch_directions<256>(p, a, rows, error);
    }
}
