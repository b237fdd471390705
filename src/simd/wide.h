/* SPDX-License-Identifier: MIT
 * Vectors of doubles from and to runs of floats, and sums over lanes. */
#ifndef LOAM_SIMD_WIDE_H
#define LOAM_SIMD_WIDE_H

#include "src/simd/table.h"

typedef float vec_half __attribute__((vector_size(VEC_BYTES / 2)));
typedef float vec_half_unaligned __attribute__((vector_size(VEC_BYTES / 2), aligned(4), may_alias));

/* VL64 floats, or the first n and zeros; reads and writes nothing beyond them. */
VEC_INLINE vec64 v64_widen(const float *x, int n)
{
    vec_half half = { 0 };
    if (n == VL64) {
        half = *(const vec_half_unaligned *)(const void *)x;
    } else {
        memcpy(&half, x, (size_t)n * sizeof(float));
    }
    return __builtin_convertvector(half, vec64);
}

VEC_INLINE void v64_narrow(float *x, vec64 v, int n)
{
    const vec_half half = __builtin_convertvector(v, vec_half);
    if (n == VL64) {
        *(vec_half_unaligned *)(void *)x = half;
    } else {
        memcpy(x, &half, (size_t)n * sizeof(float));
    }
}

/* The sum over the lanes, in all lanes. */
VEC_INLINE vec v_total(vec x)
{
#if VEC_BYTES == 64
    x = SUM_8(x, x);
#endif
#if VEC_BYTES >= 32
    x = SUM_4(x, x);
#endif
    x = SUM_2(x, x);
    return SUM_1(x, x);
}

#if VEC_BYTES == 64
#define SUM64_4(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + \
     __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15))
#define SUM64_2(a, b) \
    (__builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + \
     __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15))
#define SUM64_1(a, b) \
    (__builtin_shufflevector(a, b, 0, 8, 2, 10, 4, 12, 6, 14) + \
     __builtin_shufflevector(a, b, 1, 9, 3, 11, 5, 13, 7, 15))
#elif VEC_BYTES == 32
#define SUM64_2(a, b) (__builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7))
#define SUM64_1(a, b) (__builtin_shufflevector(a, b, 0, 4, 2, 6) + __builtin_shufflevector(a, b, 1, 5, 3, 7))
#else
#define SUM64_1(a, b) (__builtin_shufflevector(a, b, 0, 2) + __builtin_shufflevector(a, b, 1, 3))
#endif

/* Lane e of the result is the sum over the lanes of x[e], in the same order for each e. Overwrites x. */
VEC_INLINE vec64 v64_sums(vec64 x[VL64])
{
#if VEC_BYTES == 64
#pragma GCC unroll 4
    for (int e = 0; e < 4; e++) {
        x[e] = SUM64_4(x[e], x[e + 4]);
    }
#endif
#if VEC_BYTES >= 32
#pragma GCC unroll 2
    for (int e = 0; e < 2; e++) {
        x[e] = SUM64_2(x[e], x[e + 2]);
    }
#endif
    return SUM64_1(x[0], x[1]);
}

#endif
