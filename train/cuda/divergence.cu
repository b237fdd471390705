/* SPDX-License-Identifier: MIT
 * How far one distribution of words is from another. */
#include "train/cuda/each.cuh"
#include "train/divergence.h"

enum { DIVERGENCE_THREADS = 256 };

template <class COMBINE> static __device__ double block_combined(double mine, COMBINE combine)
{
    __shared__ double all[DIVERGENCE_THREADS];
    __syncthreads();
    all[threadIdx.x] = mine;
    for (int step = DIVERGENCE_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) all[threadIdx.x] = combine(all[threadIdx.x], all[threadIdx.x + step]);
    }
    __syncthreads();
    return all[0];
}

static __device__ double block_total(double x)
{
    return block_combined(
        x, [](double a, double b) { return a + b; });
}

/* The logarithm of the sum of e^x over row i. */
static __device__ double log_sum(const view &v, int m, int i, int width)
{
    float most = -INFINITY, x;
    for (int c = (int)threadIdx.x; c < width; c += DIVERGENCE_THREADS) {
        load<1>(&x, v, m, i, c);
        most = fmaxf(most, x);
    }
    most = (float)block_combined(most, [](double a, double b) { return fmax(a, b); });
    double sum = 0;
    for (int c = (int)threadIdx.x; c < width; c += DIVERGENCE_THREADS) {
        load<1>(&x, v, m, i, c);
        sum += (double)expf(x - most);
    }
    return log(block_total(sum)) + (double)most;
}

static __global__ void __launch_bounds__(DIVERGENCE_THREADS)
    divergence_kernel(view out, view p, view q, int width)
{
    const int i = (int)blockIdx.x, m = (int)blockIdx.y;
    const double all_p = log_sum(p, m, i, width), all_q = log_sum(q, m, i, width);
    double sum = 0;
    for (int c = (int)threadIdx.x; c < width; c += DIVERGENCE_THREADS) {
        float x, y;
        load<1>(&x, p, m, i, c);
        load<1>(&y, q, m, i, c);
        sum += divergence_term((double)x - all_p, (double)y - all_q);
    }
    const float total = (float)block_total(sum);
    if (threadIdx.x == 0) store<1>(out, m, i, 0, &total);
}

extern "C" void cuda_divergence(const machine *on, matrix out, matrix p, matrix q)
{
    const dim3 grid((unsigned)p.rows, (unsigned)p.models);
    assert(p.width == q.width && p.width < INT32_MAX - DIVERGENCE_THREADS && p.models < 65536);
    divergence_kernel<<<grid, DIVERGENCE_THREADS, 0, on->gpu->stream>>>(view_of(out), view_of(p), view_of(q),
                                                                        (int)p.width);
    gpu_launched(on, "divergence");
}
