/* SPDX-License-Identifier: MIT
 * Backward of the local family on Hopper: the workspace, and the order of the passes. Arrays that bulk copies
 * cannot read, which only the arguments tell, go to the kernels of cuda/. */
#include "src/local/cuda/backward.h"
#include "src/local/hopper/maps.cuh"
#include "src/local/hopper/operand_fall.cuh"

bool local_backward_hopper_reads(const loam_problem *p, const loam_args *a)
{
    return p->batch > 0 && query_map_fits(p, &a->q) && query_map_fits(p, &a->grad_o) &&
           key_map_fits(p, &a->k) && key_map_fits(p, &a->v) &&
           (p->mechanism != LOAM_PARALLAX || query_map_fits(p, &a->probe));
}

/* One pass after the other uses the workspace behind these. */
static row_arrays row_arrays_carve(const loam_problem *p, arena *pool)
{
    row_arrays rows = local_row_arrays_carve(p, pool);
    const size_t heads = (size_t)(p->batch * p->heads_kv);
    if (p->dtype == LOAM_F16)
        rows.state = p->mechanism == LOAM_LLA
                         ? (int32_t *)arena_take(pool,
                                                 local_row_states(p) / 4 + 1 +
                                                     heads * (sizeof(key_scale) / (4 * sizeof(int32_t))),
                                                 4 * sizeof(int32_t))
                         : (int32_t *)arena_take(pool, key_falls_and_blocks(*p), sizeof(int32_t));
    return rows;
}

size_t local_backward_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)row_arrays_carve(p, &pool);
    const bool solved = p->mechanism == LOAM_LLA, both = solved && p->dtype == LOAM_F16;
    const size_t rows = solved ? local_rows_solved_hopper_work(p) : 0,
                 keys = both ? local_keys_solved_half_hopper_work(p) : local_keys_hopper_work(p),
                 passes = both          ? size_add(rows, keys)
                          : rows > keys ? rows
                                        : keys,
                 with_bulk_copies = size_add(pool.used, passes),
                 without_bulk_copies = local_backward_cuda_work(p);
    return with_bulk_copies > without_bulk_copies ? with_bulk_copies : without_bulk_copies;
}

/* Falls, and the number of blocks behind them, begin at 0 (operand_fall.cuh). The pass over rows, which
 * waits for this, is launched meanwhile: before a memset's end it could not be. */
static __global__ void clear_falls_kernel(int32_t *falls, int64_t count)
{
    launch_dependents();
    for (int64_t n = threadIdx.x; n < count; n += THREADS)
        falls[n] = 0;
}

static loam_status clear_falls(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                               loam_error *error)
{
    return cuda_launch("clear_falls_kernel", clear_falls_kernel, 1, THREADS, 0, a->stream, false, error,
                       rows->state, key_falls(*p) + 1);
}

/* What the pass over rows has left in the workspace is read, and rows and heads are shared with query_kernel
 * and key_kernel. */
static loam_status keys_solved_half(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                    void *memory, loam_error *error)
{
    char *const behind = (char *)memory + local_rows_solved_hopper_work(p);
    TRY(local_key_scales_half_hopper(p, a, rows, memory, error));
    TRY(local_query_gradient_wide_cuda(p, a, rows, error));
    TRY(local_keys_solved_half_hopper(p, a, rows, behind, error));
    return local_keys_cuda(p, a, rows, error);
}

loam_status local_backward_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!local_backward_hopper_reads(p, a)) return local_backward_cuda(p, a, error);
    const bool f16 = p->dtype == LOAM_F16, wide = local_padded_dim(p) > 128;
    arena pool = { (char *)a->work, 0 };
    const row_arrays rows = row_arrays_carve(p, &pool);
    void *const memory = (char *)a->work + pool.used;
    const bool solved = p->mechanism == LOAM_LLA;
    if (f16 && !solved) TRY(clear_falls(p, a, &rows, error));
    TRY(solved && f16 ? local_rows_solved_half_hopper(p, a, &rows, memory, error)
        : solved      ? local_rows_solved_hopper(p, a, &rows, memory, error)
        : f16         ? local_rows_given_half_hopper(p, a, &rows, error)
                      : local_rows_given_hopper(p, a, &rows, error));
    TRY(solved && f16    ? keys_solved_half(p, a, &rows, memory, error)
        : solved && wide ? local_keys_solved_wide_hopper(p, a, &rows, memory, error)
        : wide           ? local_keys_shared_hopper(p, a, &rows, error)
        : f16            ? local_keys_half_hopper(p, a, &rows, error)
                         : local_keys_hopper(p, a, &rows, memory, error));
    TRY(local_row_sums_cuda(p, a, &rows, error));
    return loam_succeed(error);
}
