/* SPDX-License-Identifier: MIT
 * Losses of rows, and their gradients. */
#include "train/cuda/each.cuh"

enum { LOSS_THREADS = 256, LOSS_SHARED = 224 << 10 };
enum { ROW_PACKS = 8, ROW_COLUMNS = 4 * ROW_PACKS, ROW_THREADS = 1024 }; /* of a row in registers; at most */

typedef struct largest {
    float x;
    int at;
} largest;

/* Of equal ones the first. */
static __device__ __forceinline__ largest larger(largest a, largest b)
{
    return b.x > a.x || (b.x == a.x && b.at < a.at) ? b : a;
}

static __device__ largest block_largest(largest mine)
{
    __shared__ largest all[LOSS_THREADS];
    all[threadIdx.x] = mine;
    for (int step = LOSS_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) all[threadIdx.x] = larger(all[threadIdx.x], all[threadIdx.x + step]);
    }
    __syncthreads();
    return all[0];
}

static __device__ float block_total(float x)
{
    __shared__ float all[LOSS_THREADS];
    all[threadIdx.x] = x;
    for (int step = LOSS_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) all[threadIdx.x] += all[threadIdx.x + step];
    }
    __syncthreads();
    return all[0];
}

/* Over the threads of a block; every thread has it. `room` is used again only after a __syncthreads. */
template <class F> static __device__ __forceinline__ float block_reduce(float x, float *room, F join)
{
    const int warp = (int)threadIdx.x / 32, warps = (int)blockDim.x / 32;
    for (int step = 16; step > 0; step /= 2)
        x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (threadIdx.x % 32 == 0) room[warp] = x;
    __syncthreads();
    x = room[0];
    for (int other = 1; other < warps; other++)
        x = join(x, room[other]);
    return x;
}

/* A row of logits as the registers of a block, columns c .. c + 3 of each pack. */
struct logit_row {
    float x[ROW_PACKS][4];
    int width;

