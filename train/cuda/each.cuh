/* SPDX-License-Identifier: MIT
 * Loads and stores of matrices whose elements are float32 or bfloat16, and operations element by element. A
 * kernel takes four columns at a time where all its arrays are aligned for that. */
#ifndef LOAM_TRAIN_CUDA_EACH_CUH
#define LOAM_TRAIN_CUDA_EACH_CUH

#include "train/cuda/gpu.cuh"

#include <assert.h>

/* A matrix as a kernel sees it. Without data it is 0 everywhere and is not written. */
struct view {
    char *data;
    int64_t model, row; /* strides in elements; row 0: one row for all */
    int part;           /* 1; else columns of the others that share one of its own, 0: all do */
    bool narrow;        /* bfloat16 */
};

static inline view view_of(matrix a)
{
    assert(!a.data || a.dtype == LOAM_F32 || a.dtype == LOAM_BF16);
    return { (char *)a.data, a.model, a.rows == 1 ? 0 : a.row, 1, a.dtype == LOAM_BF16 };
}

/* Each of its columns stands for `part` columns: numbers of heads, or of a model. */
static inline view view_shared(matrix a, int64_t part)
{
    view v = view_of(a);
    v.part = a.width == 1 ? 0 : (int)part;
    return v;
}

static inline bool view_aligned(view v)
{
    const int64_t bytes = v.narrow ? 8 : 16;
    return !v.data || v.part != 1 || (v.model % 4 == 0 && v.row % 4 == 0 && (intptr_t)v.data % bytes == 0);
}

/* Which of its own columns column c of the others shares. */
static __device__ __forceinline__ int column_of(const view &v, int c) { return v.part == 0 ? 0 : c / v.part; }

