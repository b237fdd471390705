/* SPDX-License-Identifier: MIT
 * Weights as operands of products where float16 may not hold them: they then are scaled by powers of two,
 * 2^-fall. bfloat16 has the range of float, and needs none. */
#ifndef LOAM_LOCAL_HOPPER_OPERAND_FALL_CUH
#define LOAM_LOCAL_HOPPER_OPERAND_FALL_CUH

#include "src/gpu/hopper.cuh"
#include "src/local/cuda/backward.h"
#include "src/local/cuda/common.cuh"

#include <cfloat>

/* The pass over keys raises weights p of float16 by so many powers of 2: what then is smaller than 2^-38 is
 * lost, where without it that would be 2^-24. */
enum { KEY_RAISE = 14 };

/* The falls of a backward pass, [2][batch][heads_kv]: 2^-fall keeps 2^14 ds, and 2^14 p (1 - u), within the
 * range of float16 for all rows that see a head's keys. They lie where LLA has its states, whose pass over
 * keys in float16 is that of cuda/. Behind them: how many blocks of the pass over rows have had infinite
 * operands, and their numbers, where each of the two consumers of a block may have put it. */
static __host__ __device__ __forceinline__ int64_t key_falls(const loam_problem &p)
{
    return 2 * p.batch * p.heads_kv;
}
static inline size_t key_falls_and_blocks(const loam_problem &p)
{
    return (size_t)key_falls(p) + 1 + 2 * local_row_states(&p);
}
static __device__ __forceinline__ int32_t *overflow_list(const loam_problem &p, const row_arrays &arrays)
{
    return arrays.state + key_falls(p);
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

/* lse to base 2. Where it is large so are rounding errors of scores, which must not make p exceed 1: it is
 * raised by as much, so that no pair needs a bound. */
static __device__ __forceinline__ float lse_of_weights(float lse)
{
    const float lse2 = lse * 1.44269504f, size = fabsf(lse2);
    return size < 4096 ? lse2 : lse2 + size * 0x1p-22f;
}

/* The smallest number that float16 rounds to infinity. */
#define HALF_INFINITY 65520.0f

/* The power of two which makes the largest number of a row 2^10 to 2^11. */
static __device__ __forceinline__ float half_fall(float largest)
{
    return __uint_as_float((264u << 23) - (__float_as_uint(fminf(largest, FLT_MAX)) & 0x7f800000u));
}

#endif
