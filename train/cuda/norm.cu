/* SPDX-License-Identifier: MIT
 * Norms of rows. Lanes of a warp share a row, a power of two of them; the gradients of gains are summed over
 * rows in the same pass that makes those of the rows. */
#include "train/cuda/sum.cuh"

enum { NORM_THREADS = 256, NORM_SHARED = 64 << 10 };
enum { NORM_COLUMNS = 32 }; /* of a lane, in registers */
enum { ROWS_AT_ONCE = 4 };  /* that a lane has where it has one pack of each: what it reads ahead */

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

/* ---- RMSNorm, LayerNorm, and y = x / |x| */

enum norm_kind { NORM_RMS, NORM_UNIT, NORM_LAYER };

/* The arrays of a forward. */
typedef struct norm_views {
    view y, stats, x, gain, bias;
    norm_shape s;
} norm_views;

/* What a row is scaled by, from the sum of the squares of what is scaled. */
template <norm_kind KIND> static __device__ __forceinline__ float scale_of(float square, const norm_shape &s)
{
    if (KIND == NORM_UNIT) return square > 0 ? 1 / sqrtf(square) : 0;
    return 1 / sqrtf(square / (float)s.width + s.eps);
}

template <norm_kind KIND>
static __device__ __forceinline__ void store_stats(const norm_views &v, int m, int i, float scale,
                                                   float shift)
{
    store<1>(v.stats, m, i, 0, &scale);
    if (KIND == NORM_LAYER) store<1>(v.stats, m, i, 1, &shift);
}

template <int N, norm_kind KIND>
static __device__ __forceinline__ void normed(float *x, const float *by, const float *more, float scale,
                                              float shift)
{
#pragma unroll
    for (int e = 0; e < N; e++)
        x[e] = KIND == NORM_UNIT  ? x[e] * scale
               : KIND == NORM_RMS ? x[e] * (scale * by[e])
                                  : (x[e] * scale - shift) * by[e] + more[e];
}

/* y = x r gain with r = 1 / sqrt(mean x^2 + eps); unit: y = x / |x|; layer: y = (x r - r mean x) gain + bias
 * with r = 1 / sqrt(variance of x + eps). Rows of any width are read as often as they are needed. */
template <int N, norm_kind KIND>
static __global__ void __launch_bounds__(NORM_THREADS) norm_kernel(norm_views v)
{
    const int lanes = v.s.lanes, width = v.s.width, per = NORM_THREADS / lanes, m = (int)blockIdx.y;
    const int i = (int)blockIdx.x * per + (int)threadIdx.x / lanes, lane = (int)threadIdx.x % lanes;
    const bool in = i < v.s.rows;
    float sum = 0, square = 0, x[N];
    for (int c = lane * N; KIND == NORM_LAYER && in && c < width; c += lanes * N) {
        load<N>(x, v.x, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum += x[e];
    }
    const float mean = KIND == NORM_LAYER ? row_sum(sum, lanes) / (float)width : 0;
    for (int c = lane * N; in && c < width; c += lanes * N) {
        load<N>(x, v.x, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            square += (x[e] - mean) * (x[e] - mean);
    }
    const float scale = scale_of<KIND>(row_sum(square, lanes), v.s), shift = scale * mean;
    if (!in) return;
    if (lane == 0) store_stats<KIND>(v, m, i, scale, shift);
    for (int c = lane * N; c < width; c += lanes * N) {
        float by[N], more[N];
        load<N>(x, v.x, m, i, c), load<N>(by, v.gain, m, 0, c), load<N>(more, v.bias, m, 0, c);
        normed<N, KIND>(x, by, more, scale, shift);
        store<N>(v.y, m, i, c, x);
    }
}

/* The same where a lane has at most PACKS packs of a row, in registers; where it is one, of some rows. */
template <int N, norm_kind KIND, int PACKS>
static __global__ void __launch_bounds__(NORM_THREADS) norm_rows_kernel(norm_views v)
{
    constexpr int ROWS = PACKS == 1 ? ROWS_AT_ONCE : 1;
    const int lanes = v.s.lanes, width = v.s.width, per = NORM_THREADS / lanes, m = (int)blockIdx.y;
    const int first = (int)blockIdx.x * per * ROWS + (int)threadIdx.x / lanes,
              lane = (int)threadIdx.x % lanes;
    float x[ROWS][PACKS][N] = {}, by[PACKS][N], more[PACKS][N];
#pragma unroll
    for (int n = 0; n < ROWS; n++)
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * lanes + lane) * N;
            if (first + n * per < v.s.rows && c < width) fetch<N>(x[n][k], v.x, m, first + n * per, c);
        }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int c = (k * lanes + lane) * N;
        if (c < width) load<N>(by[k], v.gain, m, 0, c), load<N>(more[k], v.bias, m, 0, c);
    }
