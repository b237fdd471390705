/* SPDX-License-Identifier: MIT
 *
 * PREPARE, the first stage of the chunk kernels on Hopper: everything in a chunk that does not depend on the
 * state, for all chunks in parallel. For tokens i and j of a chunk, pre_i is the inclusive prefix sum of the
 * log decays up to i, suf_j the sum over the tokens after j, and seg_ij the sum over j + 1 .. i:
 *
 *     P_ij = q_i . (k_j e^seg_ij) for j <= i,   A_ij = k_i . (k_j e^seg_ij) for j < i
 *     q_in = q e^pre,   k_out = k e^suf,   additive: u_hat = beta v
 *     delta rule: Linv = (I + Diag(beta) A)^-1,   u_hat = Linv Diag(beta) v,   w = Linv Diag(beta) (k e^pre)
 *
 * A thread block computes one chunk of one value head; each of its four warps has 16 tokens. This file has
 * what the kernels share. They are in recurrent/hopper/prepare.cu (one gate per token, or none) and
 * recurrent/hopper/prepare_channels.cu (gates per channel).
 */
#ifndef LOAM_RECURRENT_HOPPER_PREPARE_CUH
#define LOAM_RECURRENT_HOPPER_PREPARE_CUH

#include "src/gpu/launch.cuh"
#include "src/recurrent/hopper/bf16.cuh"
#include "src/recurrent/hopper/chunks.cuh"
#include "src/recurrent/hopper/decays.cuh"
#include "src/recurrent/hopper/inverse.cuh"

enum { PREPARE_THREADS = 128 };

/* ------------------------------------------------------------------ 8 channels of a row */

struct float8 {
    float x[8];
};

static __device__ __forceinline__ float8 unpack(const uint4 &bits)
{
    float8 p;
    unpack_8(p.x, bits);
    return p;
}

static __device__ __forceinline__ uint4 pack(const float8 &p) { return pack_8(p.x); }

static __device__ __forceinline__ void multiply(float8 &p, float by)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        p.x[n] *= by;
}

static __device__ __forceinline__ uint4 scaled(const uint4 &bits, float factor)
{
    float8 p = unpack(bits);
    multiply(p, factor);
    return pack(p);
}

/* The lo part of p, whose hi part is `hi`. */
static __device__ __forceinline__ uint4 lo_part(const float8 &p, const uint4 &hi)
{
    float8 lo = unpack(hi);
#pragma unroll
    for (int n = 0; n < 8; n++)
        lo.x[n] = p.x[n] - lo.x[n];
    return pack(lo);
}

/* In float64: squares of bf16 numbers leave the range of float32. */
static __device__ __forceinline__ double norm2_of(const uint4 &bits)
{
    const float8 p = unpack(bits);
    double sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
        sum += (double)p.x[n] * (double)p.x[n];
    return sum;
}

/* 1 / |x|, and 0 for x = 0, as power * mantissa. `power` is a power of two, so that bf16 times `power` is
 * exact; `mantissa` is about 1. */
struct unit_factor {
    float power, mantissa;
};

static __device__ __forceinline__ unit_factor unit_factor_of(double norm2)
{
    const float factor = norm2 > 0 ? (float)fmin(rsqrt(norm2), 0x1p127) : 0;
    const float power = fmaxf(__uint_as_float(__float_as_uint(factor) & 0x7f800000u), 0x1p-126f);
    return { power, factor / power };
}

/* elu(x) + 1 */
static __device__ __forceinline__ uint4 elu(const uint4 &bits)
{
    float8 p = unpack(bits);
#pragma unroll
    for (int n = 0; n < 8; n++)
        p.x[n] = p.x[n] > 0 ? p.x[n] + 1 : exp_fast(p.x[n]);
    return pack(p);
}

/* ------------------------------------------------------------------ arrays over slots */

template <int DIM>
static __device__ __forceinline__ uint4 *slot_vector(__nv_bfloat16 *array, const chunk_place &chunk, int r,
                                                     int c)
{
    return (uint4 *)(array + (chunk.slot * CHUNK_TOKENS + r) * DIM + c);
}

/* Lane t of four, with x[n] before, has x[n] of lane n after: what was x[t] there. */
static __device__ __forceinline__ void transpose_lanes(uint32_t (&x)[4])
{
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t &low = x[step == 1 ? 2 * m : m], &high = x[step == 1 ? 2 * m + 1 : m + 2];
            const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? low : high, step);
            low = upper ? got : low, high = upper ? high : got;
        }
    }
}

