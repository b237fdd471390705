/* SPDX-License-Identifier: MIT
 * Gradients that are sums over rows, on GPUs, from the part of each row in row_arrays, float64. A thread
 * block adds the rows of a head in a fixed order, then one thread adds the heads. Gradients of a ridge for
 * each token are not sums: the pass over rows writes them. */
#include "src/gpu/block_sum.cuh"
#include "src/gpu/launch.cuh"
#include "src/local/cuda/backward.h"
#include "src/local/decay.h"

enum { SUM_THREADS = 256 };

/* The index (local_row) of row n of head h; a head has local_tokens rows. */
static __device__ __forceinline__ int64_t row_of_head(const loam_problem &p, int64_t h, int64_t n)
{
    return sequence_packed(&p) ? h * p.total_q + n : (n / p.len_q * p.heads_q + h) * p.len_q + n % p.len_q;
}

/* The sum of part over the rows of head h, in every thread of the block. */
static __device__ double head_sum(const loam_problem &p, const double *part, int64_t h)
{
    double sum = 0;
    for (int64_t n = threadIdx.x; n < local_tokens(&p); n += SUM_THREADS)
        sum += part[row_of_head(p, h, n)];
    return block_sum<SUM_THREADS>(sum);
}

/* One thread block for each head. */
__global__ void __launch_bounds__(SUM_THREADS)
    head_sums_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const row_arrays rows)
{
    const int64_t h = blockIdx.x;
    const bool first = threadIdx.x == 0;
    const double scale = a.grad_scale ? head_sum(p, rows.sums.scale, h) : 0;
    const bool by_ridge = p.mechanism == LOAM_LLA && a.grad_ridge.data && p.ridge_axes <= LOAM_RIDGE_HEAD;
    const double ridge = by_ridge ? head_sum(p, rows.sums.ridge, h) : 0;
    if (first) {
        rows.head_sums[h] = scale;
        rows.head_sums[p.heads_q + h] = ridge;
        if (by_ridge && p.ridge_axes == LOAM_RIDGE_HEAD)
            ((float *)a.grad_ridge.data)[h * a.grad_ridge.head] = (float)ridge;
    }
    if (p.slope && a.grad_slope) {
        const double slope = head_sum(p, rows.sums.slope, h);
        if (first) ((float *)a.grad_slope)[h] = (float)slope;
    }
    if (p.sink && a.grad_sink) {
        const double sink = head_sum(p, rows.sums.sink, h);
        if (first) ((float *)a.grad_sink)[h] = (float)sink;
    }
}

__global__ void total_sums_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                                  const row_arrays rows)
{
    double scale = 0, ridge = 0;
    for (int64_t h = 0; h < p.heads_q; h++) {
        scale += rows.head_sums[h];
        ridge += rows.head_sums[p.heads_q + h];
    }
    if (a.grad_scale) *(float *)a.grad_scale = (float)scale;
    if (p.mechanism == LOAM_LLA && a.grad_ridge.data && p.ridge_axes == LOAM_RIDGE_NUMBER)
        *(float *)a.grad_ridge.data = (float)ridge;
}

loam_status local_row_sums_cuda(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                loam_error *error)
{
    const cudaStream_t stream = (cudaStream_t)a->stream;
    TRY(local_decay_gradient_cuda(p, a, rows->sums.inner, error));
    head_sums_kernel<<<(unsigned)p->heads_q, SUM_THREADS, 0, stream>>>(*p, *a, *rows);
    TRY(cuda_launched("head_sums_kernel", error));
    total_sums_kernel<<<1, 1, 0, stream>>>(*p, *a, *rows);
    return cuda_launched("total_sums_kernel", error);
}