#pragma unroll
    for (int n = 0; n < ROWS; n++) {
        const int i = first + n * per;
        float sum = 0, square = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            widen<N>(x[n][k], v.x);
#pragma unroll
            for (int e = 0; e < N; e++)
                sum += x[n][k][e];
        }
        const float mean = KIND == NORM_LAYER ? row_sum(sum, lanes) / (float)width : 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++)
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float off = x[n][k][e] - mean;
                square += (k * lanes + lane) * N < width ? off * off : 0;
            }
        const float scale = scale_of<KIND>(row_sum(square, lanes), v.s), shift = scale * mean;
        if (i >= v.s.rows) continue;
        if (lane == 0) store_stats<KIND>(v, m, i, scale, shift);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * lanes + lane) * N;
            if (c >= width) continue;
            normed<N, KIND>(x[n][k], by[k], more[k], scale, shift);
            store<N>(v.y, m, i, c, x[n][k]);
        }
    }
}

/* Packs that a lane has of a row. */
template <int N> static int packs_of_row(const norm_shape &s)
{
    return (s.width + s.lanes * N - 1) / (s.lanes * N);
}

template <int N, norm_kind KIND> static void norm_launch(const machine *on, matrix x, const norm_views &v)
{
    const int packs = packs_of_row<N>(v.s);
    const auto kernel = packs == 1                  ? norm_rows_kernel<N, KIND, 1>
                        : packs == 2                ? norm_rows_kernel<N, KIND, 2>
                        : packs <= 4                ? norm_rows_kernel<N, KIND, 4>
                        : packs <= NORM_COLUMNS / N ? norm_rows_kernel<N, KIND, NORM_COLUMNS / N>
                                                    : norm_kernel<N, KIND>;
    const dim3 grid = grid_of(x, (packs == 1 ? ROWS_AT_ONCE : 1) * NORM_THREADS / v.s.lanes);
    kernel<<<grid, NORM_THREADS, 0, on->gpu->stream>>>(v);
}

template <norm_kind KIND>
static void norm(const machine *on, const char *name, matrix y, matrix stats, matrix x, matrix gain,
                 matrix bias, double eps)
{
    norm_views v = { view_of(y), view_of(stats), view_of(x), view_of(gain), view_of(bias), {} };
    const bool four = x.width % 4 == 0 && view_aligned(v.y) && view_aligned(v.x) && view_aligned(v.gain) &&
                      view_aligned(v.bias);
    v.s = shape_of(x, four, eps);
    if (four)
        norm_launch<4, KIND>(on, x, v);
    else
        norm_launch<1, KIND>(on, x, v);
    gpu_launched(on, name);
}

static const matrix none = {};

extern "C" void cuda_rms_norm(const machine *on, matrix y, matrix r, matrix x, matrix gain, double eps)
{
    norm<NORM_RMS>(on, "rms_norm", y, r, x, gain, none, eps);
}

extern "C" void cuda_layer_norm(const machine *on, matrix y, matrix stats, matrix x, matrix gain, matrix bias,
                                double eps)
{
    norm<NORM_LAYER>(on, "layer_norm", y, stats, x, gain, bias, eps);
}

