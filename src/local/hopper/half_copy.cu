/* SPDX-License-Identifier: MIT
 * The copy of keys and values in fp16: a kernel that finds the extremes of each head, one that converts. */
#include "src/local/hopper/half_copy.cuh"

#include "src/gpu/launch.cuh"
#include "src/local/hopper/maps.cuh"

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
    const __nv_bfloat16 *from;
    __half *to;
    int64_t sequence, h, from_token, to_token, from_stride, count;
    bool values;
};

/* The pieces of COPY_TOKENS tokens of a head. */
static __host__ __device__ __forceinline__ int64_t head_pieces(const loam_problem &p)
{
    return (p.len_kv + COPY_TOKENS - 1) / COPY_TOKENS;
}

/* The tokens of this thread block: pieces of a head follow each other, then heads, keys before values, then
 * sequences. */
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
    x.from = (const __nv_bfloat16 *)from.data + LOCAL_AT(from, s.b, x.h, s.k0 + first);
    x.to = (__half *)to.data + LOCAL_AT(to, s.b, x.h, s.k0 + first);
    x.from_stride = from.token;
    return x;
}

/* Calls use(token, channel, piece) for the pieces of PIECE elements of these tokens that are this thread's;
 * the DIM / PIECE threads that share a token are neighbours in a warp. */
template <int DIM, class USE> static __device__ __forceinline__ void for_pieces(const copy_tokens &x, USE use)
{
    constexpr int share = DIM / PIECE;
    const int channel = (int)threadIdx.x % share * PIECE;
    constexpr int step = COPY_THREADS / share, most = COPY_TOKENS / step;
    const int first = (int)threadIdx.x / share;
    uint4 words[most]; /* all loads before any use */
#pragma unroll
    for (int n = 0; n < most; n++) {
        const int t = first + n * step;
        words[n] = t < x.count ? *(const uint4 *)(x.from + t * x.from_stride + channel) : uint4{ 0, 0, 0, 0 };
    }
#pragma unroll
    for (int n = 0; n < most; n++) {
        const float2 pair[4] = { unpack_pair<__nv_bfloat16>(words[n].x),
                                 unpack_pair<__nv_bfloat16>(words[n].y),
                                 unpack_pair<__nv_bfloat16>(words[n].z),
                                 unpack_pair<__nv_bfloat16>(words[n].w) };
        use(first + n * step, channel, pair);
    }
}

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
    const copy_tokens x = copy_tokens_of(copy, p, a);
    float most = 0, most2 = 0;
    for_pieces<DIM>(x, [&](int, int, const float2(&pair)[4]) {
        float top, norm2;
        token_extremes<DIM>(pair, top, norm2);
        most = fmaxf(most, top), most2 = fmaxf(most2, norm2);
    });
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
    const copy_tokens x = copy_tokens_of(copy, p, a);
    half_span &span = copy.span[x.sequence * p.heads_kv + x.h];
    const float largest = __uint_as_float(x.values ? span.value : span.key),
                inverse = power_inverse(half_unit(__float_as_uint(largest)));
    bool wide = largest > 0 && !(largest > UNIT_LEAST && largest < UNIT_MOST);
    for_pieces<DIM>(x, [&](int t, int channel, const float2(&pair)[4]) {
        float top, norm2;
        token_extremes<DIM>(pair, top, norm2);
        wide |= top > 0 && top < SPAN_LEAST * largest;
        if (t >= x.count) return;
        uint32_t out[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            out[n] = pack_pair<__half>(pair[n].x * inverse, pair[n].y * inverse);
        *(uint4 *)(x.to + (int64_t)t * DIM + channel) = make_uint4(out[0], out[1], out[2], out[3]);
    });
    if (__any_sync(0xffffffffu, wide) && threadIdx.x % 32 == 0) atomicMax(&span.wide, 1u);
}

/* The view of a dense array of all keys, or values, from `data` on. */
static loam_const_view copy_view(const loam_problem *p, const void *data)
{
    const int64_t tokens = extents_of(p).keys;
    return loam_dense(data, p->heads_kv, tokens, p->dim_qk);
}

half_copy half_copy_carve(const loam_problem *p, arena *pool)
{
    const extents n = extents_of(p);
    const size_t elements = size_mul(size_mul((size_t)n.batch, (size_t)n.keys),
                                     (size_t)p->heads_kv * (size_t)p->dim_qk);
    half_copy out;
    out.span = (half_span *)arena_take(pool, (size_t)p->batch * (size_t)p->heads_kv, sizeof(half_span));
    out.k = (__half *)arena_take(pool, elements, sizeof(__half));
    out.v = (__half *)arena_take(pool, elements, sizeof(__half));
    out.keys = copy_view(p, out.k), out.values = copy_view(p, out.v);
    return out;
}

loam_status half_copy_make(const half_copy *copy, const loam_problem *p, const loam_args *a,
                           loam_error *error)
{
    const cudaStream_t stream = (cudaStream_t)a->stream;
    const unsigned grid = (unsigned)(head_pieces(*p) * 2 * p->heads_kv * p->batch);
    TRY(cuda_check(
        cudaMemsetAsync(copy->span, 0, (size_t)(p->batch * p->heads_kv) * sizeof(half_span), stream),
        "extremes of keys", error));
    auto *const find = p->dim_qk == 64 ? half_span_kernel<64> : half_span_kernel<128>;
    auto *const convert = p->dim_qk == 64 ? half_copy_kernel<64> : half_copy_kernel<128>;
    find<<<grid, COPY_THREADS, 0, stream>>>(*copy, *p, *a);
    TRY(cuda_launched("half_span_kernel", error));
    convert<<<grid, COPY_THREADS, 0, stream>>>(*copy, *p, *a);
    return cuda_launched("half_copy_kernel", error);
}
