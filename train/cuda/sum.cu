/* SPDX-License-Identifier: MIT
 * Sums over rows, and what is added element by element. */
#include "train/cuda/sum.cuh"

enum { FINISH_THREADS = 128, MERGE_THREADS = 64 };

static __global__ void __launch_bounds__(FINISH_THREADS)
    finish_kernel(view out, const float *partial, int chunks, int part, bool add)
{
    __shared__ float sums[FINISH_THREADS];
    const int h = (int)blockIdx.x, m = (int)blockIdx.y, width = (int)gridDim.x * part;
    const float *from = partial + (int64_t)m * chunks * width + h * part;
    float sum = 0;
    for (int n = (int)threadIdx.x; n < chunks * part; n += FINISH_THREADS)
        sum += from[(int64_t)(n / part) * width + n % part];
    sums[threadIdx.x] = sum;
    for (int step = FINISH_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    if (threadIdx.x > 0) return;
    float before = 0;
    if (add) load<1>(&before, out, m, 0, h);
    sum = before + sums[0];
    store<1>(out, m, 0, h, &sum);
}

void sum_finish(const machine *on, matrix out, const float *partial, int64_t chunks, int64_t part, bool add)
{
    const dim3 grid((unsigned)out.width, (unsigned)out.models);
    assert(chunks * part < INT32_MAX);
    finish_kernel<<<grid, FINISH_THREADS, 0, on->gpu->stream>>>(view_of(out), partial, (int)chunks, (int)part,
                                                                add);
    gpu_launched(on, "sum_finish");
}

static __global__ void __launch_bounds__(EACH_THREADS)
    fold_kernel(view out, const float *partial, int chunks, unsigned width, unsigned all, bool add)
{
    const unsigned n = blockIdx.x * EACH_THREADS + threadIdx.x, m = blockIdx.y;
    if (n >= all) return;
    const float *from = partial + (int64_t)m * chunks * all + n;
    float sum = 0;
    if (add) load<1>(&sum, out, m, n / width, (int)(n % width));
#pragma unroll 8
    for (int k = 0; k < chunks; k++)
        sum += from[(int64_t)k * all];
    store<1>(out, m, n / width, (int)(n % width), &sum);
}

void sum_fold(const machine *on, matrix out, const float *partial, int64_t chunks, bool add)
{
    const int64_t all = out.rows * out.width;
    const dim3 grid((unsigned)((all + EACH_THREADS - 1) / EACH_THREADS), (unsigned)out.models);
    assert(all < INT32_MAX - EACH_THREADS);
    fold_kernel<<<grid, EACH_THREADS, 0, on->gpu->stream>>>(view_of(out), partial, (int)chunks,
                                                            (unsigned)out.width, (unsigned)all, add);
    gpu_launched(on, "sum_fold");
}

/* A thread for each column. */
static __global__ void __launch_bounds__(MERGE_THREADS)
    merge_kernel(view out, view parts, view lse, int rows, int width)
{
    const int c = (int)(blockIdx.x * MERGE_THREADS + threadIdx.x), m = (int)blockIdx.y;
    float most = -INFINITY, sum = 0, all = 0;
    if (c >= width) return;
#pragma unroll 8
    for (int i = 0; i < rows; i++) {
        float x;
        load<1>(&x, lse, m, i, c);
        most = fmaxf(most, x);
    }
#pragma unroll 8
    for (int i = 0; i < rows; i++) {
        float x, of;
        load<1>(&x, lse, m, i, c);
        load<1>(&of, parts, m, i, c);
        const float weight = expf(x - most);
        sum = fmaf(weight, of, sum), all += weight;
    }
    sum /= all;
    store<1>(out, m, 0, c, &sum);
}

extern "C" void cuda_merge_parts(const machine *on, matrix out, matrix parts, matrix lse)
{
    const dim3 grid((unsigned)((out.width + MERGE_THREADS - 1) / MERGE_THREADS), (unsigned)out.models);
    merge_kernel<<<grid, MERGE_THREADS, 0, on->gpu->stream>>>(view_of(out), view_of(parts),
                                                              view_shared(lse, out.width / lse.width),
                                                              (int)parts.rows, (int)out.width);
    gpu_launched(on, "merge_parts");
}

extern "C" void cuda_copy(const machine *on, matrix out, matrix x)
{
    each(
        on, "copy", out, { view_of(out) }, { view_of(x) },
        [] __device__(float *y, const float *from) { y[0] = from[0]; });
}

extern "C" void cuda_combine(const machine *on, matrix out, double alpha, matrix x, double beta, matrix y)
{
    const float by = (float)alpha, and_by = (float)beta;
    each(on, "combine", out, { view_of(out) }, { view_of(x), view_of(y) },
         [=] __device__(float *to, const float *from) { to[0] = by * from[0] + and_by * from[1]; });
}

extern "C" void cuda_column_sums(const machine *on, matrix out, matrix a, matrix b, matrix r)
{
    const bool times = b.data, scaled = r.data;
    if (!times) b = a;
    if (!scaled) r = a;
    sum_rows(on, "column_sums", out, a, { view_of(a), view_of(b), view_shared(r, scaled ? a.width : 1) }, 1,
             false,
             [=] __device__(const float *x) { return x[0] * (times ? x[1] : 1) * (scaled ? x[2] : 1); });
}