    __device__ __forceinline__ int column(int k) const
    {
        return (k * (int)blockDim.x + (int)threadIdx.x) * 4;
    }
    __device__ __forceinline__ void read(const view &logits, int m, int i)
    {
#pragma unroll
        for (int k = 0; k < ROW_PACKS; k++) {
            x[k][0] = x[k][1] = x[k][2] = x[k][3] = -INFINITY;
            if (column(k) < width) fetch<4>(x[k], logits, m, i, column(k));
        }
#pragma unroll
        for (int k = 0; k < ROW_PACKS; k++)
            if (column(k) < width) widen<4>(x[k], logits);
    }
    __device__ __forceinline__ float most() const
    {
        float top = -INFINITY;
#pragma unroll
        for (int k = 0; k < ROW_PACKS; k++)
            top = fmaxf(fmaxf(fmaxf(x[k][0], x[k][1]), fmaxf(x[k][2], x[k][3])), top);
        return top;
    }
    /* Whether a column before `end` has the value. */
    __device__ __forceinline__ bool has_before(float value, int end) const
    {
        bool found = false;
#pragma unroll
        for (int k = 0; k < ROW_PACKS; k++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                found = found || (x[k][e] == value && column(k) + e < end);
        return found;
    }
    /* Weights e^(x - top) instead; returns their sum. */
    __device__ __forceinline__ float weigh(float top)
    {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < ROW_PACKS; k++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[k][e] = __expf(x[k][e] - top), sum += x[k][e];
        return sum;
    }
};

/* With p = softmax(x): the loss is -log p_target, its gradient p - 1 at the target and p elsewhere. Logits
 * are read once; the gradient may be written over them. */
static __global__ void __launch_bounds__(ROW_THREADS, 1)
    row_entropy_kernel(view each, view g, view logits, numbers targets, const int64_t *counts, int width)
{
    __shared__ float room[2][ROW_THREADS / 32];
    const int i = (int)blockIdx.x, m = (int)blockIdx.y, target = targets.data[m * targets.model + i];
    const bool asked = target >= 0;
    float results[2] = {}, wanted = 0, by = 0, share = 0;
    logit_row row;
    row.width = width;
    if (asked) {
        row.read(logits, m, i);
        load<1>(&wanted, logits, m, i, target);
        const float top = block_reduce(row.most(), room[0], [](float a, float b) { return fmaxf(a, b); });
        const bool right = wanted == top && !__syncthreads_or(row.has_before(top, target));
        const float sum = block_reduce(row.weigh(top), room[1], [](float a, float b) { return a + b; });
        results[0] = logf(sum) - (wanted - top), results[1] = right;
        share = 1 / (float)counts[m], by = share / sum;
    }
    if (threadIdx.x == 0) store<1>(each, m, i, 0, &results[0]), store<1>(each, m, i, 1, &results[1]);
    if (!g.data) return;
#pragma unroll
    for (int k = 0; k < ROW_PACKS; k++) {
        const int c = row.column(k);
        if (c >= width) continue;
#pragma unroll
        for (int e = 0; e < 4; e++)
            row.x[k][e] = asked ? row.x[k][e] * by - (c + e == target ? share : 0) : 0;
        store<4>(g, m, i, c, row.x[k]);
    }
}

/* The same for rows that are too wide for that, or not aligned: kept in shared memory where there is room,
 * else read again. */
template <int N, bool KEPT>
static __global__ void __launch_bounds__(LOSS_THREADS)
    entropy_kernel(view each, view g, view logits, numbers targets, const int64_t *counts, int width)
{
    extern __shared__ float kept[];
    const int i = (int)blockIdx.x, m = (int)blockIdx.y, target = targets.data[m * targets.model + i];
    const float nothing[2] = {};
    float x[N], wanted;
    if (target < 0) {
        const float zeros[N] = {};
        for (int c = (int)threadIdx.x * N; c < width; c += LOSS_THREADS * N)
            store<N>(g, m, i, c, zeros);
        if (threadIdx.x == 0) store<1>(each, m, i, 0, nothing), store<1>(each, m, i, 1, nothing);
        return;
    }
    largest top = { -INFINITY, width };
    for (int c = (int)threadIdx.x * N; c < width; c += LOSS_THREADS * N) {
        load<N>(x, logits, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++) {
            top = larger(top, { x[e], c + e });
            if (KEPT) kept[c + e] = x[e];
        }
    }
    top = block_largest(top);
    load<1>(&wanted, logits, m, i, target);
    wanted -= top.x;
    float sum = 0;
    for (int c = (int)threadIdx.x * N; c < width; c += LOSS_THREADS * N) {
        if (!KEPT) load<N>(x, logits, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++) {
            const float weight = expf((KEPT ? kept[c + e] : x[e]) - top.x);
            sum += weight;
            if (KEPT) kept[c + e] = weight;
        }
    }
    sum = block_total(sum);
    if (threadIdx.x == 0) {
        const float loss = logf(sum) - wanted, right = top.at == target;
        store<1>(each, m, i, 0, &loss);
        store<1>(each, m, i, 1, &right);
    }
    const float share = 1 / (float)counts[m], by = share / sum;
    for (int c = (int)threadIdx.x * N; g.data && c < width; c += LOSS_THREADS * N) {
        if (!KEPT) load<N>(x, logits, m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++)
            x[e] = (KEPT ? kept[c + e] : expf(x[e] - top.x)) * by - (c + e == target ? share : 0);
        store<N>(g, m, i, c, x);
    }
}

extern "C" void cuda_cross_entropy(const machine *on, matrix each, matrix g, matrix logits, numbers targets,
                                   const int64_t *counts)
{
    const view from = view_of(logits), to = view_of(g);
    const bool kept = logits.width * (int64_t)sizeof(float) <= LOSS_SHARED;
    const size_t shared = kept ? (size_t)logits.width * sizeof(float) : 0;
    const dim3 grid((unsigned)logits.rows, (unsigned)logits.models);
    const bool four = logits.width % 4 == 0 && view_aligned(from) && view_aligned(to);
    const int64_t threads = (logits.width + ROW_COLUMNS - 1) / ROW_COLUMNS;
    if (four && threads <= ROW_THREADS) {
        row_entropy_kernel<<<grid, (unsigned)((threads + 31) / 32 * 32), 0, on->gpu->stream>>>(
            view_of(each), to, from, targets, counts, (int)logits.width);
        gpu_launched(on, "cross_entropy");
        return;
    }
    const auto kernel = kept ? (four ? entropy_kernel<4, true> : entropy_kernel<1, true>)
                             : (four ? entropy_kernel<4, false> : entropy_kernel<1, false>);
    gpu_check(on->gpu, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
              "cross_entropy");
    kernel<<<grid, LOSS_THREADS, shared, on->gpu->stream>>>(view_of(each), to, from, targets, counts,
                                                            (int)logits.width);
    gpu_launched(on, "cross_entropy");
}

/* A warp for each row. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    error_kernel(view each, view g, view y, view t, int rows, int width, float scale)
{
    const int i = (int)(blockIdx.x * LOSS_THREADS + threadIdx.x) / 32, m = (int)blockIdx.y;
    if (i >= rows) return;
    float sum = 0;
    for (int c = (int)threadIdx.x % 32; c < width; c += 32) {
        float x, wanted;
        load<1>(&x, y, m, i, c);
        load<1>(&wanted, t, m, i, c);
        const float off = x - wanted, d = scale * off;
        sum += off * off;
        store<1>(g, m, i, c, &d);
    }
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    sum /= (float)width;
    if (threadIdx.x % 32 == 0) store<1>(each, m, i, 0, &sum);
}

extern "C" void cuda_squared_error(const machine *on, matrix each, matrix y, matrix t)
{
    const int64_t blocks = (y.rows * 32 + LOSS_THREADS - 1) / LOSS_THREADS;
    const dim3 grid((unsigned)blocks, (unsigned)y.models);
    const float scale = 2 / (float)(y.rows * y.width);
    assert(y.rows * 32 < INT32_MAX);
    error_kernel<<<grid, LOSS_THREADS, 0, on->gpu->stream>>>(view_of(each), view_of(y), view_of(y),
                                                             view_of(t), (int)y.rows, (int)y.width, scale);
    gpu_launched(on, "squared_error");
}
