/* SPDX-License-Identifier: MIT
 * Rotary positions on GPUs: a thread has WIDTH planes of a token that are next to each other, or as many
 * channels that are not rotated, for all heads. */
#include "src/gpu/launch.cuh"
#include "src/gpu/number.cuh"
#include "src/rope/rope.h"

/* Heads are read ROPE_HEADS at a time before any of them is written: the arrays may be the same memory, and
 * the compiler cannot know that a thread writes only what it has read. */
enum { ROPE_THREADS = 256, ROPE_HEADS = 4 };

/* What a thread reads and writes at a time. */
template <class T, int WIDTH> struct alignas(WIDTH * sizeof(T)) rope_word {
    T at[WIDTH];
};

/* Rotations are computed in double, and in float where 16 bits are kept of them. */
template <class T> struct rope_real {
    typedef double type;
};
template <> struct rope_real<__nv_bfloat16> {
    typedef float type;
};
template <> struct rope_real<__half> {
    typedef float type;
};

struct rope_arrays {
    loam_const_view from;
    loam_view to;
};

template <class T, int WIDTH>
static __device__ rope_word<T, WIDTH> rope_load(const rope_arrays &a, int64_t at)
{
    return *(const rope_word<T, WIDTH> *)((const T *)a.from.data + at);
}

template <class T, int WIDTH>
static __device__ void rope_store(const rope_arrays &a, int64_t at, rope_word<T, WIDTH> word)
{
    *(rope_word<T, WIDTH> *)((T *)a.to.data + at) = word;
}

template <class T, int WIDTH>
static __device__ void rope_copy(const rope_arrays &a, int64_t heads, int64_t in, int64_t out)
{
    for (int64_t h = 0; h < heads && a.from.data != a.to.data; h++)
        rope_store(a, out + h * a.to.head, rope_load<T, WIDTH>(a, in + h * a.from.head));
}

template <class T, int WIDTH> struct rope_turn {
    typename rope_real<T>::type cosine[WIDTH], sine[WIDTH];
};

/* x and y become x cosine - y sine and x sine + y cosine. */
template <class T, int WIDTH>
static __device__ void rope_rotate(const rope_turn<T, WIDTH> &turn, rope_word<T, WIDTH> &x,
                                   rope_word<T, WIDTH> &y)
{
    typedef typename rope_real<T>::type real;
#pragma unroll
    for (int c = 0; c < WIDTH; c++) {
        const real u = (real)x.at[c], v = (real)y.at[c];
        x.at[c] = (T)(u * turn.cosine[c] - v * turn.sine[c]);
        y.at[c] = (T)(u * turn.sine[c] + v * turn.cosine[c]);
    }
}

template <class T, int WIDTH>
static __device__ void rope_heads(const rope_arrays &a, const rope_turn<T, WIDTH> &turn, int64_t heads,
                                  rope_plane at, int64_t in, int64_t out)
{
    for (int64_t first = 0; first < heads; first += ROPE_HEADS) {
        rope_word<T, WIDTH> x[ROPE_HEADS], y[ROPE_HEADS];
#pragma unroll
        for (int n = 0; n < ROPE_HEADS; n++) {
            if (first + n >= heads) continue;
            x[n] = rope_load<T, WIDTH>(a, in + (first + n) * a.from.head + at.x);
            y[n] = rope_load<T, WIDTH>(a, in + (first + n) * a.from.head + at.y);
        }
#pragma unroll
        for (int n = 0; n < ROPE_HEADS; n++) {
            if (first + n >= heads) continue;
            rope_rotate(turn, x[n], y[n]);
            rope_store(a, out + (first + n) * a.to.head + at.x, x[n]);
            rope_store(a, out + (first + n) * a.to.head + at.y, y[n]);
        }
    }
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(ROPE_THREADS)
    rope_kernel(const __grid_constant__ loam_rope r, const __grid_constant__ rope_frequencies frequencies,
                const __grid_constant__ rope_arrays a)
{
    const int64_t planes = r.dim / 2, items = (planes + r.channels - r.dim) / WIDTH,
                  n = (int64_t)blockIdx.x * ROPE_THREADS + threadIdx.x, token = n / items,
                  c = n % items * WIDTH;
    if (token >= r.batch * r.tokens) return;
    const int64_t b = token / r.tokens, t = token % r.tokens, in = ROPE_AT(&a.from, b, 0, t),
                  out = ROPE_AT(&a.to, b, 0, t);
    if (c >= planes) {
        const int64_t own = r.dim + c - planes;
        rope_copy<T, WIDTH>(a, r.heads, in + own, out + own);
        return;
    }
    const double position = (double)rope_position(&r, b, t) * (r.inverse ? -1 : 1);
    rope_turn<T, WIDTH> turn;
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        double sine, cosine;
        sincos(position * frequencies.plane[c + e], &sine, &cosine);
        turn.cosine[e] = (typename rope_real<T>::type)cosine;
        turn.sine[e] = (typename rope_real<T>::type)sine;
    }
    rope_heads(a, turn, r.heads, rope_plane_of(&r, c), in, out);
}

template <class T, int WIDTH>
static loam_status rope_launch(const loam_rope *r, const rope_frequencies *frequencies, const rope_arrays *a,
                               loam_error *error)
{
    const int64_t items = (r->dim / 2 + r->channels - r->dim) / WIDTH,
                  blocks = (r->batch * r->tokens * items + ROPE_THREADS - 1) / ROPE_THREADS;
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x tokens: too large for one launch");
    rope_kernel<T, WIDTH>
        <<<(unsigned)blocks, ROPE_THREADS, 0, (cudaStream_t)r->stream>>>(*r, *frequencies, *a);
    return cuda_launched("rope_kernel", error);
}

/* Whether planes c and c + 1, c even, are two words of two elements each, at addresses that are multiples of
 * a word. */
static bool rope_in_pairs(const loam_rope *r, const rope_arrays *a)
{
    const size_t word = 2 * dtype_bytes(r->dtype);
    const int64_t strides = a->from.batch | a->from.head | a->from.token | a->to.batch | a->to.head |
                            a->to.token;
    return r->layout == LOAM_ROPE_HALF && r->dim % 4 == 0 && r->channels % 2 == 0 && strides % 2 == 0 &&
           (uintptr_t)a->from.data % word == 0 && (uintptr_t)a->to.data % word == 0;
}

template <class T>
static loam_status rope_launch_wide(const loam_rope *r, const rope_frequencies *frequencies,
                                    const rope_arrays *a, loam_error *error)
{
    return rope_in_pairs(r, a) ? rope_launch<T, 2>(r, frequencies, a, error)
                               : rope_launch<T, 1>(r, frequencies, a, error);
}

loam_status rope_apply_cuda(const loam_rope *r, const rope_frequencies *frequencies,
                            const loam_const_view *from, const loam_view *to, loam_error *error)
{
    const rope_arrays a = { *from, *to };
    switch (r->dtype) {
    case LOAM_F64: return rope_launch_wide<double>(r, frequencies, &a, error);
    case LOAM_F32: return rope_launch_wide<float>(r, frequencies, &a, error);
    case LOAM_BF16: return rope_launch_wide<__nv_bfloat16>(r, frequencies, &a, error);
    case LOAM_F16: return rope_launch_wide<__half>(r, frequencies, &a, error);
    }
    return loam_fail(error, LOAM_EARG, "dtype: %d is none of its 4 values", (int)r->dtype);
}
