/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs, backward: the pass over blocks of rows. */
#include "src/local/cuda/path/backward.cuh"

enum { STAGES = 2, STAGE_TILES = 4, KEYS = 0, VALUES = 1, CROSS_HI = 2, CROSS_LO = 3 };

struct rows_shared {
    shared_tile tile[STAGES][STAGE_TILES];
    shared_tile grad_o;
    float columns[WARPS][EDGE];
};

/* Loads lse to base 2 and computes delta = do . vbar of the thread's two rows; stores both for the
 * pass over keys. */
static __device__ __forceinline__ void load_rows(const loam_problem &p, const path_grads &w,
                                                 const path_rows &x, const bf16 *grad_o, int m,
                                                 float (&lse)[2], float (&delta)[2])
{
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = m + g + 8 * half;
        const bool exists = row_exists(x, r);
        const int64_t at = exists ? local_row(&p, &x.s, x.h, x.first + r) : 0;
        const float *vbar = (const float *)w.saved.vbar + at * EDGE;
        float sum = 0;
        for (int c = lane % 4; exists && c < EDGE; c += 4)
            sum += vbar[c] * __bfloat162float(grad_o[r * PITCH + c]);
        delta[half] = quad_sum(sum);
        lse[half] = exists ? ((const float *)w.saved.lse)[at] * (float)LOG2E : INFINITY;
        if (lane % 4 == 0) {
            w.lse[query_slot(w, x) * EDGE + r] = lse[half];
            w.delta[query_slot(w, x) * EDGE + r] = delta[half];
        }
    }
}

/* Scores s become p, and g = do . v becomes scale dS; inner gains the row sums of dS. */
static __device__ __forceinline__ void row_gradient(strip &s, strip &g, const float (&lse)[2],
                                                    const float (&delta)[2], float scale, float (&inner)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2_fast(fminf(s[n][e] - lse[e / 2], 0));
            g[n][e] = s[n][e] * (g[n][e] - delta[e / 2]);
            inner[e / 2] += g[n][e];
            g[n][e] *= scale;
        }
    }
}

/* Loads what copy `copy` of the rows crosses to become the next one: E of a tile, or Eg of a group. */
static __device__ __forceinline__ void fill_copy_crossing(bf16 *hi, bf16 *lo, const path_rows &x,
                                                          const path_arrays &w, int copy)
{
    const int own = x.n % w.group;
    fill_crossing(hi, lo, x, w, copy < own ? x.n - 1 - copy : (x.n / w.group - 1 - (copy - own)) * w.group);
}

static __device__ __forceinline__ void fill_stage(shared_tile *stage, const loam_args &a, const path_rows &x,
                                                  const path_arrays &w, int j)
{
    if (j < x.n) {
        fill_slot(stage[KEYS], keys_for(x, w, j));
        fill_argument(stage[VALUES], a.v, x.s.b, x.h_kv, x.s.k0, (int64_t)j * EDGE, x.s.nk);
        if (j > 0 && copy_of(x.n, j, w.group) != copy_of(x.n, j - 1, w.group))
            fill_copy_crossing(stage[CROSS_HI], stage[CROSS_LO], x, w, copy_of(x.n, j, w.group));
    }
    copy_async_commit();
}

/* Rows that see no key: their gradients are 0. */
template <bool DECAY>
static __device__ __forceinline__ void put_empty_rows(const loam_problem &p, const loam_args &a,
                                                      const path_grads &w, const path_rows &x)
{
    for (int e = threadIdx.x; e < EDGE * EDGE; e += THREADS) {
        const int64_t i = x.first + e / EDGE;
        if (i >= 0 && i < x.s.nq && a.grad_q.data) {
            ((bf16 *)a.grad_q.data)[LOCAL_AT(a.grad_q, x.s.b, x.h, x.s.q0 + i) + e % EDGE] =
                __float2bfloat16_rn(0);
        }
        if (i >= 0 && i < x.s.nq && e % EDGE == 0) {
            const int64_t at = local_row(&p, &x.s, x.h, i);
            w.rows.sums.scale[at] = 0;
            if (DECAY) w.rows.sums.inner[at] = 0;
        }
    }
}

/* The block of rows: its slot among query heads, and what the thread knows of its two rows. */
struct row_gradients {
    int64_t slot;
    float scale, scale2; /* scale2: in the log2 domain */
    float lse[2], delta[2], inner[2];
};

/* Scores and gradients with the keys of the rows' own tile, which are stored for the kernels that follow.
 * query becomes the queries as the tiles before see them. */
template <bool DECAY>
static __device__ __forceinline__ void own_tile_gradient(strip &query, row_gradients &r, rows_shared &shared,
                                                         const loam_problem &p, const loam_args &a,
                                                         const path_grads &w, const path_rows &x, int m)
{
    shared_tile *own = &shared.tile[0][0];
    strip s, g;
    fill_own(own, a, x, w.w);
    fill_argument(own[7], a.v, x.s.b, x.h_kv, x.s.k0, (int64_t)x.n * EDGE, x.s.nk);
    fill_argument(shared.grad_o, a.grad_o, x.s.b, x.h, x.s.q0, x.first, x.s.nq);
    await_tiles();
    load_rows(p, w, x, shared.grad_o, m, r.lse, r.delta);
    score_own_tile(s, query, g, own, m);
    scores_of<DECAY>(s, x, a, r.scale2, x.n, m);
    clear(g);
    product_rows<1, EDGE>(g, shared.grad_o, 0, m, own[7]);
    row_gradient(s, g, r.lse, r.delta, r.scale, r.inner);
    strip_store(s, m, w.own_p + r.slot * TILE_SIZE, NULL, EDGE);
    strip_store(g, m, w.own_ds + r.slot * TILE_SIZE, NULL, EDGE);
    if (DECAY) column_sums(g, shared.columns[m / 16]);
    __syncthreads();
    if (DECAY && threadIdx.x < EDGE) {
        float sum = 0;
        for (int warp = 0; warp < WARPS; warp++)
            sum += shared.columns[warp][threadIdx.x];
        w.own_columns[r.slot * EDGE + threadIdx.x] = sum / r.scale;
    }
}

