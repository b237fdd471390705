/* SPDX-License-Identifier: MIT
 * The arithmetic of the optimisers; numbers of a model are [1][1]. */
#include "train/cuda/sum.cuh"

static const float eps = 1e-8f; /* of AdamW */
static const double beta_m = 0.9, beta_v = 0.999, beta_muon = 0.95;

enum { SQUARES_THREADS = 256, SQUARES_EACH = 16 }; /* elements of a thread */

static __device__ float block_total(float x)
{
    __shared__ float sums[SQUARES_THREADS];
    sums[threadIdx.x] = x;
    for (int step = SQUARES_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    return sums[0]; /* of thread 0 */
}

static __global__ void __launch_bounds__(SQUARES_THREADS)
    squares_kernel(float *partial, view x, unsigned width, unsigned all)
{
    const unsigned first = blockIdx.x * SQUARES_THREADS * SQUARES_EACH + threadIdx.x, m = blockIdx.y;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < SQUARES_EACH; k++) {
        const unsigned n = first + k * SQUARES_THREADS;
        float value = 0;
        if (n < all) load<1>(&value, x, m, n / width, (int)(n % width));
        sum += value * value;
    }
    sum = block_total(sum);
    if (threadIdx.x == 0) partial[m * gridDim.x + blockIdx.x] = sum;
}

extern "C" void cuda_add_squares(const machine *on, matrix sums, matrix x, bool begin)
{
    const int64_t all = x.rows * x.width,
                  blocks = (all + SQUARES_THREADS * SQUARES_EACH - 1) / (SQUARES_THREADS * SQUARES_EACH);
    float *partial = (float *)gpu_scratch(on->gpu, (size_t)(x.models * blocks) * sizeof *partial);
    if (!partial) return;
    assert(all < INT32_MAX);
    const dim3 grid((unsigned)blocks, (unsigned)x.models);
    squares_kernel<<<grid, SQUARES_THREADS, 0, on->gpu->stream>>>(partial, view_of(x), (unsigned)x.width,
                                                                  (unsigned)all);
    gpu_launched(on, "add_squares");
    sum_finish(on, sums, partial, blocks, 1, !begin);
}

extern "C" void cuda_clip(const machine *on, matrix factor, matrix squares, double limit)
{
    const float most = (float)limit;
    each(on, "clip", factor, { view_of(factor) }, { view_of(squares) },
         [=] __device__(float *y, const float *x) { y[0] = fminf(1, most / (sqrtf(x[0]) + 1e-6f)); });
}

extern "C" void cuda_rate(const machine *on, matrix rate, matrix peak, const int64_t *step, int64_t warm,
                          int64_t steps)
{
    const double pi = 3.14159265358979323846, end = (double)steps, begin = (double)warm;
    each(on, "rate", rate, { view_of(rate) }, { view_of(peak) }, [=] __device__(float *y, const float *x) {
        const double t = (double)*step;
        const double part = t < begin ? (t + 1) / begin
                                      : 0.5 * (1 + cos(pi * (t - begin) / fmax(1.0, end - begin)));
        y[0] = (float)((double)x[0] * part);
    });
}

static __global__ void advance_kernel(int64_t *step) { ++*step; }

extern "C" void cuda_advance(const machine *on, int64_t *step)
{
    advance_kernel<<<1, 1, 0, on->gpu->stream>>>(step);
    gpu_launched(on, "advance");
}

extern "C" void cuda_adamw(const machine *on, matrix p, matrix m, matrix v, matrix g, matrix factor,
                           matrix rate, const int64_t *step, double decay)
{
    const float keep_m = (float)beta_m, take_m = (float)(1 - beta_m), keep_v = (float)beta_v,
                take_v = (float)(1 - beta_v), shrink = (float)decay;
    const double log_m = log(beta_m), log_v = log(beta_v);
    each(on, "adamw", p, { view_of(p), view_of(m), view_of(v) },
         { view_of(p), view_of(m), view_of(v), view_of(g), view_shared(factor, p.width),
           view_shared(rate, p.width) },
         [=] __device__(float *y, const float *x) {
             const double taken = (double)*step + 1;
             const float whole_m = (float)-expm1(taken * log_m), whole_v = (float)-expm1(taken * log_v);
             const float d = x[3] * x[4];
             y[1] = keep_m * x[1] + take_m * d;
             y[2] = keep_v * x[2] + take_v * d * d;
             y[0] = x[0] - x[5] * (shrink * x[0] + y[1] / whole_m / (sqrtf(y[2] / whole_v) + eps));
         });
}

extern "C" void cuda_momentum(const machine *on, matrix u, matrix m, matrix g, matrix factor)
{
    const float keep = (float)beta_muon, take = (float)(1 - beta_muon);
    each(on, "momentum", u, { view_of(u), view_of(m) },
         { view_of(m), view_of(g), view_shared(factor, u.width) }, [=] __device__(float *y, const float *x) {
             y[1] = keep * x[0] + take * x[2] * x[1];
             y[0] = keep * y[1] + take * x[2] * x[1];
         });
}

extern "C" void cuda_normalise(const machine *on, matrix x, matrix squares)
{
    each(
        on, "normalise", x, { view_of(x) }, { view_of(x), view_shared(squares, x.width) },
        [] __device__(float *y, const float *from) { y[0] = from[0] / (sqrtf(from[1]) + 1e-7f); });
}

extern "C" void cuda_descend(const machine *on, matrix p, matrix x, matrix rate, double scale, double decay)
{
    const float by = (float)scale, shrink = (float)decay;
    each(on, "descend", p, { view_of(p) }, { view_of(p), view_of(x), view_shared(rate, p.width) },
         [=] __device__(float *y, const float *from) {
             y[0] = from[0] - from[2] * (shrink * from[0] + by * from[1]);
         });
}
