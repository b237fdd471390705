/* SPDX-License-Identifier: MIT
 * The pass over rows of backward_half.cuh: its launches, those for tiles of 256 channels apart. */
#include "src/local/hopper/backward_half.cuh"

/* Blocks with few keys in two parts, where scores decay all; beside them all others in one part, and where
 * these leave room, what follows from the solutions of the former; then those for which one part was not
 * enough. */
template <int DIM, bool DECAYED>
static loam_status launch(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error)
{
    TRY((launch_pass<2, DIM, DECAYED>(p, a, plan, false, error)));
    if (!DECAYED) TRY((launch_pass<1, DIM, false>(p, a, plan, false, error)));
    if (DIM == 128) TRY(rows_ended(p, a, plan, pass_grid<DIM>(p, plan), error));
    if (!DECAYED) TRY((launch_pass<2, DIM, false>(p, a, plan, true, error)));
    TRY(heavy_adjoint(p, a, &plan->work, &plan->copy, &plan->heavy, &plan->maps.all, error));
    return rows_solved(p, a, plan, error);
}

loam_status local_rows_solved_half_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                          void *memory, loam_error *error)
{
    const int dim = local_padded_dim(p);
    auto *const queue = dim == 256  ? half_rows_wide
                        : dim == 64 ? p->decay ? launch<64, true> : launch<64, false>
                        : p->decay ? launch<128, true>
                                    : launch<128, false>;
    rows_plan plan, narrow;
    TRY(begin_plan(&plan, p, a, rows, memory, error));
    TRY(narrow_plan(p, &plan, &narrow, error));
    TRY(cuda_check(cudaMemsetAsync(plan.extremes, 0, (size_t)(p->batch * p->heads_kv) * sizeof *plan.extremes,
                                   (cudaStream_t)a->stream),
                   "cudaMemsetAsync", error));
    if (has_ended_blocks(p)) {
        TRY(cuda_check(
            cudaMemsetAsync(plan.ended[0].next, 0, ENDED_COUNTERS * sizeof(int64_t), (cudaStream_t)a->stream),
            "cudaMemsetAsync", error));
    }
    TRY(queue(p, a, &narrow, error));
    return local_adjoint_double_cuda(p, a, rows, memory, error);
}
