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
 * range of float16 for all rows that see a head's keys. They lie where LLA, which has no row for float16,
 * has its states. */
static __host__ __device__ __forceinline__ int64_t key_falls(const loam_problem &p)
{
    return 2 * p.batch * p.heads_kv;
}

/* The same as named_barrier_sync; tells whether x is true in any of the threads. */
template <int THREADS> static __device__ __forceinline__ bool named_barrier_or(int barrier, bool x)
{
    int any;
    asm volatile("{\n"
                 ".reg .pred own, all;\n"
                 "setp.ne.b32 own, %1, 0;\n"
                 "bar.red.or.pred all, %2, %3, own;\n"
                 "selp.b32 %0, 1, 0, all;\n"
                 "}\n"
                 : "=r"(any)
                 : "r"((int)x), "r"(barrier), "n"(THREADS)
                 : "memory");
    return any != 0;
}

/* Where numbers of an operand are larger than this, its rows are scaled. */
static __device__ __forceinline__ __half most_of_half() { return __float2half_rn(32768.0f); }

/* The largest of the thread's numbers, over both of its rows. */
template <int STEPS>
static __device__ __forceinline__ __half2 operand_top(const weights_operand<1, STEPS, __half> &w)
{
    __half2 top = { 0, 0 };
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            __half2 pair;
            memcpy(&pair, &w.part[0][k][e], sizeof pair);
            top = __hmax2(top, __habs2(pair));
        }
    }
    return top;
}

/* The warpgroup decides as one, by the named barrier: its products must. */
static __device__ __forceinline__ bool any_beyond_half(const __half2 &top, int barrier)
{
    return named_barrier_or<THREADS>(barrier, __hgt(top.x, most_of_half()) || __hgt(top.y, most_of_half()));
}

template <int BLOCKS>
static __device__ __forceinline__ float row_largest(const float (&x)[BLOCKS][4], int row)
{
    float largest = 0;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
        largest = fmaxf(largest, fmaxf(fabsf(x[n][2 * row]), fabsf(x[n][2 * row + 1])));
    return largest;
}

/* by[row]: what makes the row's largest number 2^10 to 2^11 where it is too large, else 1; that depends on
 * the row alone. `largest`: of the thread's numbers in each row. */
static __device__ __forceinline__ void row_falls(float (&by)[2], const float (&largest)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float top = fminf(quad_max(largest[row]), FLT_MAX);
        by[row] = __hgt(__float2half_rn(top), most_of_half())
                      ? __uint_as_float((264u << 23) - (__float_as_uint(top) & 0x7f800000u))
                      : 1;
    }
}

/* Does the operand w, which is of x, have numbers that are too large in any row of the warpgroup? Both then
 * are scaled by `by`, a number for each of the thread's two rows. `barrier`: a named one of the warpgroup. */
template <int STEPS, int BLOCKS>
static __device__ __forceinline__ bool fall_of_operand(float (&by)[2], weights_operand<1, STEPS, __half> &w,
                                                       float (&x)[BLOCKS][4], int barrier)
{
    if (!any_beyond_half(operand_top(w), barrier)) return false;
    const float largest[2] = { row_largest(x, 0), row_largest(x, 1) };
    row_falls(by, largest);
    scale_rows(x, by);
    split_weights(w, x);
    return true;
}

/* The same for two operands, which are scaled alike. */
template <int STEPS, int BLOCKS>
static __device__ __forceinline__ bool fall_of_operands(float (&by)[2], weights_operand<1, STEPS, __half> &w,
                                                        float (&x)[BLOCKS][4],
                                                        weights_operand<1, STEPS, __half> &v,
                                                        float (&y)[BLOCKS][4], int barrier)
{
    if (!any_beyond_half(__hmax2(operand_top(w), operand_top(v)), barrier)) return false;
    const float largest[2] = { fmaxf(row_largest(x, 0), row_largest(y, 0)),
                               fmaxf(row_largest(x, 1), row_largest(y, 1)) };
    row_falls(by, largest);
    scale_rows(x, by);
    scale_rows(y, by);
    split_weights(w, x);
    split_weights(v, y);
    return true;
}

#endif
