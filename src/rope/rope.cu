/* SPDX-License-Identifier: MIT
 * Rotary positions on GPUs: a thread has WIDTH planes of a token that are next to each other, or as many
 * channels that are not rotated, of ROPE_HEADS heads. */
#include "src/gpu/launch.cuh"
#include "src/gpu/number.cuh"
#include "src/rope/rope.h"

/* A thread reads all its heads before it writes any of them: the arrays may be the same memory, and the
 * compiler cannot know that a thread writes only what it has read. */
enum { ROPE_THREADS = 256, ROPE_HEADS = 4 };

/* What a thread reads and writes at a time, as numbers and as one word of memory. */
template <class T, int WIDTH> struct rope_word {
    T at[WIDTH];
};
template <int BYTES> struct rope_memory;
template <> struct rope_memory<2> {
    typedef uint16_t type;
};
template <> struct rope_memory<4> {
    typedef uint32_t type;
};
template <> struct rope_memory<8> {
    typedef uint2 type;
};
template <> struct rope_memory<16> {
    typedef uint4 type;
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
    const auto memory = *(const typename rope_memory<WIDTH * sizeof(T)>::type *)((const T *)a.from.data + at);
    rope_word<T, WIDTH> word;
    memcpy(&word, &memory, sizeof word);
    return word;
}

template <class T, int WIDTH>
static __device__ void rope_store(const rope_arrays &a, int64_t at, const rope_word<T, WIDTH> &word)
{
    typename rope_memory<WIDTH * sizeof(T)>::type memory;
    memcpy(&memory, &word, sizeof memory);
    __stwb((decltype(memory) *)((T *)a.to.data + at), memory); /* an assignment is stored number by number */
}

template <class T, int WIDTH> struct rope_turn {
    typename rope_real<T>::type cosine[WIDTH], sine[WIDTH];
};

/* Cosine and sine of an angle in radians. Where float suffices, whole turns are taken off in double, of whose
 * 53 bits an angle of 10^6 radians leaves more than 30. */
static __device__ void rope_cosine(double angle, double &cosine, double &sine)
{
    sincos(angle, &sine, &cosine);
}
static __device__ void rope_cosine(double angle, float &cosine, float &sine)
{
    const double turns = angle * 0.15915494309189535;
    sincospif(2 * (float)(turns - rint(turns)), &sine, &cosine);
}

template <class T, int WIDTH>
static __device__ rope_turn<T, WIDTH> rope_turn_of(const loam_rope &r, const rope_frequencies &frequencies,
                                                   int64_t position, int64_t c)
{
    rope_turn<T, WIDTH> turn;
    const double at = (double)position * (r.inverse ? -1 : 1);
#pragma unroll
    for (int e = 0; e < WIDTH; e++)
        rope_cosine(at * frequencies.plane[c + e], turn.cosine[e], turn.sine[e]);
    return turn;
}

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

/* What the threads of a token have: WIDTH planes, or channels that are not rotated, of ROPE_HEADS heads. */
template <int WIDTH> struct rope_items {
    int64_t planes, rest; /* words */
    __host__ __device__ explicit rope_items(const loam_rope &r)
        : planes(r.dim / 2 / WIDTH), rest((r.channels - r.dim) / WIDTH)
    {
    }
    __host__ __device__ int64_t of_heads(const loam_rope &r) const
    {
        return (planes + rest) * ((r.heads + ROPE_HEADS - 1) / ROPE_HEADS);
    }
};

/* Channels that are not rotated, and their place among the arrays' channels. */
template <class T, int WIDTH>
static __device__ void rope_copy(const rope_arrays &a, int64_t heads, int64_t in, int64_t out)
{
#pragma unroll
    for (int n = 0; n < ROPE_HEADS; n++)
        if (n < heads && a.from.data != a.to.data)
            rope_store(a, out + n * a.to.head, rope_load<T, WIDTH>(a, in + n * a.from.head));
}

