/* SPDX-License-Identifier: MIT
 *
 * PaTH scores on GPUs, backward; names as in local/cuda/path/common.cuh. Four kernels, in which no thread
 * block adds to what another writes:
 *
 *     rows    A block of rows goes left through its tiles and keeps X, its queries as seen by each tile of
 *             its group and by each group before. Then it goes back right, where Y is the gradient of what
 *             it crossed to: Y <- Y - Y E^T + scale dS K. It keeps Y at each crossing.
 *     keys    A tile of keys reads the X and Y of all rows after it: dKr, dKt, dv, and dE = -X^T Y.
 *     groups  dKt goes back through the crossings of the keys, dEg through those of the rows of I. Both
 *             keep what crossed and its gradient, as rows do.
 *     tiles   Adds the sums of a tile, and goes back through the computation of its arrays: dq, dk, dw,
 *             dbeta.
 */
#ifndef LOAM_LOCAL_CUDA_PATH_BACKWARD_CUH
#define LOAM_LOCAL_CUDA_PATH_BACKWARD_CUH

#include "src/local/cuda/backward.h"
#include "src/local/cuda/path/common.cuh"

/* Arrays by slots of query heads unless said otherwise, and what crossed, with its gradients. */
struct path_grads {
    path_arrays w;
    local_saved saved;
    bf16 *x, *y;                  /* X and Y of each block of rows, [copies][64][64] */
    bf16 *own_ds, *own_p, *inner; /* a block with its own tile: scale dS, p, gradient of Ql */
    float *lse, *delta; /* [64] of a block; lse to base 2, inf outside the sequence; delta: do . vbar */
    float *dkr, *dkt, *de,
        *deg; /* by slots of key-value heads, [64][64]; deg: a part of dEg at each tile of the group */
    bf16 *key_x, *key_y; /* [group][64][64] of each tile: what crossed, its gradient (key_crossing) */
    int64_t slots, copies;
    float *own_columns; /* [64] of a block: column sums of ds with its own tile, where scores decay */
    row_arrays rows;
};

static inline path_grads path_grads_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    path_grads g = {};
    g.w = path_arrays_carve(p, pool);
    g.saved = local_saved_carve(p, a ? a->saved : NULL, NULL);
    const int64_t tiles = (p->len_kv + EDGE - 1) / EDGE, groups = (tiles + g.w.group - 1) / g.w.group;
    g.slots = g.w.slots;
    g.copies = tiles > 0 ? (g.w.group < tiles ? g.w.group : tiles) + groups - 1 : 1;
    const size_t queries = size_mul((size_t)g.slots, (size_t)p->heads_q),
                 keys = size_mul((size_t)g.slots, (size_t)p->heads_kv);
    const size_t seen_queries = size_mul(size_mul(queries, (size_t)g.copies), TILE_SIZE),
                 own = size_mul(queries, TILE_SIZE);
    g.x = (bf16 *)arena_take(pool, seen_queries, sizeof(bf16));
    g.y = (bf16 *)arena_take(pool, seen_queries, sizeof(bf16));
    g.own_ds = (bf16 *)arena_take(pool, own, sizeof(bf16));
    g.own_p = (bf16 *)arena_take(pool, own, sizeof(bf16));
    g.inner = (bf16 *)arena_take(pool, own, sizeof(bf16));
    g.lse = (float *)arena_take(pool, size_mul(queries, EDGE), sizeof(float));
    g.delta = (float *)arena_take(pool, size_mul(queries, EDGE), sizeof(float));
    g.own_columns = (float *)arena_take(pool, p->decay ? size_mul(queries, EDGE) : 0, sizeof(float));
    float **const sums[] = { &g.dkr, &g.dkt, &g.de, &g.deg };
    for (float **sum : sums)
        *sum = (float *)arena_take(pool, size_mul(keys, TILE_SIZE), sizeof(float));
    const size_t crossings = groups > 1 ? size_mul(size_mul(keys, (size_t)g.w.group), TILE_SIZE) : 0;
    g.key_x = (bf16 *)arena_take(pool, crossings, sizeof(bf16));
    g.key_y = (bf16 *)arena_take(pool, crossings, sizeof(bf16));
    g.rows.sums = local_row_sums_carve(p, pool);
    g.rows.head_sums = (double *)arena_take(pool, 2 * (size_t)p->heads_q, sizeof(double));
    return g;
}

/* Loads rows m .. of a strip from [64][64] floats. */
static __device__ __forceinline__ void strip_load_float(strip &x, int m, const float *from)
{
    for_pairs(
        x, m,
        [&](int r, int c, float &u, float &v) {
            const float2 pair = *(const float2 *)(from + r * EDGE + c);
            u = pair.x, v = pair.y;
        });
}

/* out[column] <- the sum over the warp's rows. */
static __device__ __forceinline__ void column_sums(const strip &x, float *out)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float sum = x[n][e] + x[n][e + 2];
            sum += __shfl_xor_sync(0xffffffffu, sum, 4);
            sum += __shfl_xor_sync(0xffffffffu, sum, 8);
            sum += __shfl_xor_sync(0xffffffffu, sum, 16);
            if (threadIdx.x % 32 < 4) out[8 * n + threadIdx.x % 4 * 2 + e] = sum;
        }
    }
}

/* Which copy of its queries a block of rows at tile n shows to tile j. */
static __device__ __forceinline__ int copy_of(int n, int j, int group)
{
    const int own = n % group;
    return j / group == n / group ? n - 1 - j : own + n / group - 1 - j / group;
}

static __device__ __forceinline__ int64_t query_slot(const path_grads &g, const path_rows &x)
{
    return x.base + (x.h - x.h_kv) * g.slots + x.n;
}

/* The offset in key_x and key_y of the keys of tile n as they cross tile j or, for j = n, of the rows of I as
 * they cross tile n. */
static __device__ __forceinline__ int64_t key_crossing(const path_grads &g, int64_t slot, int64_t n,
                                                       int64_t j)
{
    return (slot * g.w.group + (j > n ? j - n - 1 : g.w.group - 1)) * TILE_SIZE;
}

typedef loam_status path_grads_fn(const loam_problem *p, const loam_args *a, const path_grads *g,
                                  loam_error *error);
path_grads_fn local_path_rows_cuda, local_path_keys_cuda, local_path_groups_cuda, local_path_tiles_cuda;

#endif
