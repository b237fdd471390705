/* SPDX-License-Identifier: MIT
 *
 * PaTH scores on GPUs, backward; the names are those of local_path_cuda.cuh. No sum is shared by thread blocks:
 *
 *   rows    a block of rows walks out and keeps what each tile of its group, and each group before, sees of it (X); then back,
 *           with Y the gradient of what was crossed to: Y <- Y - Y E^T + scale dS K. Where it crosses it keeps Y.
 *   keys    a tile of keys meets all X of the rows after it: dKr, dKt, dv, and dE = -X^T Y at each crossing.
 *   groups  dKt goes back through the crossings of the keys, dEg through those of the rows of I; both leave what
 *           crossed and its gradient, as rows do.
 *   tiles   the sums for a tile, and back through its making.
 */
#ifndef LOAM_LOCAL_LOCAL_PATH_BACKWARD_CUDA_CUH
#define LOAM_LOCAL_LOCAL_PATH_BACKWARD_CUDA_CUH

#include "src/local/local_backward_cuda.h"
#include "src/local/local_path_cuda.cuh"

/* Arrays by slots of query heads, and what crossings leave. */
struct path_grads {
    path_arrays w;
    local_saved saved;
    bf16 *x, *y;                     /* [copies][64][64] of each block of rows */
    bf16 *own_ds, *own_p, *inner;    /* scale dS and p of a block with its own tile; gradient of what leaves that */
    float *lse, *delta;              /* [64] of a block; lse to base 2, infinite for rows that are not there */
    float *dkr, *dkt, *de, *deg;     /* by slots of key-value heads, [64][64]; deg: each tile of a group has a part */
    bf16 *key_x, *key_y;             /* [group][64][64] of each tile: keys that cross the tiles after it; last: rows of I that cross it */
    int64_t slots, copies;
    row_arrays rows;
};

static inline path_grads path_grads_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    path_grads g = {};
    g.w = path_arrays_carve(p, pool);
    g.saved = local_saved_carve(p, a ? a->saved : NULL, NULL);
    const int64_t tiles = (p->len_kv + EDGE - 1) / EDGE, groups = (tiles + g.w.group - 1) / g.w.group;
    g.slots = g.w.slots;
    g.copies = (g.w.group < tiles ? g.w.group : tiles) + groups;
    const size_t queries = size_mul((size_t)g.slots, (size_t)p->heads_q), keys = size_mul((size_t)g.slots, (size_t)p->heads_kv);
    const size_t trail = size_mul(size_mul(queries, (size_t)g.copies), TILE_SIZE), own = size_mul(queries, TILE_SIZE);
    g.x = (bf16 *)arena_take(pool, trail, sizeof(bf16));
    g.y = (bf16 *)arena_take(pool, trail, sizeof(bf16));
    g.own_ds = (bf16 *)arena_take(pool, own, sizeof(bf16));
    g.own_p = (bf16 *)arena_take(pool, own, sizeof(bf16));
    g.inner = (bf16 *)arena_take(pool, own, sizeof(bf16));
    g.lse = (float *)arena_take(pool, size_mul(queries, EDGE), sizeof(float));
    g.delta = (float *)arena_take(pool, size_mul(queries, EDGE), sizeof(float));
    float **const sums[] = { &g.dkr, &g.dkt, &g.de, &g.deg };
    for (float **sum : sums) {
        *sum = (float *)arena_take(pool, size_mul(keys, TILE_SIZE), sizeof(float));
    }
    const size_t crossings = groups > 1 ? size_mul(size_mul(keys, (size_t)g.w.group), TILE_SIZE) : 0;
    g.key_x = (bf16 *)arena_take(pool, crossings, sizeof(bf16));
    g.key_y = (bf16 *)arena_take(pool, crossings, sizeof(bf16));
    g.rows.sums = local_row_sums_carve(p, pool);
    g.rows.head_sums = (double *)arena_take(pool, 2 * (size_t)p->heads_q, sizeof(double));
    return g;
}

/* Rows m .. of a strip from floats [64][64]. */
static __device__ __forceinline__ void strip_get_float(strip &x, int m, const float *from)
{
    for_pairs(x, m, [&](int r, int c, float &u, float &v) {
        const float2 pair = *(const float2 *)(from + r * EDGE + c);
        u = pair.x, v = pair.y;
    });
}

/* Which copy of a block of rows at tile n is the one that tile j sees. */
static __device__ __forceinline__ int copy_of(int n, int j, int group)
{
    const int own = n % group;
    return j / group == n / group ? n - 1 - j : own + n / group - 1 - j / group;
}

static __device__ __forceinline__ int64_t query_slot(const path_grads &g, const path_rows &x)
{
    return x.base + (x.h - x.h_kv) * g.slots + x.n;
}

/* Where tile n's keys crossing tile j, or (j = n) the rows of I crossing tile n, are. */
static __device__ __forceinline__ int64_t key_crossing(const path_grads &g, int64_t slot, int64_t n, int64_t j)
{
    return (slot * g.w.group + (j > n ? j - n - 1 : g.w.group - 1)) * TILE_SIZE;
}

typedef loam_status path_grads_fn(const loam_problem *p, const loam_args *a, const path_grads *g, loam_error *error);
path_grads_fn local_path_rows_cuda, local_path_keys_cuda, local_path_groups_cuda, local_path_tiles_cuda;

#endif