/* N elements from column c of row i of model m on. */
template <int N>
static __device__ __forceinline__ void load(float *x, const view &v, int64_t m, int64_t i, int c)
{
    if (!v.data) {
#pragma unroll
        for (int e = 0; e < N; e++)
            x[e] = 0;
        return;
    }
    const int64_t row = m * v.model + i * v.row;
    const float *wide = (const float *)v.data + row;
    const __nv_bfloat16 *narrow = (const __nv_bfloat16 *)v.data + row;
    if (N == 4 && v.part == 1) {
        if (v.narrow) {
            const uint2 bits = *(const uint2 *)(narrow + c);
            const float2 low = __bfloat1622float2(*(const __nv_bfloat162 *)&bits.x),
                         high = __bfloat1622float2(*(const __nv_bfloat162 *)&bits.y);
            x[0] = low.x, x[1 % N] = low.y, x[2 % N] = high.x, x[3 % N] = high.y;
        } else {
            const float4 all = *(const float4 *)(wide + c);
            x[0] = all.x, x[1 % N] = all.y, x[2 % N] = all.z, x[3 % N] = all.w;
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        x[e] = v.narrow ? __bfloat162float(narrow[column_of(v, c + e)]) : wide[column_of(v, c + e)];
}

/* The same in two steps, so that several arrays are on their way together: `load` widens bfloat16 at once,
 * and waits for it. fetch: as they lie there, in the first registers; widen: as float32. */
template <int N>
static __device__ __forceinline__ void fetch(float *x, const view &v, int64_t m, int64_t i, int c)
{
#pragma unroll
    for (int e = 0; e < N; e++)
        x[e] = 0;
    if (!v.data) return;
    const int64_t row = m * v.model + i * v.row;
    const float *wide = (const float *)v.data + row;
    const unsigned short *narrow = (const unsigned short *)v.data + row;
    if (N == 4 && v.part == 1) {
        if (v.narrow) {
            const float2 bits = *(const float2 *)(narrow + c);
            x[0] = bits.x, x[1 % N] = bits.y;
        } else {
            const float4 all = *(const float4 *)(wide + c);
            x[0] = all.x, x[1 % N] = all.y, x[2 % N] = all.z, x[3 % N] = all.w;
        }
        return;
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        x[e] = v.narrow ? __uint_as_float(narrow[column_of(v, c + e)]) : wide[column_of(v, c + e)];
}

template <int N> static __device__ __forceinline__ void widen(float *x, const view &v)
{
    if (!v.narrow) return;
    if (N == 4 && v.part == 1) {
        const unsigned low = __float_as_uint(x[0]), high = __float_as_uint(x[1 % N]);
        x[0] = __uint_as_float(low << 16), x[1 % N] = __uint_as_float(low & 0xffff0000u);
        x[2 % N] = __uint_as_float(high << 16), x[3 % N] = __uint_as_float(high & 0xffff0000u);
        return;
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        x[e] = __uint_as_float(__float_as_uint(x[e]) << 16);
}

template <int N>
static __device__ __forceinline__ void store(const view &v, int64_t m, int64_t i, int c, const float *x)
{
    const int64_t at = m * v.model + i * v.row + c;
    float *wide = (float *)v.data + at;
    __nv_bfloat16 *narrow = (__nv_bfloat16 *)v.data + at;
    if (!v.data) return;
    if (N == 4 && v.narrow) {
        const __nv_bfloat162 low = __floats2bfloat162_rn(x[0], x[1 % N]),
                             high = __floats2bfloat162_rn(x[2 % N], x[3 % N]);
        *(uint2 *)narrow = make_uint2(*(const unsigned *)&low, *(const unsigned *)&high);
    } else if (N == 4) {
        *(float4 *)wide = make_float4(x[0], x[1 % N], x[2 % N], x[3 % N]);
    } else if (v.narrow) {
        *narrow = __float2bfloat16(x[0]);
    } else {
        *wide = x[0];
    }
}

template <int COUNT> struct views {
    view at[COUNT];
};

template <int COUNT> static inline bool all_aligned(const view (&list)[COUNT])
{
    for (int i = 0; i < COUNT; i++)
        if (!view_aligned(list[i])) return false;
    return true;
}

template <int COUNT> static inline views<COUNT> all_of(const view (&list)[COUNT])
{
    views<COUNT> all;
    for (int i = 0; i < COUNT; i++)
        all.at[i] = list[i];
    return all;
}

enum { EACH_THREADS = 256 };

/* f on N elements of each input, to those from column c of row i of model m on. */
template <int N, int OUTS, int INS, class F>
static __device__ __forceinline__ void apply(const view (&out)[OUTS], const float (&x)[INS][N], int64_t m,
                                             int64_t i, int c, const F &f)
{
    float y[OUTS][N];
#pragma unroll
    for (int e = 0; e < N; e++) {
        float from[INS], to[OUTS];
#pragma unroll
        for (int k = 0; k < INS; k++)
            from[k] = x[k][e];
        f(to, from);
#pragma unroll
        for (int k = 0; k < OUTS; k++)
            y[k][e] = to[k];
    }
#pragma unroll
    for (int k = 0; k < OUTS; k++)
        store<N>(out[k], m, i, c, y[k]);
}

/* Both from there. */
template <int N, int OUTS, int INS, class F>
static __device__ __forceinline__ void each_pack(const view (&out)[OUTS], const view (&in)[INS], int64_t m,
                                                 int64_t i, int c, const F &f)
{
    float x[INS][N];
#pragma unroll
    for (int k = 0; k < INS; k++)
        fetch<N>(x[k], in[k], m, i, c);
#pragma unroll
    for (int k = 0; k < INS; k++)
        widen<N>(x[k], in[k]);
    apply<N>(out, x, m, i, c, f);
}

/* Packs that a thread has, so that enough is on its way from memory. */
template <int INS> static constexpr int packs_of() { return INS <= 2 ? 4 : 2; }

/* f on packs n = 0 .. all - 1 of a model, of which a row has `packs`. */
template <int N, int OUTS, int INS, class F>
static __global__ void __launch_bounds__(EACH_THREADS)
    each_kernel(views<OUTS> out, views<INS> in, unsigned packs, unsigned all, F f)
{
    constexpr int PACKS = packs_of<INS>();
    const unsigned first = blockIdx.x * EACH_THREADS * PACKS + threadIdx.x;
    float x[PACKS][INS][N];
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const unsigned n = first + p * EACH_THREADS, i = all == packs ? 0 : n / packs;
        if (n >= all) continue;
#pragma unroll
        for (int k = 0; k < INS; k++)
            fetch<N>(x[p][k], in.at[k], blockIdx.y, i, (int)((n - i * packs) * N));
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const unsigned n = first + p * EACH_THREADS, i = all == packs ? 0 : n / packs;
        if (n >= all) continue;
#pragma unroll
        for (int k = 0; k < INS; k++)
            widen<N>(x[p][k], in.at[k]);
        apply<N>(out.at, x[p], blockIdx.y, i, (int)((n - i * packs) * N), f);
    }
}

/* Rows of it follow each other. */
static inline bool view_whole(view v, matrix like) { return !v.data || (v.part == 1 && v.row == like.width); }

template <int COUNT> static inline bool all_whole(const view (&list)[COUNT], matrix like)
{
    for (int i = 0; i < COUNT; i++)
        if (!view_whole(list[i], like)) return false;
    return true;
}

/* f(y, x) for each element of the shape of `like`, from one of each input to one of each output. Outputs may
 * be inputs. */
template <int OUTS, int INS, class F>
static void each(const machine *on, const char *name, matrix like, const view (&out)[OUTS],
                 const view (&in)[INS], F f)
{
    const bool four = like.width % 4 == 0 && all_aligned(out) && all_aligned(in);
    const int64_t row = four ? like.width / 4 : like.width, all = row * like.rows;
    const int64_t block = EACH_THREADS * packs_of<INS>();
    const bool whole = all_whole(out, like) && all_whole(in, like) && like.rows * like.width < INT32_MAX;
    const unsigned packs = (unsigned)(whole ? all : row);
    if (all == 0 || like.models == 0) return;
    assert(all < INT32_MAX - block && like.models < 65536);
    const dim3 grid((unsigned)((all + block - 1) / block), (unsigned)like.models);
    if (four)
        each_kernel<4>
            <<<grid, EACH_THREADS, 0, on->gpu->stream>>>(all_of(out), all_of(in), packs, (unsigned)all, f);
    else
        each_kernel<1>
            <<<grid, EACH_THREADS, 0, on->gpu->stream>>>(all_of(out), all_of(in), packs, (unsigned)all, f);
    gpu_launched(on, name);
}

static __device__ __forceinline__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }
static __device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0) + log1pf(expf(-fabsf(x))); }

#endif
