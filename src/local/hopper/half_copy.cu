/* SPDX-License-Identifier: MIT
 * The copy of keys and values in fp16: a kernel that finds the extremes of each head, one that converts. */
#include "src/local/hopper/half_copy.cuh"

#include "src/gpu/hopper.cuh"
#include "src/local/cuda/launch.cuh"
#include "src/local/hopper/maps.cuh"
#include "src/local/hopper/tile.cuh"

enum {
    COPY_THREADS = 256,
    COPY_TOKENS = 128, /* of a thread block */
    PIECE = 8          /* elements that a thread moves at once */
};

/* Beyond these powers of two a unit, or its square in the ridge, would leave the range of float. */
#define UNIT_LEAST 0x1p-40f
#define UNIT_MOST 0x1p40f
/* A row whose largest element is below this share of the head's largest has lost digits. */
#define SPAN_LEAST 0x1p-24f

struct copy_tokens {
    const uint16_t *from;
    __half *to;
    int64_t sequence, h, from_stride, count;
    int channels;        /* of the source; the copy has 0 beyond them */
    bool values, is_f16; /* is_f16: of float16, else of bfloat16 */
};

/* The pieces of COPY_TOKENS tokens of a head. */
static __host__ __device__ __forceinline__ int64_t head_pieces(const loam_problem &p)
{
    return (p.len_kv + COPY_TOKENS - 1) / COPY_TOKENS;
}

/* The tokens of this thread block: pieces of a head follow each other, then heads, keys before values,
 * then sequences. */
static __device__ __forceinline__ copy_tokens copy_tokens_of(const half_copy &copy, const loam_problem &p,
                                                             const loam_args &a)
{
    copy_tokens x;
    const int64_t pieces = head_pieces(p), head = blockIdx.x / pieces % (2 * p.heads_kv);
    x.sequence = blockIdx.x / pieces / (2 * p.heads_kv), x.values = head >= p.heads_kv;
    x.h = head - (x.values ? p.heads_kv : 0);
    const local_seq s = local_seq_at(&p, &a, x.sequence);
    const loam_const_view &from = x.values ? a.v : a.k, &to = x.values ? copy.values : copy.keys;
    const int64_t first = blockIdx.x % pieces * COPY_TOKENS, left = s.nk - first;
    x.count = left < COPY_TOKENS ? left : COPY_TOKENS;
    x.from = (const uint16_t *)from.data + LOCAL_AT(from, s.b, x.h, s.k0 + first);
    x.to = (__half *)to.data + LOCAL_AT(to, s.b, x.h, s.k0 + first);
    x.is_f16 = p.dtype == LOAM_F16, x.from_stride = from.token,
    x.channels = (int)(x.values ? p.dim_v : p.dim_qk);
    return x;
}

/* The elements that a thread has of these tokens: PIECE of each of `most` tokens. The DIM / PIECE threads
 * that share a token are neighbours in a warp. */
template <int DIM> struct copy_pieces {
    static constexpr int share = DIM / PIECE, step = COPY_THREADS / share, most = COPY_TOKENS / step;
    const int channel = (int)threadIdx.x % share * PIECE, first = (int)threadIdx.x / share;
    const bool is_f16;
    uint4 words[most];

    __device__ __forceinline__ copy_pieces(const copy_tokens &x) : is_f16(x.is_f16)
    {
#pragma unroll
        for (int n = 0; n < most; n++) {
            const int t = first + n * step;
            words[n] = t < x.count ? piece(x.from + t * x.from_stride, x.channels) : make_uint4(0, 0, 0, 0);
        }
    }
    /* The piece of a row of this many channels. */
    __device__ __forceinline__ uint4 piece(const uint16_t *row, int channels) const
    {
        if (channel + PIECE <= channels) return *(const uint4 *)(row + channel);
        uint32_t part[PIECE / 2] = {};
#pragma unroll
        for (int c = 0; c < PIECE; c++)
            if (channel + c < channels) part[c / 2] |= row[channel + c] << c % 2 * 16;
        return make_uint4(part[0], part[1], part[2], part[3]);
    }
    __device__ __forceinline__ int token(int n) const { return first + n * step; }
    __device__ __forceinline__ void unpack(float2 (&pair)[4], int n) const
    {
        pair[0] = unpack_16_bits(words[n].x, is_f16), pair[1] = unpack_16_bits(words[n].y, is_f16);
        pair[2] = unpack_16_bits(words[n].z, is_f16), pair[3] = unpack_16_bits(words[n].w, is_f16);
    }
};

/* The largest |x| of a token, and its squared norm, in all threads that share it. */
template <int DIM>
static __device__ __forceinline__ void token_extremes(const float2 (&pair)[4], float &top, float &norm2)
{
    top = norm2 = 0;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        top = fmaxf(top, fmaxf(fabsf(pair[n].x), fabsf(pair[n].y)));
        norm2 += pair[n].x * pair[n].x + pair[n].y * pair[n].y;
    }
    if (!(norm2 < INFINITY)) top = INFINITY; /* NaN too */
