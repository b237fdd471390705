/* SPDX-License-Identifier: MIT
 *
 * Keys and values in fp16, for products whose other operand has fp16 parts, which carry 11 bits each where
 * bf16 parts carry 8. A power of two for each head of a sequence, its unit, brings the largest element to
 * 2^14 .. 2^15: bf16 numbers are then exact down to 2^-31 of the largest one, and rounded at 2^-39 of it.
 */
#ifndef LOAM_LOCAL_HOPPER_HALF_COPY_CUH
#define LOAM_LOCAL_HOPPER_HALF_COPY_CUH

#include "src/base/size.h"
#include "src/local/cuda/solve.cuh"

#define HALF_TOP 0x1p14f

/* In the workspace. k and v: [batch][heads_kv][tokens][DIM] or, of packed sequences,
 * [heads_kv][total][DIM]. */
struct half_copy {
    half_span *span; /* of the solver's work */
    __half *k, *v;
    loam_const_view keys, values;
};

/* The units of a head; the largest norm of a key, in its unit. */
struct half_units {
    float key, value, norm;
    bool wide;
};

/* 1 / x of a power of two, and two to a whole number, within the range of float. */
static __device__ __forceinline__ float power_inverse(float x)
{
    return __uint_as_float(0x7f000000u - __float_as_uint(x));
}
static __device__ __forceinline__ float power_of_two(float exponent)
{
    return __uint_as_float((uint32_t)(127 + (int)exponent) << 23);
}

static __device__ __forceinline__ float half_unit(uint32_t largest)
{
    return magnitude(__uint_as_float(largest)) * (1 / HALF_TOP);
}

static __device__ __forceinline__ half_units half_units_of(const half_copy &copy, const loam_problem &p,
                                                           int64_t sequence, int64_t h_kv)
{
    const half_span span = copy.span[sequence * p.heads_kv + h_kv];
    half_units out;
    out.key = half_unit(span.key), out.value = half_unit(span.value);
    out.norm = sqrtf(__uint_as_float(span.norm2)) * power_inverse(out.key), out.wide = span.wide != 0;
    return out;
}

half_copy half_copy_carve(const loam_problem *p, const solve_work *work, arena *pool);
/* Queues the copy on the stream of the arguments. The kernel that is launched next may overlap with it. */
loam_status half_copy_make(const half_copy *copy, const loam_problem *p, const loam_args *a,
                           loam_error *error);

#endif