extern "C" void cuda_unit(const machine *on, matrix y, matrix x)
{
    norm<NORM_UNIT>(on, "unit", y, none, x, none, none, 0);
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

/* The arrays of a backward. */
typedef struct norm_back_views {
    view dx, operand, g, x, stats, gain, base;
    norm_shape s;
    int rows; /* of a block */
} norm_back_views;

/* Few enough that they keep a GPU busy, and else so many that little is left to sum over blocks. */
static int rows_of_block(int64_t rows) { return rows > 1 << 15 ? 256 : 64; }

/* What a lane has of a row: PACKS of N columns, in registers. */
template <int N, int PACKS> struct row_packs {
    float x[PACKS][N], g[PACKS][N], to[PACKS][N], scale, shift;

    __device__ __forceinline__ void read(const norm_back_views &v, int m, int i, int lane, bool centred)
    {
        fetch<1>(&scale, v.stats, m, i, 0);
        if (centred) fetch<1>(&shift, v.stats, m, i, 1);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * v.s.lanes + lane) * N;
            if (c >= v.s.width) continue;
            fetch<N>(x[k], v.x, m, i, c), fetch<N>(g[k], v.g, m, i, c);
            fetch<N>(to[k], v.base, m, i, c);
        }
    }
    /* What was read, as float32. */
    __device__ __forceinline__ void widen_all(const norm_back_views &v)
    {
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            widen<N>(x[k], v.x), widen<N>(g[k], v.g), widen<N>(to[k], v.base);
    }

    /* `along` = mean(g' y), `whole` = mean(g'). */
    __device__ __forceinline__ void write(const norm_back_views &v, const float (&by)[PACKS][N], float along,
                                          float whole, int m, int i, int lane)
    {
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            const int c = (k * v.s.lanes + lane) * N;
            if (c >= v.s.width) continue;
#pragma unroll
            for (int e = 0; e < N; e++)
                to[k][e] += scale * (g[k][e] * by[k][e] - whole - (x[k][e] * scale - shift) * along);
            store<N>(v.dx, m, i, c, to[k]);
            store<N>(v.operand, m, i, c, to[k]);
        }
    }
};

/* Of a lane, over rows; and of one row, over its columns. */
template <int N, int PACKS> struct norm_sums {
    float gains[PACKS][N], biases[PACKS][N], along, whole;

    __device__ __forceinline__ void add(const row_packs<N, PACKS> &row, const float (&by)[PACKS][N])
    {
        along = whole = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++)
#pragma unroll
            for (int e = 0; e < N; e++) {
                const float y = row.x[k][e] * row.scale - row.shift, down = row.g[k][e];
                along += down * by[k][e] * y;
                whole += down * by[k][e];
                gains[k][e] += down * y;
                biases[k][e] += down;
            }
    }
};

/* With g' = g gain and y = x r - shift: dx = r (g' - mean(g') - y mean(g' y)); RMSNorm, whose stats are r
 * alone, has neither shift nor mean(g'). dgain = sum g y, dbias = sum g. */