template <class T, int WIDTH>
__global__ void __launch_bounds__(ROPE_THREADS)
    rope_kernel(const __grid_constant__ loam_rope r, const __grid_constant__ rope_frequencies frequencies,
                const __grid_constant__ rope_arrays a)
{
    const rope_items<WIDTH> items(r);
    const int64_t n = (int64_t)blockIdx.x * ROPE_THREADS + threadIdx.x, token = n / items.of_heads(r),
                  own = n % items.of_heads(r), group = own / (items.planes + items.rest),
                  word = own % (items.planes + items.rest), head = group * ROPE_HEADS, heads = r.heads - head;
    if (token >= r.batch * r.tokens) return;
    const int64_t b = token / r.tokens, t = token % r.tokens, in = ROPE_AT(&a.from, b, head, t),
                  out = ROPE_AT(&a.to, b, head, t);
    if (word >= items.planes) {
        const int64_t c = r.dim + (word - items.planes) * WIDTH;
        rope_copy<T, WIDTH>(a, heads, in + c, out + c);
        return;
    }
    const rope_plane at = rope_plane_of(&r, word * WIDTH);
    rope_word<T, WIDTH> x[ROPE_HEADS], y[ROPE_HEADS];
#pragma unroll
    for (int h = 0; h < ROPE_HEADS; h++) {
        if (h >= heads) continue;
        x[h] = rope_load<T, WIDTH>(a, in + h * a.from.head + at.x);
        y[h] = rope_load<T, WIDTH>(a, in + h * a.from.head + at.y);
    }
    const rope_turn<T, WIDTH> turn = rope_turn_of<T, WIDTH>(r, frequencies, rope_position(&r, b, t),
                                                            word * WIDTH);
#pragma unroll
    for (int h = 0; h < ROPE_HEADS; h++) {
        if (h >= heads) continue;
        rope_rotate(turn, x[h], y[h]);
        rope_store(a, out + h * a.to.head + at.x, x[h]);
        rope_store(a, out + h * a.to.head + at.y, y[h]);
    }
}

template <class T, int WIDTH>
static loam_status rope_launch(const loam_rope *r, const rope_frequencies *frequencies, const rope_arrays *a,
                               loam_error *error)
{
    const int64_t threads = r->batch * r->tokens * rope_items<WIDTH>(*r).of_heads(*r),
                  blocks = (threads + ROPE_THREADS - 1) / ROPE_THREADS;
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x tokens x heads: too large for one launch");
    rope_kernel<T, WIDTH>
        <<<(unsigned)blocks, ROPE_THREADS, 0, (cudaStream_t)r->stream>>>(*r, *frequencies, *a);
    return cuda_launched("rope_kernel", error);
}

/* Whether any WIDTH planes that begin at a multiple of WIDTH are two words of WIDTH elements, and WIDTH
 * channels that are not rotated one, at addresses that are multiples of a word. */
static bool rope_in_words(const loam_rope *r, const rope_arrays *a, int64_t width)
{
    const size_t word = (size_t)width * dtype_bytes(r->dtype);
    const int64_t strides = a->from.batch | a->from.head | a->from.token | a->to.batch | a->to.head |
                            a->to.token;
    return r->layout == LOAM_ROPE_HALF && r->dim % (2 * width) == 0 && r->channels % width == 0 &&
           strides % width == 0 && (uintptr_t)a->from.data % word == 0 && (uintptr_t)a->to.data % word == 0;
}

/* By the widest words there can be, of WIDTH elements or less. */
template <class T, int WIDTH>
static loam_status rope_launch_widest(const loam_rope *r, const rope_frequencies *frequencies,
                                      const rope_arrays *a, loam_error *error)
{
    if constexpr (WIDTH > 1)
        if (!rope_in_words(r, a, WIDTH)) return rope_launch_widest<T, WIDTH / 2>(r, frequencies, a, error);
    return rope_launch<T, WIDTH>(r, frequencies, a, error);
}

loam_status rope_apply_cuda(const loam_rope *r, const rope_frequencies *frequencies,
                            const loam_const_view *from, const loam_view *to, loam_error *error)
{
    const rope_arrays a = { *from, *to };
    switch (r->dtype) {
    case LOAM_F64: return rope_launch_widest<double, 2>(r, frequencies, &a, error);
    case LOAM_F32: return rope_launch_widest<float, 4>(r, frequencies, &a, error);
    case LOAM_BF16: return rope_launch_widest<__nv_bfloat16, 8>(r, frequencies, &a, error);
    case LOAM_F16: return rope_launch_widest<__half, 8>(r, frequencies, &a, error);
    }
    return loam_fail(error, LOAM_EARG, "dtype: %d is none of its 4 values", (int)r->dtype);
}
