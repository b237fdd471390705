/* SPDX-License-Identifier: MIT
 * Pairs of bf16 in 32 bits and vectors of eight in 16 bytes, as float32 and back. */
#ifndef LOAM_RECURRENT_HOPPER_BF16_CUH
#define LOAM_RECURRENT_HOPPER_BF16_CUH

#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>

/* Two numbers rounded to bf16, x in the low half; and each half of such a pair. */
static __device__ __forceinline__ uint32_t pack_bf16(float x, float y)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
}
static __device__ __forceinline__ float unpack_first(uint32_t pair) { return __uint_as_float(pair << 16); }
static __device__ __forceinline__ float unpack_second(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

static __device__ __forceinline__ uint4 pack_8(const float (&x)[8])
{
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                      pack_bf16(x[6], x[7]));
}

static __device__ __forceinline__ void unpack_8(float (&x)[8], const uint4 &bits)
{
    const uint32_t pairs[4] = { bits.x, bits.y, bits.z, bits.w };
#pragma unroll
    for (int n = 0; n < 4; n++)
        x[2 * n] = unpack_first(pairs[n]), x[2 * n + 1] = unpack_second(pairs[n]);
}

#endif
