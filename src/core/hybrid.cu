/* SPDX-License-Identifier: MIT
 * The hybrid on GPUs: a thread has an element, a warp a row, a thread block a key, whose rows its warps
 * share. */
#include "src/core/hybrid_rows.h"
#include "src/gpu/launch.cuh"

enum { THREADS = 128, WARPS = THREADS / HYBRID_LANES };

static loam_status check_blocks(int64_t blocks, loam_error *error)
{
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads x len_q: too large for one launch");
    return LOAM_OK;
}

__global__ void __launch_bounds__(THREADS)
    hybrid_elements_kernel(const __grid_constant__ hybrid_call x, hybrid_task task, hybrid_grid g)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = i / g.columns,
                  b = row / g.rows / g.heads;
    if (b < g.batch) hybrid_element(&x, task, b, row / g.rows % g.heads, row % g.rows, i % g.columns);
}

loam_status hybrid_elements_cuda(const hybrid_call *x, hybrid_task task, hybrid_grid g, loam_error *error)
{
    const int64_t blocks = (g.batch * g.heads * g.rows * g.columns + THREADS - 1) / THREADS;
    TRY(check_blocks(blocks, error));
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("hybrid_elements_kernel", hybrid_elements_kernel, blocks, THREADS, 0,
                                     x->a.stream, false, error, *x, task, g);
}

/* ------------------------------------------------------------------ rows */

typedef enum row_task { ROWS_FORWARD, ROWS_PREPARE, ROWS_BACKWARD } row_task;

template <row_task TASK>
__global__ void __launch_bounds__(THREADS) hybrid_rows_kernel(const __grid_constant__ hybrid_call x)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / HYBRID_LANES, t = row % x.p.len_q,
                  h = row / x.p.len_q % x.p.heads_q, b = row / x.p.len_q / x.p.heads_q;
    if (b >= x.p.batch) return;
    if constexpr (TASK == ROWS_FORWARD) hybrid_row_forward(&x, b, h, t);
    if constexpr (TASK == ROWS_PREPARE) hybrid_row_prepare(&x, b, h, t);
    if constexpr (TASK == ROWS_BACKWARD) hybrid_row_backward(&x, b, h, t);
}

template <row_task TASK> static loam_status run_rows(const hybrid_call *x, loam_error *error)
{
    const int64_t blocks = (x->p.batch * x->p.heads_q * x->p.len_q + WARPS - 1) / WARPS;
    TRY(check_blocks(blocks, error));
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("hybrid_rows_kernel", hybrid_rows_kernel<TASK>, blocks, THREADS, 0,
                                     x->a.stream, false, error, *x);
}

loam_status hybrid_rows_cuda(const hybrid_call *x, loam_error *error)
{
    return run_rows<ROWS_FORWARD>(x, error);
}
loam_status hybrid_prepare_cuda(const hybrid_call *x, loam_error *error)
{
    return run_rows<ROWS_PREPARE>(x, error);
}

/* ------------------------------------------------------------------ keys and the gain */

/* x += those of the other warps of the block, in their order; in warp 0. */
static __device__ void add_warps(hybrid_vector *x, int64_t n)
{
    __shared__ double parts[WARPS - 1][LOAM_MAX_DIM];
    const int warp = (int)threadIdx.x / HYBRID_LANES;
    __syncthreads();
    if (warp > 0) HYBRID_EACH(e, n) parts[warp - 1][hybrid_channel(e)] = x->x[e];
    __syncthreads();
    for (int other = 0; warp == 0 && other < WARPS - 1; other++)
        HYBRID_EACH(e, n) x->x[e] += parts[other][hybrid_channel(e)];
}

__global__ void __launch_bounds__(THREADS) hybrid_keys_kernel(const __grid_constant__ hybrid_call x)
{
    const int64_t heads = x.p.batch * x.p.heads_kv, b = blockIdx.x % heads / x.p.heads_kv,
                  g = blockIdx.x % heads % x.p.heads_kv, j = blockIdx.x / heads;
    hybrid_vector grad_k, grad_v;
    hybrid_key_backward(&x, b, g, j, threadIdx.x / HYBRID_LANES, WARPS, &grad_k, &grad_v);
    add_warps(&grad_k, x.p.dim_qk);
    add_warps(&grad_v, x.p.dim_v);
    if (threadIdx.x < HYBRID_LANES) hybrid_key_store(&x, b, g, j, &grad_k, &grad_v);
}

__global__ void __launch_bounds__(THREADS) hybrid_gain_kernel(const __grid_constant__ hybrid_call x)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < x.p.batch * x.p.len_q; i += THREADS)
        sum -= x.slope[hybrid_row(&x, i / x.p.len_q, blockIdx.x, i % x.p.len_q)];
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) element_store(x.h.grad_gain, x.real, blockIdx.x, sum);
}

loam_status hybrid_backward_cuda(const hybrid_call *x, loam_error *error)
{
    const int64_t keys = x->p.batch * x->p.heads_kv * x->p.len_q;
    TRY(run_rows<ROWS_BACKWARD>(x, error));
    TRY(check_blocks(keys, error));
    if (keys > 0 && (x->a.grad_k.data || x->a.grad_v.data)) {
        TRY(cuda_launch("hybrid_keys_kernel", hybrid_keys_kernel, keys, THREADS, 0, x->a.stream, false, error,
                        *x));
    }
    return !x->h.grad_gain ? LOAM_OK
                           : cuda_launch("hybrid_gain_kernel", hybrid_gain_kernel, x->p.heads_q, THREADS, 0,
                                         x->a.stream, false, error, *x);
}
