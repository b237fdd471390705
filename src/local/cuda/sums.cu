/* SPDX-License-Identifier: MIT
 * Gradients that are sums over rows, on GPUs, from the part of each row in row_arrays, float64. A thread
 * block adds the rows of a head in a fixed order, then one thread adds the heads. Gradients of a ridge for
 * each token are not sums: the pass over rows writes them. */
#include "src/gpu/block_sum.cuh"
#include "src/gpu/launch.cuh"
#include "src/local/cuda/backward.h"
#include "src/local/decay.h"

enum { SUM_THREADS = 256 };

/* The sum of part over the rows of head h, in every thread of the block. Those of a sequence of the batch, or
 * of all packed ones, follow each other (local_row). */
static __device__ double head_sum(const loam_problem &p, const double *part, int64_t h)
{
    const int64_t runs = sequence_packed(&p) ? 1 : p.batch,
                  length = sequence_packed(&p) ? p.total_q : p.len_q;
    double sum = 0;
    for (int64_t run = 0; run < runs; run++) {
        const double *const rows = part + (run * p.heads_q + h) * length;
#pragma unroll 8
        for (int64_t n = threadIdx.x; n < length; n += SUM_THREADS)
            sum += rows[n];
    }
    return block_sum<SUM_THREADS>(sum);
}

static __host__ __device__ __forceinline__ bool wants_ridge(const loam_problem &p, const loam_args &a)
{
    return p.mechanism == LOAM_LLA && a.grad_ridge.data && p.ridge_axes <= LOAM_RIDGE_HEAD;
}

/* One thread block for each head. */
__global__ void __launch_bounds__(SUM_THREADS)
    head_sums_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                     const row_arrays rows)
{
    const int64_t h = blockIdx.x;
    const bool first = threadIdx.x == 0;
    const double scale = a.grad_scale ? head_sum(p, rows.sums.scale, h) : 0;
    const bool by_ridge = wants_ridge(p, a);
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
    if (!a->grad_scale && !wants_ridge(*p, *a) && !(p->slope && a->grad_slope) && !(p->sink && a->grad_sink))
        return LOAM_OK;
    head_sums_kernel<<<(unsigned)p->heads_q, SUM_THREADS, 0, stream>>>(*p, *a, *rows);
    TRY(cuda_launched("head_sums_kernel", error));
    total_sums_kernel<<<1, 1, 0, stream>>>(*p, *a, *rows);
    return cuda_launched("total_sums_kernel", error);
}