template <int N, int PACKS, bool CENTRED>
static __global__ void __launch_bounds__(NORM_THREADS, PACKS == 1 && !CENTRED ? 3 : 1)
    norm_back_kernel(norm_back_views v, float *dgain, float *dbias)
{
    constexpr int ROWS = PACKS == 1 ? ROWS_AT_ONCE : 1;
    extern __shared__ float sums[];
    const int lanes = v.s.lanes, width = v.s.width, groups = NORM_THREADS / lanes, m = (int)blockIdx.y;
    const int group = (int)threadIdx.x / lanes, lane = (int)threadIdx.x % lanes;
    const int begin = (int)blockIdx.x * v.rows, end = min(begin + v.rows, v.s.rows);
    row_packs<N, PACKS> row[ROWS];
    norm_sums<N, PACKS> sum = {};
    float by[PACKS][N] = {};
#pragma unroll
    for (int k = 0; k < PACKS; k++)
        if ((k * lanes + lane) * N < width) load<N>(by[k], v.gain, m, 0, (k * lanes + lane) * N);
    /* All lanes go round equally often: they share sums. */
    for (int first = begin + group; first - group < end; first += groups * ROWS) {
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            row[n] = {};
            if (first + n * groups < end) row[n].read(v, m, first + n * groups, lane, CENTRED);
        }
#pragma unroll
        for (int n = 0; n < ROWS; n++) {
            row[n].widen_all(v);
            sum.add(row[n], by);
            const float along = row_sum(sum.along, lanes) / (float)width,
                        whole = CENTRED ? row_sum(sum.whole, lanes) / (float)width : 0;
            if (first + n * groups < end) row[n].write(v, by, along, whole, m, first + n * groups, lane);
        }
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++)
#pragma unroll
        for (int e = 0; e < N; e++) {
            const int c = (k * lanes + lane) * N + e;
            if (c >= width) continue;
            sums[group * width + c] = sum.gains[k][e];
            if (CENTRED) sums[(groups + group) * width + c] = sum.biases[k][e];
        }
    write_sums(dgain, sums, width, groups);
    if (CENTRED) write_sums(dbias, sums + groups * width, width, groups);
}

/* By the packs that a lane has, to the next power of two. */
template <int N, bool CENTRED> static auto norm_back_kernel_of(const norm_shape &s)
{
    const int packs = packs_of_row<N>(s);
    assert(packs <= NORM_COLUMNS / N);
    return packs == 1   ? norm_back_kernel<N, 1, CENTRED>
           : packs == 2 ? norm_back_kernel<N, 2, CENTRED>
           : packs <= 4 ? norm_back_kernel<N, 4, CENTRED>
                        : norm_back_kernel<N, NORM_COLUMNS / N, CENTRED>;
}

template <bool CENTRED>
static void norm_back(const machine *on, matrix dx, matrix operand, matrix dgain, matrix dbias, matrix g,
                      matrix x, matrix stats, matrix gain, matrix base)
{
    norm_back_views v = { view_of(dx),   view_of(operand), view_of(g), view_of(x),           view_of(stats),
                          view_of(gain), view_of(base),    {},         rows_of_block(x.rows) };
    const bool four = x.width % 4 == 0 && view_aligned(v.dx) && view_aligned(v.operand) &&
                      view_aligned(v.g) && view_aligned(v.x) && view_aligned(v.gain) && view_aligned(v.base);
    const norm_shape s = v.s = shape_of(x, four);
    const dim3 grid = grid_of(x, v.rows);
    const int64_t chunks = grid.x;
    const size_t sums = (size_t)(x.models * chunks * x.width),
                 shared = (size_t)((CENTRED ? 2 : 1) * NORM_THREADS / s.lanes * x.width) * sizeof(float);
    float *gains = (float *)gpu_scratch(on->gpu, (CENTRED ? 2 : 1) * sums * sizeof *gains);
    if (!gains) return;
    assert(shared <= NORM_SHARED);
    const auto kernel = four ? norm_back_kernel_of<4, CENTRED>(s) : norm_back_kernel_of<1, CENTRED>(s);
    gpu_check(on->gpu, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
              "norm_back");
    kernel<<<grid, NORM_THREADS, shared, on->gpu->stream>>>(v, gains, gains + sums);
    gpu_launched(on, "norm_back");
    sum_finish(on, dgain, gains, chunks, 1, false);
    if (CENTRED) sum_finish(on, dbias, gains + sums, chunks, 1, false);
}

extern "C" void cuda_rms_norm_back(const machine *on, matrix dx, matrix operand, matrix dgain, matrix g,
                                   matrix x, matrix r, matrix gain, matrix base)
{
    norm_back<false>(on, dx, operand, dgain, none, g, x, r, gain, base);
}

extern "C" void cuda_layer_norm_back(const machine *on, matrix dx, matrix operand, matrix dgain, matrix dbias,
                                     matrix g, matrix x, matrix stats, matrix gain, matrix base)
{
    norm_back<true>(on, dx, operand, dgain, dbias, g, x, stats, gain, base);
}
