/* SPDX-License-Identifier: MIT
 * What the launches of the pass over rows share in the backward of Local Linear Attention on Hopper: places
 * in the workspace, and maps of the arrays. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_PLAN_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_PLAN_CUH

#include "src/local/hopper/backward_pairs.cuh"
#include "src/local/hopper/maps.cuh"

static inline bool has_ended_blocks(const loam_problem *p)
{
    return p->dtype == LOAM_F16 && local_padded_dim(p) == 128;
}

/* The first list has been taken from when the second begins, so that both have the same memory. */
enum { ENDED_COUNTERS = 2 * 3 };
static inline void ended_blocks_carve(ended_blocks (&ended)[2], const loam_problem *p, arena *pool)
{
    if (!has_ended_blocks(p)) return;
    int64_t *const counters = (int64_t *)arena_take(pool, ENDED_COUNTERS, sizeof(int64_t));
    int32_t *const block = (int32_t *)arena_take(pool, row_blocks(p), sizeof(int32_t));
    for (int n = 0; n < 2; n++) {
        unsigned long long *const counts = (unsigned long long *)(counters + 3 * n);
        ended[n] = { counters + 3 * n, counts + 1, counts + 2, block };
    }
}

/* Has the pass copies of keys and values in fp16? */
static inline bool has_half_copy(const loam_problem *p)
{
    return p->dtype == LOAM_F16 || may_have_row_matrices(p);
}

/* The copy in fp16, where it is needed, and what row matrices need lie behind the workspace of the adjoint
 * solve in cuda/. */
static inline rows_plan rows_plan_of(const loam_problem *p, void *memory, size_t *bytes)
{
    rows_plan plan = {};
    arena solver = { (char *)memory, 0 }, pool = { (char *)memory, 0 };
    plan.work = solve_work_carve(p, &solver);
    (void)arena_take(&pool, local_adjoint_cuda_work(p), 1);
    if (has_half_copy(p)) plan.copy = half_copy_carve(p, &plan.work, &pool);
    plan.heavy = heavy_work_carve(p, &pool);
    ended_blocks_carve(plan.ended, p, &pool);
    if (p->dtype == LOAM_F16)
        plan.extremes = (head_extremes *)arena_take(&pool, (size_t)(p->batch * p->heads_kv),
                                                    sizeof(head_extremes));
    *bytes = pool.used;
    return plan;
}

/* The plan with maps of all arrays but keys and values; queues the copy of these in fp16, where there is
 * one. */
static inline loam_status begin_plan(rows_plan *plan, const loam_problem *p, const loam_args *a,
                                     const row_arrays *rows, void *memory, loam_error *error)
{
    size_t bytes;
    *plan = rows_plan_of(p, memory, &bytes);
    plan->saved = local_saved_carve(p, a->saved, NULL), plan->rows = *rows;
    TRY(query_map_make(&plan->maps.all.q, p, &a->q, p->dim_qk, TILE_SIDE, error));
    TRY(query_map_make(&plan->maps.grad_o, p, &a->grad_o, p->dim_v, TILE_SIDE, error));
    TRY(solve_work_clear(&plan->work, a, error));
    return has_half_copy(p) ? half_copy_make(&plan->copy, p, a, error) : LOAM_OK;
}

/* The plan with maps of the copies in fp16. */
static inline loam_status narrow_plan(const loam_problem *p, const rows_plan *plan, rows_plan *narrow,
                                      loam_error *error)
{
    *narrow = *plan;
    const int dim = local_padded_dim(p);
    TRY(key_map_make(&narrow->maps.all.k, p, &plan->copy.keys, dim, TILE_SIDE, error));
    return key_map_make(&narrow->maps.all.v, p, &plan->copy.values, dim, TILE_SIDE, error);
}

#endif
