/* SPDX-License-Identifier: MIT
 * Convolutions over a few tokens. */
#include "train/cuda/sum.cuh"

enum { TAPS = 8 }; /* most */

typedef struct runs {
    int rows, width, length, seen, taps;
} runs;

/* Whether row t - k of a run is one that row t sees. */
static __device__ __forceinline__ bool tap_reaches(int t, int k, const runs &s)
{
    return k == 0 || (k <= t && t - k < s.seen);
}

/* y_t = sum of taps_k x_(t - k); BACK: y_t = sum of taps_k x_(t + k). */
template <int N, bool BACK>
static __global__ void __launch_bounds__(EACH_THREADS) conv_kernel(view y, view x, view taps, runs s)
{
    const unsigned packs = (unsigned)(s.width / N), n = blockIdx.x * EACH_THREADS + threadIdx.x;
    const int m = (int)blockIdx.y, i = (int)(n / packs), c = (int)(n % packs) * N, t = i % s.length;
    if (i >= s.rows) return;
    float sum[N] = {};
    for (int k = 0; k < s.taps; k++) {
        if (BACK ? t + k >= s.length || !tap_reaches(t + k, k, s) : !tap_reaches(t, k, s)) continue;
        float from[N], by[N];
        load<N>(from, x, m, BACK ? i + k : i - k, c);
        load<N>(by, taps, m, k, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[e] += by[e] * from[e];
    }
    store<N>(y, m, i, c, sum);
}

/* A matrix whose rows are chosen by number: even one row has a stride. */
static view view_numbered(matrix a)
{
    view v = view_of(a);
    v.row = a.row;
    return v;
}

static runs runs_of(matrix x, matrix taps, int64_t length, int64_t seen)
{
    assert(x.rows * x.width < INT32_MAX && taps.rows <= TAPS);
    return { (int)x.rows, (int)x.width, (int)length, (int)seen, (int)taps.rows };
}

template <bool BACK> static void convolve(const machine *on, matrix y, matrix x, matrix taps, const runs &s)
{
    const view to = view_numbered(y), from = view_numbered(x), by = view_numbered(taps);
    const bool four = x.width % 4 == 0 && view_aligned(to) && view_aligned(from) && view_aligned(by);
    const int64_t all = y.rows * y.width / (four ? 4 : 1);
    const dim3 grid((unsigned)((all + EACH_THREADS - 1) / EACH_THREADS), (unsigned)y.models);
    const auto kernel = four ? conv_kernel<4, BACK> : conv_kernel<1, BACK>;
    kernel<<<grid, EACH_THREADS, 0, on->gpu->stream>>>(to, from, by, s);
    gpu_launched(on, "short_conv");
}

extern "C" void cuda_short_conv(const machine *on, matrix y, matrix x, matrix taps, int64_t length,
                                int64_t seen)
{
    convolve<false>(on, y, x, taps, runs_of(x, taps, length, seen));
}

/* partial [models][chunks][taps][width]: dtaps_k = sum over t of g_t x_(t - k). */
static __global__ void __launch_bounds__(SUM_THREADS) taps_kernel(float *partial, view g, view x, runs s)
{
    const int c = (int)(blockIdx.y * SUM_THREADS + threadIdx.x), m = (int)blockIdx.z;
    const int first = (int)blockIdx.x * SUM_ROWS, end = min(first + SUM_ROWS, s.rows);
    float sum[TAPS] = {};
    if (c >= s.width) return;
    for (int i = first; i < end; i++) {
        float down;
        load<1>(&down, g, m, i, c);
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            float from = 0;
            if (k < s.taps && tap_reaches(i % s.length, k, s)) load<1>(&from, x, m, i - k, c);
            sum[k] += down * from;
        }
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++)
        if (k < s.taps) partial[(((int64_t)m * gridDim.x + blockIdx.x) * s.taps + k) * s.width + c] = sum[k];
}

extern "C" void cuda_short_conv_back(const machine *on, matrix dx, matrix dtaps, matrix g, matrix x,
                                     matrix taps, int64_t length, int64_t seen)
{
    const runs s = runs_of(x, taps, length, seen);
    const int64_t chunks = sum_chunks(x.rows);
    convolve<true>(on, dx, g, taps, s);
    float *partial = (float *)gpu_scratch(on->gpu, (size_t)(x.models * chunks * dtaps.rows * dtaps.width) *
                                                       sizeof *partial);
    if (!partial) return;
    const dim3 grid((unsigned)chunks, (unsigned)((x.width + SUM_THREADS - 1) / SUM_THREADS),
                    (unsigned)x.models);
    taps_kernel<<<grid, SUM_THREADS, 0, on->gpu->stream>>>(partial, view_numbered(g), view_numbered(x), s);
    gpu_launched(on, "short_conv_back");
    assert(dtaps.row == dtaps.width);
    dtaps.width *= dtaps.rows, dtaps.row = dtaps.width, dtaps.rows = 1;
    sum_finish(on, dtaps, partial, chunks, 1, false);
}
