/* SPDX-License-Identifier: MIT
 *
 * Backward of Local Linear Attention on Hopper, the pass over rows: drho, the adjoint solve (Cov + Lambda)
 * y = drho, and dq of 64 rows at a time, with the solver of local/hopper/solve.cuh. Formulas are those of
 * local/cuda/backward_probe.cu and local/cuda/backward_query.cuh.
 *
 * As in forward, blocks whose rows see many keys have one part, here of bf16, if one was enough for each of
 * their probes in forward. rho and y are then bf16 numbers times a power of two, and the last sweep has each
 * in one tile. It also finds the residual of the adjoint solve: with E = g - gbar + t,
 * drho - (Cov + Lambda) y = -sum p E kappa - Lambda y. Blocks that miss the tolerance, and all other blocks,
 * have two parts in everything, in launches of their own; there a sweep before the last finds the means of u
 * and t. The adjoint solve of blocks that plain steps would take too long for is that of heavy_solve.cu,
 * before a launch that goes on from y: with 64 dimensions in fp16 (backward_solved.cu), with 128, which leave
 * no registers for that sweep, in two bf16 parts. Blocks with rows for float64 are left to query_kernel.
 * Blocks with 64 dimensions and very few keys are those of backward_resident.cu, more than 128 dimensions
 * those of backward_rows_wide.cu, and all of float16 those of backward_half.cuh.
 */
#include "src/local/hopper/backward_centres.cuh"
#include "src/local/hopper/backward_plan.cuh"
#include "src/local/hopper/backward_resident.cuh"
#include "src/local/hopper/backward_rows.cuh"
#include "src/local/hopper/maps.cuh"

/* The listed blocks; then the adjoint solve by row matrices, and what follows from it. */
template <int DIM, bool DECAYED>
static loam_status launch_listed(const loam_problem *p, const loam_args *a, const rows_plan *plan,
                                 loam_error *error)
{
    if (!DECAYED && !all_resident(p, a)) TRY((launch_pass<2, DIM, DECAYED>(p, a, plan, true, false, error)));
    rows_plan narrow;
    TRY(narrow_plan(p, plan, &narrow, error));
    TRY(heavy_adjoint(p, a, &plan->work, &plan->copy, &plan->heavy, &narrow.maps.all, error));
    if constexpr (DIM == 64)
        return rows_solved(p, a, &narrow, error);
    else
        return launch_pass<2, DIM, DECAYED, true>(p, a, plan, false, false, error);
}

template <int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const rows_plan *plan, loam_error *error)
{
    if (p->decay) {
        TRY((launch_pass<2, DIM, true>(p, a, plan, false, false, error)));
        return launch_listed<DIM, true>(p, a, plan, error);
    }
    if (!all_resident(p, a)) {
        TRY((launch_pass<2, DIM, false>(p, a, plan, false, false, error)));
        TRY((launch_pass<1, DIM, false>(p, a, plan, false, true, error)));
    }
    if (may_be_resident(p, a)) {
        rows_plan narrow;
        TRY(narrow_plan(p, plan, &narrow, error));
        TRY(backward_resident(p, a, &narrow, error));
    }
    return launch_listed<DIM, false>(p, a, plan, error);
}

loam_status local_rows_solved_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                     void *memory, loam_error *error)
{
    rows_plan plan;
    TRY(begin_plan(&plan, p, a, rows, memory, error));
    TRY(key_map_make(&plan.maps.all.k, p, &a->k, p->dim_qk, TILE_SIDE, error));
    TRY(key_map_make(&plan.maps.all.v, p, &a->v, p->dim_v, TILE_SIDE, error));
    const int dim = local_padded_dim(p);
    TRY(dim == 64    ? launch<64>(p, a, &plan, error)
        : dim == 128 ? launch<128>(p, a, &plan, error)
                     : rows_wide(p, a, &plan, error));
    TRY(local_adjoint_double_cuda(p, a, rows, memory, error));
    TRY(local_query_gradient_narrow_cuda(p, a, rows, error));
    return probe_centres(p, a, &plan, error);
}

size_t local_rows_solved_hopper_work(const loam_problem *p)
{
    size_t bytes;
    (void)rows_plan_of(p, NULL, &bytes);
    return bytes;
}