/* Stores 64 columns of an accumulator, the warp's 16 rows, to an array over slots: the hi part, with LO the
 * lo part. Four lanes that have a row exchange their pairs of columns, so that each has 8. */
template <int DIM, bool LO = false>
static __device__ __forceinline__ void store_product(__nv_bfloat16 *array, const chunk_place &chunk,
                                                     const float (&out)[8][4], int column)
{
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint4 *to = slot_vector<DIM>(array, chunk, row, column + 8 * t);
#pragma unroll
    for (int n = 0; n < 8; n += 4) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t x[4];
#pragma unroll
            for (int m = 0; m < 4; m++) {
                uint32_t part[2];
                split_pair(part, out[n + m][2 * half], out[n + m][2 * half + 1]);
                x[m] = part[LO];
            }
            transpose_lanes(x);
            to[half * DIM + n] = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

/* ------------------------------------------------------------------ values */

static __device__ __forceinline__ void load_beta(float *beta, const loam_args &a, const chunk_place &chunk)
{
    const int t = threadIdx.x;
    if (t < CHUNK_TOKENS) {
        const loam_const_view &v = a.beta;
        beta[t] = t < chunk.tokens
                      ? ((const float *)v.data)[RECURRENT_AT(v, chunk.b, chunk.h, chunk.first + t)]
                      : 0;
    }
}

/* array = weight v, by tokens. */
template <int DIM>
static __device__ __forceinline__ void store_weighed(__nv_bfloat16 *array, const recurrent_chunks &chunks,
                                                     const chunk_place &chunk, const float *weight)
{
    const chunk_rows rows = chunk_rows_of<DIM>(chunks.v, chunk);
#pragma unroll 4
    for (int e = threadIdx.x; e < CHUNK_TOKENS * (DIM / 8); e += PREPARE_THREADS) {
        const int r = e / (DIM / 8), c = e % (DIM / 8) * 8;
        uint4 out = make_uint4(0, 0, 0, 0);
        if (r < chunk.tokens && c < rows.channels)
            out = scaled(*(const uint4 *)(rows.first + r * rows.stride + c), weight[r]);
        *slot_vector<DIM>(array, chunk, r, c) = out;
    }
}

/* The WY representation of the chunk: inverts L and stores Linv, u_hat and w. k, v: tiles in shared memory,
 * complete and fenced. k_factor[j] is the factor from row j of the tiles of k to beta k e^pre. LO: k_lo has
 * the lo part of k. */
template <int DIM, bool LO>
static __device__ __forceinline__ void store_wy(const recurrent_chunks &chunks, const chunk_place &chunk,
                                                float *square, const float *beta, const float *k_factor,
                                                const __nv_bfloat16 *k, const __nv_bfloat16 *k_lo,
                                                const __nv_bfloat16 *v)
{
    invert(square);
    if (chunks.inverse) {
#pragma unroll 4
        for (int e = threadIdx.x; e < TILE_SIDE * TILE_SIDE / 4; e += PREPARE_THREADS) {
            const int r = e / (TILE_SIDE / 4), c = e % (TILE_SIDE / 4) * 4;
            *(float4 *)(chunks.inverse + chunk.slot * TILE_SIDE * TILE_SIDE + r * TILE_SIDE +
                        c) = *(const float4 *)(square + r * SQUARE_PITCH + c);
        }
    }
    float out[1][8][4];
    weights_operand<2> m;
    scale_square(m, square, beta);
#pragma unroll 1
    for (int c = 0; c < DIM; c += TILE_SIDE) {
        multiply_linv<false>(out, m, v + c * TILE_SIDE, NULL);
        store_product<DIM>(chunks.values, chunk, out[0], c);
        store_product<DIM, true>(chunks.values_lo, chunk, out[0], c);
    }
    scale_square(m, square, k_factor);
#pragma unroll 1
    for (int c = 0; c < DIM; c += TILE_SIDE) {
        multiply_linv<LO>(out, m, k + c * TILE_SIDE, k_lo + c * TILE_SIDE);
        store_product<DIM>(chunks.w, chunk, out[0], c);
    }
}

#endif
