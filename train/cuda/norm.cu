/* SPDX-License-Identifier: MIT
 * Norms of rows. Lanes of a warp share a row, a power of two of them; the gradients of gains are summed over
 * rows in the same pass that makes those of the rows. */
#include "train/cuda/sum.cuh"

enum { NORM_THREADS = 256, NORM_ROWS = 64, NORM_SHARED = 48 << 10 }; /* rows of a block of the backward */
enum { NORM_COLUMNS = 32 };                                          /* of a lane there */

/* Over the lanes that share a row; every lane has it. */
static __device__ __forceinline__ float row_sum(float x, int lanes)
{
    for (int step = lanes / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

typedef struct norm_shape {
    int rows, width, lanes;
    float eps;
} norm_shape;

/* Lanes of a row, so that each has a pack of N columns at least. */
static norm_shape shape_of(matrix x, bool four, double eps = 0)
{
    int lanes = 1;
    while (lanes < 32 && lanes * (four ? 4 : 1) < x.width)
        lanes *= 2;
    return { (int)x.rows, (int)x.width, lanes, (float)eps };
}

static dim3 grid_of(matrix x, int64_t rows)
{
    assert(x.rows < INT32_MAX && x.models < 65536);
    return dim3((unsigned)((x.rows + rows - 1) / rows), (unsigned)x.models);
}

/* ---- RMSNorm, and y = x / |x| */

/* y = x r gain with r = 1 / sqrt(mean x^2 + eps), or unit: y = x / |x|. */
template <int N, bool UNIT>
static __global__ void __launch_bounds__(NORM_THREADS)
    rms_kernel(view y, view r, view x, view gain, norm_shape s)
{
    const int per = NORM_THREADS / s.lanes, m = (int)blockIdx.y;
    const int i = (int)blockIdx.x * per + (int)threadIdx.x / s.lanes, lane = (int)threadIdx.x % s.lanes;
    const bool in = i < s.rows;
    float sum = 0;
    for (int c = lane * N; in && c < s.width; c += s.lanes * N) {
        float from[N];
        load<N>(from, x, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum += from[e] * from[e];
    }
    sum = row_sum(sum, s.lanes);
    if (!in) return;
    const float scale = UNIT ? (sum > 0 ? 1 / sqrtf(sum) : 0) : 1 / sqrtf(sum / (float)s.width + s.eps);
    if (lane == 0) store<1>(r, m, i, 0, &scale);
    for (int c = lane * N; c < s.width; c += s.lanes * N) {
        float from[N], by[N];
        load<N>(from, x, m, i, c);
        if (!UNIT) load<N>(by, gain, m, 0, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            from[e] *= UNIT ? scale : scale * by[e];
        store<N>(y, m, i, c, from);
    }
}

template <bool UNIT> static void rms(const machine *on, matrix y, matrix r, matrix x, matrix gain, double eps)
{
    const view to = view_of(y), from = view_of(x), by = view_of(gain);
    const bool four = x.width % 4 == 0 && view_aligned(to) && view_aligned(from) && view_aligned(by);
    const norm_shape s = shape_of(x, four, eps);
    const dim3 grid = grid_of(x, NORM_THREADS / s.lanes);
    if (four)
        rms_kernel<4, UNIT><<<grid, NORM_THREADS, 0, on->gpu->stream>>>(to, view_of(r), from, by, s);
    else
        rms_kernel<1, UNIT><<<grid, NORM_THREADS, 0, on->gpu->stream>>>(to, view_of(r), from, by, s);
    gpu_launched(on, "rms_norm");
}

extern "C" void cuda_rms_norm(const machine *on, matrix y, matrix r, matrix x, matrix gain, double eps)
{
    rms<false>(on, y, r, x, gain, eps);
}

extern "C" void cuda_unit(const machine *on, matrix y, matrix x)
{
    const matrix none = {};
    rms<true>(on, y, none, x, none, 0);
}

/* With y = x / |x|: dx = (g - y (g . y)) / |x|. */
template <int N>
static __global__ void __launch_bounds__(NORM_THREADS) unit_back_kernel(view dx, view g, view x, norm_shape s)
{
    const int per = NORM_THREADS / s.lanes, m = (int)blockIdx.y;
    const int i = (int)blockIdx.x * per + (int)threadIdx.x / s.lanes, lane = (int)threadIdx.x % s.lanes;
    const bool in = i < s.rows;
    float square = 0, along = 0;
    for (int c = lane * N; in && c < s.width; c += s.lanes * N) {
        float from[N], down[N];
        load<N>(from, x, m, i, c);
        load<N>(down, g, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            square += from[e] * from[e], along += down[e] * from[e];
    }
    square = row_sum(square, s.lanes);
    along = row_sum(along, s.lanes);
    if (!in) return;
    const float scale = square > 0 ? 1 / sqrtf(square) : 0;
    along *= scale * scale;
    for (int c = lane * N; c < s.width; c += s.lanes * N) {
        float from[N], down[N];
        load<N>(from, x, m, i, c);
        load<N>(down, g, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            down[e] = scale * (down[e] - from[e] * along);
        store<N>(dx, m, i, c, down);
    }
}

extern "C" void cuda_unit_back(const machine *on, matrix dx, matrix g, matrix x)
{
    const view to = view_of(dx), down = view_of(g), from = view_of(x);
    const bool four = x.width % 4 == 0 && view_aligned(to) && view_aligned(down) && view_aligned(from);
    const norm_shape s = shape_of(x, four);
    const dim3 grid = grid_of(x, NORM_THREADS / s.lanes);
    if (four)
        unit_back_kernel<4><<<grid, NORM_THREADS, 0, on->gpu->stream>>>(to, down, from, s);
    else
        unit_back_kernel<1><<<grid, NORM_THREADS, 0, on->gpu->stream>>>(to, down, from, s);
    gpu_launched(on, "unit_back");
}

/* dx = s g, ds = the sum of g x over the row. */
template <int N>
static __global__ void __launch_bounds__(NORM_THREADS)
    scale_back_kernel(view dx, view ds, view g, view x, view by, norm_shape s)
{
    const int per = NORM_THREADS / s.lanes, m = (int)blockIdx.y;
    const int i = (int)blockIdx.x * per + (int)threadIdx.x / s.lanes, lane = (int)threadIdx.x % s.lanes;
    const bool in = i < s.rows;
    float along = 0, scale = 0;
    if (in) load<1>(&scale, by, m, i, 0);
    for (int c = lane * N; in && c < s.width; c += s.lanes * N) {
        float from[N], down[N];
        load<N>(from, x, m, i, c);
        load<N>(down, g, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            along += down[e] * from[e], down[e] *= scale;
        store<N>(dx, m, i, c, down);
    }
    along = row_sum(along, s.lanes);
    if (in && lane == 0) store<1>(ds, m, i, 0, &along);
}

extern "C" void cuda_scale_rows_back(const machine *on, matrix dx, matrix ds, matrix g, matrix x, matrix s)
{
    const view to = view_of(dx), down = view_of(g), from = view_of(x);
    const bool four = x.width % 4 == 0 && view_aligned(to) && view_aligned(down) && view_aligned(from);
    const norm_shape shape = shape_of(x, four);
    const dim3 grid = grid_of(x, NORM_THREADS / shape.lanes);
    const auto kernel = four ? scale_back_kernel<4> : scale_back_kernel<1>;
    kernel<<<grid, NORM_THREADS, 0, on->gpu->stream>>>(to, view_of(ds), down, from, view_of(s), shape);
    gpu_launched(on, "scale_rows_back");
}

/* ---- LayerNorm */

template <int N>
static __global__ void __launch_bounds__(NORM_THREADS)
    layer_kernel(view y, view stats, view x, view gain, view bias, norm_shape s)
{
    const int per = NORM_THREADS / s.lanes, m = (int)blockIdx.y;
    const int i = (int)blockIdx.x * per + (int)threadIdx.x / s.lanes, lane = (int)threadIdx.x % s.lanes;
    const bool in = i < s.rows;
    float sum = 0, square = 0;
    for (int c = lane * N; in && c < s.width; c += s.lanes * N) {
        float from[N];
        load<N>(from, x, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum += from[e];
    }
    const float mean = row_sum(sum, s.lanes) / (float)s.width;
    for (int c = lane * N; in && c < s.width; c += s.lanes * N) {
        float from[N];
        load<N>(from, x, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            square += (from[e] - mean) * (from[e] - mean);
    }
    square = row_sum(square, s.lanes);
    if (!in) return;
    const float scale = 1 / sqrtf(square / (float)s.width + s.eps), shift = scale * mean;
    if (lane == 0) store<1>(stats, m, i, 0, &scale), store<1>(stats, m, i, 1, &shift);
    for (int c = lane * N; c < s.width; c += s.lanes * N) {
        float from[N], by[N], more[N];
        load<N>(from, x, m, i, c);
        load<N>(by, gain, m, 0, c);
        load<N>(more, bias, m, 0, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            from[e] = (from[e] * scale - shift) * by[e] + more[e];
        store<N>(y, m, i, c, from);
    }
}

extern "C" void cuda_layer_norm(const machine *on, matrix y, matrix stats, matrix x, matrix gain, matrix bias,
                                double eps)
{
    const view to = view_of(y), from = view_of(x), by = view_of(gain), more = view_of(bias);
    const bool four = x.width % 4 == 0 && view_aligned(to) && view_aligned(from) && view_aligned(by) &&
                      view_aligned(more);
    const norm_shape s = shape_of(x, four, eps);
    const dim3 grid = grid_of(x, NORM_THREADS / s.lanes);
    if (four)
        layer_kernel<4><<<grid, NORM_THREADS, 0, on->gpu->stream>>>(to, view_of(stats), from, by, more, s);
    else
        layer_kernel<1><<<grid, NORM_THREADS, 0, on->gpu->stream>>>(to, view_of(stats), from, by, more, s);
    gpu_launched(on, "layer_norm");
}

/* ---- backward of both */

/* The sums of a block's groups of lanes, one after another: partial [chunk][width]. */
static __device__ void write_sums(float *partial, const float *sums, int width, int groups)
{
    __syncthreads();
    for (int c = (int)threadIdx.x; c < width; c += NORM_THREADS) {
        float sum = 0;
        for (int group = 0; group < groups; group++)
            sum += sums[group * width + c];
        partial[((int64_t)blockIdx.y * gridDim.x + blockIdx.x) * width + c] = sum;
    }
}

/* What a lane has of a row. */
template <int N> struct row_pack {
    float x[N], g[N], by[N];
};

/* With g' = g gain and y = x r - shift: dx = r (g' - mean(g') - y mean(g' y)); RMSNorm, whose stats are r
 * alone, has neither shift nor mean(g'). dgain = sum g y, dbias = sum g. PACKS: of N columns, that a lane has
 * of a row; all of them stay in registers. */
template <int N, int PACKS, bool CENTRED>
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_back_kernel(view dx, float *dgain, float *dbias, view g, view x, view stats, view gain, norm_shape s,
                     bool add)
{
    extern __shared__ float sums[];
    const int groups = NORM_THREADS / s.lanes, m = (int)blockIdx.y;
    const int group = (int)threadIdx.x / s.lanes, lane = (int)threadIdx.x % s.lanes;
    const int end = (int)blockIdx.x * NORM_ROWS + NORM_ROWS;
    row_pack<N> row[PACKS];
    float gains[PACKS][N] = {}, biases[PACKS][N] = {};
#pragma unroll
    for (int k = 0; k < PACKS; k++)
        if ((k * s.lanes + lane) * N < s.width) load<N>(row[k].by, gain, m, 0, (k * s.lanes + lane) * N);
    for (int i = (int)blockIdx.x * NORM_ROWS + group; i < end; i += groups) {
        const bool in = i < s.rows;
        float scale = 0, shift = 0, along = 0, whole = 0;
        if (in) load<1>(&scale, stats, m, i, 0);
        if (in && CENTRED) load<1>(&shift, stats, m, i, 1);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * s.lanes + lane) * N;
            if (!in || c >= s.width) continue;
            load<N>(row[k].x, x, m, i, c), load<N>(row[k].g, g, m, i, c);
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float y = row[k].x[e] * scale - shift, down = row[k].g[e];
                along += down * row[k].by[e] * y;
                whole += down * row[k].by[e];
                gains[k][e] += down * y;
                biases[k][e] += down;
            }
        }
        along = row_sum(along, s.lanes) / (float)s.width;
        whole = CENTRED ? row_sum(whole, s.lanes) / (float)s.width : 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * s.lanes + lane) * N;
            float to[N] = {};
            if (!in || c >= s.width) continue;
            if (add) load<N>(to, dx, m, i, c);
#pragma unroll
            for (int e = 0; e < N; e++)
                to[e] += scale * (row[k].g[e] * row[k].by[e] - whole - (row[k].x[e] * scale - shift) * along);
            store<N>(dx, m, i, c, to);
        }
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++)
#pragma unroll
        for (int e = 0; e < N; e++) {
            const int c = (k * s.lanes + lane) * N + e;
            if (c >= s.width) continue;
            sums[group * s.width + c] = gains[k][e];
            if (CENTRED) sums[(groups + group) * s.width + c] = biases[k][e];
        }
    write_sums(dgain, sums, s.width, groups);
    if (CENTRED) write_sums(dbias, sums + groups * s.width, s.width, groups);
}

/* By the packs that a lane has, to the next power of two. */
template <int N, bool CENTRED> static auto norm_back_kernel_of(const norm_shape &s)
{
    const int packs = (s.width + s.lanes * N - 1) / (s.lanes * N);
    assert(packs <= NORM_COLUMNS / N);
    return packs == 1   ? norm_back_kernel<N, 1, CENTRED>
           : packs == 2 ? norm_back_kernel<N, 2, CENTRED>
           : packs <= 4 ? norm_back_kernel<N, 4, CENTRED>
                        : norm_back_kernel<N, NORM_COLUMNS / N, CENTRED>;
}

template <bool CENTRED>
static void norm_back(const machine *on, matrix dx, matrix dgain, matrix dbias, matrix g, matrix x,
                      matrix stats, matrix gain, bool add)
{
    const view to = view_of(dx), down = view_of(g), from = view_of(x), by = view_of(gain);
    const bool four = x.width % 4 == 0 && view_aligned(to) && view_aligned(down) && view_aligned(from) &&
                      view_aligned(by);
    const norm_shape s = shape_of(x, four);
    const dim3 grid = grid_of(x, NORM_ROWS);
    const int64_t chunks = grid.x;
    const size_t sums = (size_t)(x.models * chunks * x.width),
                 shared = (size_t)((CENTRED ? 2 : 1) * NORM_THREADS / s.lanes * x.width) * sizeof(float);
    float *gains = (float *)gpu_scratch(on->gpu, (CENTRED ? 2 : 1) * sums * sizeof *gains);
    if (!gains) return;
    assert(shared <= NORM_SHARED);
    const auto kernel = four ? norm_back_kernel_of<4, CENTRED>(s) : norm_back_kernel_of<1, CENTRED>(s);
    kernel<<<grid, NORM_THREADS, shared, on->gpu->stream>>>(to, gains, gains + sums, down, from,
                                                            view_of(stats), by, s, add);
    gpu_launched(on, "norm_back");
    sum_finish(on, dgain, gains, chunks, 1, false);
    if (CENTRED) sum_finish(on, dbias, gains + sums, chunks, 1, false);
}

extern "C" void cuda_rms_norm_back(const machine *on, matrix dx, matrix dgain, matrix g, matrix x, matrix r,
                                   matrix gain, bool add)
{
    const matrix none = {};
    norm_back<false>(on, dx, dgain, none, g, x, r, gain, add);
}

extern "C" void cuda_layer_norm_back(const machine *on, matrix dx, matrix dgain, matrix dbias, matrix g,
                                     matrix x, matrix stats, matrix gain, bool add)
{
    norm_back<true>(on, dx, dgain, dbias, g, x, stats, gain, add);
}