#pragma unroll
    for (int step = 1; step < DIM / PIECE; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
        norm2 += __shfl_xor_sync(0xffffffffu, norm2, step);
    }
}

template <int DIM>
__global__ void __launch_bounds__(COPY_THREADS)
    half_span_kernel(const half_copy copy, const __grid_constant__ loam_problem p,
                     const __grid_constant__ loam_args a)
{
    launch_dependents();
    const copy_tokens x = copy_tokens_of(copy, p, a);
    const copy_pieces<DIM> mine(x);
    float most = 0, most2 = 0;
#pragma unroll
    for (int n = 0; n < mine.most; n++) {
        float2 pair[4];
        float top, norm2;
        mine.unpack(pair, n);
        token_extremes<DIM>(pair, top, norm2);
        most = fmaxf(most, top), most2 = fmaxf(most2, norm2);
    }
    half_span &span = copy.span[x.sequence * p.heads_kv + x.h];
    const unsigned largest = __reduce_max_sync(0xffffffffu, __float_as_uint(most)),
                   largest2 = __reduce_max_sync(0xffffffffu, __float_as_uint(most2));
    if (threadIdx.x % 32 != 0) return;
    atomicMax(x.values ? &span.value : &span.key, largest);
    if (!x.values) atomicMax(&span.norm2, largest2);
}

template <int DIM>
__global__ void __launch_bounds__(COPY_THREADS)
    half_copy_kernel(const half_copy copy, const __grid_constant__ loam_problem p,
                     const __grid_constant__ loam_args a)
{
    launch_dependents();
    const copy_tokens x = copy_tokens_of(copy, p, a);
    const copy_pieces<DIM> mine(x);
    half_span &span = copy.span[x.sequence * p.heads_kv + x.h];
    wait_for_previous_launch();
    const float largest = __uint_as_float(x.values ? span.value : span.key),
                inverse = power_inverse(half_unit(__float_as_uint(largest)));
    bool wide = largest > 0 && !(largest > UNIT_LEAST && largest < UNIT_MOST);
#pragma unroll
    for (int n = 0; n < mine.most; n++) {
        float2 pair[4];
        float top, norm2;
        mine.unpack(pair, n);
        token_extremes<DIM>(pair, top, norm2);
        wide |= top > 0 && top < SPAN_LEAST * largest;
        if (mine.token(n) >= x.count) continue;
        *(uint4 *)(x.to + (int64_t)mine.token(n) * DIM +
                   mine.channel) = make_uint4(pack_pair<__half>(pair[0].x * inverse, pair[0].y * inverse),
                                              pack_pair<__half>(pair[1].x * inverse, pair[1].y * inverse),
                                              pack_pair<__half>(pair[2].x * inverse, pair[2].y * inverse),
                                              pack_pair<__half>(pair[3].x * inverse, pair[3].y * inverse));
    }
    if (__any_sync(0xffffffffu, wide) && threadIdx.x % 32 == 0) atomicMax(&span.wide, 1u);
}

/* The view of a dense array of all keys, or values, from `data` on. */
static loam_const_view copy_view(const loam_problem *p, const void *data)
{
    const int64_t tokens = extents_of(p).keys;
    return loam_dense(data, p->heads_kv, tokens, local_padded_dim(p));
}

half_copy half_copy_carve(const loam_problem *p, const solve_work *work, arena *pool)
{
    const extents n = extents_of(p);
    const size_t elements = size_mul(size_mul((size_t)n.batch, (size_t)n.keys),
                                     (size_t)p->heads_kv * (size_t)local_padded_dim(p));
    half_copy out;
    out.span = work->span;
    out.k = (__half *)arena_take(pool, elements, sizeof(__half));
    out.v = (__half *)arena_take(pool, elements, sizeof(__half));
    out.keys = copy_view(p, out.k), out.values = copy_view(p, out.v);
    return out;
}

loam_status half_copy_make(const half_copy *copy, const loam_problem *p, const loam_args *a,
                           loam_error *error)
{
    const int64_t blocks = head_pieces(*p) * 2 * p->heads_kv * p->batch;
    return by_dim(p, [&](auto dim) {
        constexpr int DIM = decltype(dim)::value;
        TRY(cuda_launch("half_span_kernel", half_span_kernel<DIM>, blocks, COPY_THREADS, 0, a->stream, false,
                        error, *copy, *p, *a));
        return cuda_launch("half_copy_kernel", half_copy_kernel<DIM>, blocks, COPY_THREADS, 0, a->stream,
                           true, error, *copy, *p, *a);
    });
}
