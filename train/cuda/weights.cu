/* SPDX-License-Identifier: MIT
 * In decoding a product has one row, and what takes time is to read the weights: a warp has one row of them,
 * 16 bytes for each lane at a time, and adds up in an order that depends on its length alone. */
#include "train/cuda/weights.cuh"

#include "train/cuda/each.cuh"

#include <cuda_fp16.h>

/* AHEAD: loads of weights that a lane has on their way. */
enum { FEW_THREADS = 128, FEW_WARPS = FEW_THREADS / 32, AHEAD = 4, HALF_THREADS = 256 };

static __device__ __forceinline__ float widened(float x) { return x; }
static __device__ __forceinline__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }
static __device__ __forceinline__ float widened(__half x) { return __half2float(x); }

/* N elements, read 16 bytes at a time where they are as many. */
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) pack {
    T x[N];
};

/* A matrix of type T. */
template <class T> struct dense_rows {
    const T *data;
    int64_t model, row; /* strides in elements */
    int count, width;
};

template <class T> static dense_rows<T> rows_of(matrix a)
{
    return { (const T *)a.data, a.model, a.row, (int)a.rows, (int)a.width };
}

template <class T> static bool in_packs(matrix a)
{
    const int64_t each = 16 / sizeof(T);
    return a.row % each == 0 && a.model % each == 0 && (intptr_t)a.data % 16 == 0;
}

/* The products of a lane's weights with as many elements of each row. */
template <int N, int ROWS, class W, class A>
static __device__ __forceinline__ void add_products(float (&sum)[ROWS], const pack<W, N> &w, const A *from,
                                                    const dense_rows<A> &a)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (ROWS > 1 && i >= a.count) continue;
        const pack<A, N> x = *(const pack<A, N> *)(from + i * a.row);
#pragma unroll
        for (int e = 0; e < N; e++)
            sum[i] = fmaf(widened(w.x[e]), widened(x.x[e]), sum[i]);
    }
}

template <int N, int ROWS, class W, class A>
static __global__ void __launch_bounds__(FEW_THREADS)
    few_rows_kernel(view out, dense_rows<A> a, dense_rows<W> b, bool add)
{
    const int c = (int)blockIdx.x * FEW_WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int m = (int)blockIdx.y;
    if (c >= b.count) return;
    const W *const weights = b.data + m * b.model + c * b.row;
    const A *const from = a.data + m * a.model;
    float sum[ROWS] = {};
    for (int first = lane * N; first < b.width; first += AHEAD * 32 * N) {
        pack<W, N> w[AHEAD];
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int k = first + n * 32 * N;
            if (k < b.width) w[n] = *(const pack<W, N> *)(weights + k);
        }
#pragma unroll
        for (int n = 0; n < AHEAD; n++) {
            const int k = first + n * 32 * N;
            if (k < b.width) add_products<N, ROWS>(sum, w[n], from + k, a);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        for (int step = 16; step > 0; step /= 2)
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], step);
        float base = 0;
        if (lane > 0 || i >= a.count) continue;
        if (add) load<1>(&base, out, m, i, c);
        sum[i] += base;
        store<1>(out, m, i, c, &sum[i]);
    }
}

template <int N, class W, class A>
static void launch_few(const machine *on, matrix out, matrix a, matrix b, bool add)
{
    const dim3 grid((unsigned)((b.rows + FEW_WARPS - 1) / FEW_WARPS), (unsigned)out.models);
    const auto kernel = a.rows == 1 ? few_rows_kernel<N, 1, W, A> : few_rows_kernel<N, FEW_ROWS, W, A>;
    kernel<<<grid, FEW_THREADS, 0, on->gpu->stream>>>(view_of(out), rows_of<A>(a), rows_of<W>(b), add);
    gpu_launched(on, "product of few rows");
}

/* By 16 bytes of weights where all rows are aligned to them. */
template <class W, class A> static void few(const machine *on, matrix out, matrix a, matrix b, bool add)
{
    constexpr int N = 16 / sizeof(W);
    if (b.width % N == 0 && in_packs<W>(b) && in_packs<A>(a))
        launch_few<N, W, A>(on, out, a, b, add);
    else
        launch_few<1, W, A>(on, out, a, b, add);
}

template <class W> static void few_of(const machine *on, matrix out, matrix a, matrix b, bool add)
{
    if (a.dtype == LOAM_BF16)
        few<W, __nv_bfloat16>(on, out, a, b, add);
    else
        few<W, float>(on, out, a, b, add);
}

void weights_few_rows(const machine *on, matrix out, matrix a, matrix b, bool add)
{
    assert(out.rows >= 1 && out.rows <= FEW_ROWS && out.models < 65536 && a.dtype != LOAM_F16);
    assert(b.rows < INT32_MAX - FEW_WARPS && b.width < INT32_MAX / 2);
    if (b.dtype == LOAM_BF16)
        few_of<__nv_bfloat16>(on, out, a, b, add);
    else if (b.dtype == LOAM_F16)
        few_of<__half>(on, out, a, b, add);
    else
        few_of<float>(on, out, a, b, add);
}

template <int N>
static __global__ void __launch_bounds__(HALF_THREADS)
    half_kernel(view out, dense_rows<__half> from, numbers at, unsigned packs, unsigned all)
{
    const unsigned n = blockIdx.x * HALF_THREADS + threadIdx.x, m = blockIdx.y;
    if (n >= all) return;
    const int64_t i = n / packs, other = at.data ? at.data[m * at.model + i] : i;
    const int c = (int)(n % packs) * N;
    const pack<__half, N> some = *(const pack<__half, N> *)(from.data + m * from.model + other * from.row +
                                                            c);
    float x[N];
#pragma unroll
    for (int e = 0; e < N; e++)
        x[e] = widened(some.x[e]);
    store<N>(out, m, i, c, x);
}

void weights_from_half(const machine *on, matrix out, matrix from, numbers at)
{
    const view to = view_of(out);
    const bool four = out.width % 4 == 0 && view_aligned(to) && from.row % 4 == 0 && from.model % 4 == 0 &&
                      (intptr_t)from.data % 8 == 0;
    const int64_t packs = four ? out.width / 4 : out.width, all = packs * out.rows;
    const dim3 grid((unsigned)((all + HALF_THREADS - 1) / HALF_THREADS), (unsigned)out.models);
    assert(from.dtype == LOAM_F16 && all < INT32_MAX - HALF_THREADS && out.models < 65536);
    const auto kernel = four ? half_kernel<4> : half_kernel<1>;
    kernel<<<grid, HALF_THREADS, 0, on->gpu->stream>>>(to, rows_of<__half>(from), at, (unsigned)packs,
                                                       (unsigned)all);
    gpu_launched(on, "weights of 16 bits");
}
