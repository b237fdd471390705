/* SPDX-License-Identifier: MIT
 * What Hyena needs: sines, and convolutions as long as the sequence, by direct sums. A thread has one channel
 * and LAGS neighbouring results, for which it holds a window of one factor in registers. */
#include "train/cuda/sum.cuh"

enum { LAGS = 16, FILTER_THREADS = 128, FILTER_RUNS = 8 }; /* runs that one block sums over */

extern "C" void cuda_multiply(const machine *on, matrix out, matrix a, matrix b)
{
    each(
        on, "multiply", out, { view_of(out) }, { view_of(a), view_of(b) },
        [] __device__(float *y, const float *x) { y[0] = x[0] * x[1]; });
}

extern "C" void cuda_sine(const machine *on, matrix y, matrix a, matrix bias, matrix rate)
{
    each(
        on, "sine", a, { view_of(y) }, { view_of(a), view_of(bias), view_of(rate) },
        [] __device__(float *to, const float *x) { to[0] = sinf(x[2] * (x[0] + x[1])); });
}

extern "C" void cuda_sine_back(const machine *on, matrix da, matrix dbias, matrix drate, matrix g, matrix a,
                               matrix bias, matrix rate, bool add)
{
    const view in[] = { view_of(g), view_of(a), view_of(bias), view_of(rate) };
    sum_rows(
        on, "sine_back", drate, a, in, 1, add,
        [] __device__(const float *x) { return x[0] * cosf(x[3] * (x[1] + x[2])) * (x[1] + x[2]); });
    each(on, "sine_back", a, { view_of(da) }, in,
         [] __device__(float *to, const float *x) { to[0] = x[0] * cosf(x[3] * (x[1] + x[2])) * x[3]; });
    const matrix none = {};
    cuda_column_sums(on, dbias, da, none, none);
}

/* x[0 .. count - 1] = rows first .. of channel c, 0 outside of 0 .. length - 1; `begin`: row 0 in v. */
template <int COUNT>
static __device__ __forceinline__ void load_rows(float *x, const view &v, int m, int64_t begin, int first,
                                                 int length, int c)
{
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        x[k] = 0;
        if (first + k >= 0 && first + k < length) load<1>(&x[k], v, m, begin + first + k, c);
    }
}

/* y_t = sum over s <= t of h_(t - s) u_s; backward: y_s = sum over t >= s of h_(t - s) u_t. */
template <bool BACK>
static __global__ void __launch_bounds__(FILTER_THREADS)
    conv_kernel(view y, view u, view h, int length, int width)
{
    const int c = (int)(blockIdx.x % ((width + FILTER_THREADS - 1) / FILTER_THREADS)) * FILTER_THREADS +
                  (int)threadIdx.x;
    const int tile = (int)(blockIdx.x / ((width + FILTER_THREADS - 1) / FILTER_THREADS)) * LAGS;
    const int m = (int)blockIdx.z;
    const int64_t begin = (int64_t)blockIdx.y * length;
    if (c >= width) return;
    float sum[LAGS] = {};
    for (int from = BACK ? tile : 0; BACK ? from < length : from <= tile; from += LAGS) {
        /* window[k]: the lag of result j and factor i is k = LAGS - 1 + j - i, or, backward, + i - j. */
        float x[LAGS], window[2 * LAGS - 1];
        load_rows<LAGS>(x, u, m, begin, from, length, c);
        load_rows<2 * LAGS - 1>(window, h, m, 0, (BACK ? from - tile : tile - from) - LAGS + 1, length, c);
#pragma unroll
        for (int i = 0; i < LAGS; i++)
#pragma unroll
            for (int j = 0; j < LAGS; j++)
                sum[j] += x[i] * window[LAGS - 1 + (BACK ? i - j : j - i)];
    }
#pragma unroll
    for (int j = 0; j < LAGS; j++)
        if (tile + j < length) store<1>(y, m, begin + tile + j, c, &sum[j]);
}

static view view_rows(matrix a)
{
    view v = view_of(a);
    v.row = a.row;
    return v;
}

template <bool BACK> static void convolve(const machine *on, matrix y, matrix u, matrix h)
{
    const int64_t tiles = (h.rows + LAGS - 1) / LAGS, parts = (y.width + FILTER_THREADS - 1) / FILTER_THREADS;
    const dim3 grid((unsigned)(tiles * parts), (unsigned)(y.rows / h.rows), (unsigned)y.models);
    assert(y.rows % h.rows == 0 && y.rows / h.rows < 65536);
    conv_kernel<BACK><<<grid, FILTER_THREADS, 0, on->gpu->stream>>>(view_rows(y), view_rows(u), view_rows(h),
                                                                    (int)h.rows, (int)y.width);
    gpu_launched(on, "long_conv");
}

extern "C" void cuda_long_conv(const machine *on, matrix y, matrix u, matrix h)
{
    convolve<false>(on, y, u, h);
}

/* partial [models][chunks of runs][length][width]: dh_j = sum over t >= j of g_t u_(t - j). */
static __global__ void __launch_bounds__(FILTER_THREADS)
    filter_back_kernel(float *partial, view g, view u, int length, int width, int runs)
{
    const int parts = (width + FILTER_THREADS - 1) / FILTER_THREADS;
    const int c = (int)(blockIdx.x % parts) * FILTER_THREADS + (int)threadIdx.x;
    const int tile = (int)(blockIdx.x / parts) * LAGS, m = (int)blockIdx.z;
    const int first = (int)blockIdx.y * FILTER_RUNS, end = min(first + FILTER_RUNS, runs);
    if (c >= width) return;
    float sum[LAGS] = {};
    for (int run = first; run < end; run++)
        for (int from = tile; from < length; from += LAGS) {
            float x[LAGS], window[2 * LAGS - 1];
            const int64_t begin = (int64_t)run * length;
            load_rows<LAGS>(x, g, m, begin, from, length, c);
            load_rows<2 * LAGS - 1>(window, u, m, begin, from - tile - LAGS + 1, length, c);
#pragma unroll
            for (int i = 0; i < LAGS; i++)
#pragma unroll
                for (int j = 0; j < LAGS; j++)
                    sum[j] += x[i] * window[LAGS - 1 + i - j];
        }
    float *to = partial + (((int64_t)m * gridDim.y + blockIdx.y) * length + tile) * width + c;
#pragma unroll
    for (int j = 0; j < LAGS; j++)
        if (tile + j < length) to[(int64_t)j * width] = sum[j];
}

extern "C" void cuda_long_conv_back(const machine *on, matrix du, matrix dh, matrix g, matrix u, matrix h)
{
    const int64_t tiles = (h.rows + LAGS - 1) / LAGS, parts = (u.width + FILTER_THREADS - 1) / FILTER_THREADS;
    const int64_t runs = u.rows / h.rows, chunks = (runs + FILTER_RUNS - 1) / FILTER_RUNS;
    convolve<true>(on, du, g, h);
    float *partial = (float *)gpu_scratch(on->gpu,
                                          (size_t)(u.models * chunks * h.rows * h.width) * sizeof *partial);
    if (!partial) return;
    const dim3 grid((unsigned)(tiles * parts), (unsigned)chunks, (unsigned)u.models);
    filter_back_kernel<<<grid, FILTER_THREADS, 0, on->gpu->stream>>>(partial, view_rows(g), view_rows(u),
                                                                     (int)h.rows, (int)u.width, (int)runs);
    gpu_launched(on, "long_conv_back");
    sum_fold(on, dh, partial, chunks, false);
}
