/* SPDX-License-Identifier: MIT
 * Conversion of contiguous floats to and from vectors of doubles, and horizontal sums. */
#ifndef LOAM_SIMD_WIDE_H
#define LOAM_SIMD_WIDE_H

#include "src/simd/table.h"

typedef float vec_half __attribute__((vector_size(VEC_BYTES / 2)));
typedef float vec_half_unaligned __attribute__((vector_size(VEC_BYTES / 2), aligned(4), may_alias));

/* __builtin_convertvector splits a vector of 64 bytes; the intrinsic is one instruction. */
VEC_INLINE vec64 v64_from_half(vec_half x)
{
#if defined __AVX512F__
    return (vec64)_mm512_cvtps_pd((__m256)x);
#else
    return __builtin_convertvector(x, vec64);
#endif
}

VEC_INLINE vec_half v64_to_half(vec64 x)
{
#if defined __AVX512F__
    return (vec_half)_mm512_cvtpd_ps((__m512d)x);
#else
    return __builtin_convertvector(x, vec_half);
#endif
}

/* Loads VL64 floats, or the first n and zeros in the other lanes; reads nothing beyond them. */
VEC_INLINE vec64 v64_widen(const float *x, int n)
{
    vec_half half = { 0 };
    if (n == VL64)
        half = *(const vec_half_unaligned *)(const void *)x;
    else
        memcpy(&half, x, (size_t)n * sizeof(float));
    return v64_from_half(half);
}

VEC_INLINE void v64_narrow(float *x, vec64 v, int n)
{
    const vec_half half = v64_to_half(v);
    if (n == VL64)
        *(vec_half_unaligned *)(void *)x = half;
    else
        memcpy(x, &half, (size_t)n * sizeof(float));
}

/* The horizontal sum, in all lanes. */
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

/* Lane e of the result is the horizontal sum of x[e]; the order of the additions is the same for each e.
 * Overwrites x. */
VEC_INLINE vec64 v64_sums(vec64 x[VL64])
{
#if VEC_BYTES == 64
#pragma GCC unroll 4
    for (int e = 0; e < 4; e++)
        x[e] = SUM64_4(x[e], x[e + 4]);
#endif
#if VEC_BYTES >= 32
#pragma GCC unroll 2
    for (int e = 0; e < 2; e++)
        x[e] = SUM64_2(x[e], x[e + 2]);
#endif
    return SUM64_1(x[0], x[1]);
}

VEC_INLINE double v64_sum(vec64 x)
{
#if VEC_BYTES == 64
    x = SUM64_4(x, x);
#endif
#if VEC_BYTES >= 32
    x = SUM64_2(x, x);
#endif
    return SUM64_1(x, x)[0];
}

/* a . b; width is a multiple of VL64. */
VEC_INLINE double v64_dot(const double *a, const double *b, int64_t width)
{
    vec64 sum = v64_set(0);
    for (int64_t c = 0; c < width; c += VL64)
        sum += v64_load(a + c) * v64_load(b + c);
    return v64_sum(sum);
}

#endif
