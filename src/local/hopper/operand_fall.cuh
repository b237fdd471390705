/* SPDX-License-Identifier: MIT
 * Weights as operands of products where float16 may not hold them: they then are scaled by powers of two,
 * 2^-fall. bfloat16 has the range of float, and needs none. */
#ifndef LOAM_LOCAL_HOPPER_OPERAND_FALL_CUH
#define LOAM_LOCAL_HOPPER_OPERAND_FALL_CUH

#include "src/gpu/hopper.cuh"
#include "src/local/cuda/backward.h"
#include "src/local/cuda/common.cuh"

#include <cfloat>

/* The falls of a backward pass, [2][batch][heads_kv]: 2^-fall keeps 2^14 ds, and 2^14 p (1 - u), within the
 * range of float16 for all rows that see a head's keys. They lie where LLA has
 * its states, whose pass over keys in float16 is that of cuda/. */
static __host__ __device__ __forceinline__ int64_t key_falls(const loam_problem &p)
{
    return 2 * p.batch * p.heads_kv;
}

/* The largest of the numbers of a row; the four lanes of the row call it. */
template <int BLOCKS>
static __device__ __forceinline__ float row_largest(const float (&x)[BLOCKS][4], int row)
{
    float largest = 0;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
        largest = fmaxf(largest, fmaxf(fabsf(x[n][2 * row]), fabsf(x[n][2 * row + 1])));
    return quad_max(largest);
}

/* The larger magnitudes of two pairs of float16, NaN where either is; their signs mean nothing. */
static __device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b)
{
    uint32_t larger;
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

/* Is any of these operands of float16 2^15 or larger, or NaN? */
template <int STEPS> static __device__ __forceinline__ bool reaches_half_limit(const uint32_t (&w)[STEPS][4])
{
    uint32_t most[4] = { w[0][0], w[0][1], w[0][2], w[0][3] };
#pragma unroll
    for (int k = 1; k < STEPS; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            most[e] = larger_halves(most[e], w[k][e]);
    }
    const uint32_t all = larger_halves(larger_halves(most[0], most[1]), larger_halves(most[2], most[3]));
    /* An exponent of 30 or 31 carries into the place of the sign. */
    return (((all & 0x7fff7fffu) + 0x08000800u) & 0x80008000u) != 0;
}

/* The power of two which makes the largest number of a row 2^10 to 2^11. */
static __device__ __forceinline__ float half_fall(float largest)
{
    return __uint_as_float((264u << 23) - (__float_as_uint(fminf(largest, FLT_MAX)) & 0x7f800000u));
}

#endif