/* To the left: y holds the queries as the tiles see them, and is stored before each crossing. */
static __device__ __forceinline__ void store_queries(strip &y, rows_shared &shared, const path_grads &w,
                                                     const path_rows &x, bf16 *queries, int copies, int m)
{
    for (int copy = 0; copy < copies; copy++) {
        strip_store(y, m, queries + copy * TILE_SIZE, NULL, EDGE);
        if (copy + 1 < copies) {
            fill_copy_crossing(shared.tile[copy % 2][CROSS_HI], shared.tile[copy % 2][CROSS_LO], x, w.w,
                               copy);
            await_tiles();
            cross_tile(y, shared.tile[copy % 2][CROSS_HI], shared.tile[copy % 2][CROSS_LO]);
        }
    }
    __syncthreads();
}

/* To the right: y holds the gradient of the queries as tile j sees them, and is stored at each crossing. */
template <bool DECAY>
static __device__ __forceinline__ void store_gradients(strip &y, row_gradients &r, rows_shared &shared,
                                                       const loam_args &a, const path_grads &w,
                                                       const path_rows &x, const bf16 *queries, bf16 *grads,
                                                       int m)
{
    clear(y);
    fill_stage(shared.tile[0], a, x, w.w, 0);
    for (int j = 0; j < x.n; j++) {
        shared_tile *tile = shared.tile[j % STAGES];
        const int copy = copy_of(x.n, j, w.w.group);
        strip s, g, query;
        fill_stage(shared.tile[(j + 1) % STAGES], a, x, w.w, j + 1);
        copy_async_wait<1>();
        __syncthreads();
        if (j > 0 && copy != copy_of(x.n, j - 1, w.w.group)) {
            strip_store(y, m, grads + copy * TILE_SIZE, NULL, EDGE);
            cross_tile_transposed(y, tile[CROSS_HI], tile[CROSS_LO]);
        }
        strip_load(query, m, queries + copy * TILE_SIZE, EDGE);
        clear(s);
        product_transposed_right<1>(s, query, tile[KEYS]);
        scores_of<DECAY>(s, x, a, r.scale2, j, m);
        clear(g);
        product_rows<1, EDGE>(g, shared.grad_o, 0, m, tile[VALUES]);
        row_gradient(s, g, r.lse, r.delta, r.scale, r.inner);
        product_weights<1, PITCH>(y, g, tile[KEYS], 0);
        __syncthreads();
    }
}

template <bool DECAY>
static __global__ void __launch_bounds__(THREADS, 2)
    path_rows_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const path_grads w)
{
    extern __shared__ __align__(16) unsigned char memory[];
    rows_shared &shared = *(rows_shared *)memory;
    const int m = threadIdx.x / 32 * 16;
    const float scale = (float)p.scale, scale2 = scale * (float)LOG2E;
    path_rows x;
    if (!path_rows_of(p, a, w.slots, blockIdx.x, x)) return;
    if (x.n < 0) {
        put_empty_rows<DECAY>(p, a, w, x);
        return;
    }
    row_gradients r = { query_slot(w, x), scale, scale2, {}, {}, { 0, 0 } };
    bf16 *const queries = w.x + r.slot * w.copies * TILE_SIZE, *const grads = w.y +
                                                                              r.slot * w.copies * TILE_SIZE;
    const int copies = x.n % w.w.group + x.n / w.w.group;
    strip y;
    own_tile_gradient<DECAY>(y, r, shared, p, a, w, x, m);
    store_queries(y, shared, w, x, queries, copies, m);
    store_gradients<DECAY>(y, r, shared, a, w, x, queries, grads, m);
    strip_store(y, m, w.inner + r.slot * TILE_SIZE, NULL, EDGE);
#pragma unroll
    for (int half = 0; DECAY && half < 2; half++) {
        const int row = m + threadIdx.x % 32 / 4 + 8 * half;
        const float sum = quad_sum(r.inner[half]);
        if (threadIdx.x % 4 == 0 && row_exists(x, row))
            w.rows.sums.inner[local_row(&p, &x.s, x.h, x.first + row)] = (double)sum;
    }
}

template <bool DECAY>
static loam_status launch(const loam_problem *p, const loam_args *a, const path_grads *g, loam_error *error)
{
    const int64_t blocks = path_row_blocks(p) * p->batch * p->heads_q;
    constexpr size_t shared = sizeof(rows_shared);
    TRY(cuda_allow_shared((const void *)path_rows_kernel<DECAY>, shared, error));
    path_rows_kernel<DECAY><<<(unsigned)blocks, THREADS, shared, (cudaStream_t)a->stream>>>(*p, *a, *g);
    return cuda_launched("path_rows_kernel", error);
}

loam_status local_path_rows_cuda(const loam_problem *p, const loam_args *a, const path_grads *g,
                                 loam_error *error)
{
    return p->decay ? launch<true>(p, a, g, error) : launch<false>(p, a, g, error);
}
