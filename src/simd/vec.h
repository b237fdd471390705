/* SPDX-License-Identifier: MIT
 *
 * One vector type for each instruction set, chosen by the flags that a file is compiled with. Arithmetic and
 * comparisons are the vector operators of the compiler; this header adds only what the compiler lacks. Every
 * function is static, so that the linker cannot put an AVX-512 copy of a function into the AVX2 path.
 *
 * A comparison yields a vmask: all bits of a lane set or clear.
 */
#ifndef LOAM_SIMD_VEC_H
#define LOAM_SIMD_VEC_H

#include <math.h>
#include <stdint.h>

#if defined __AVX2__
#include <immintrin.h>
#endif

#if defined __AVX512F__
#define VEC_BYTES 64
#elif defined __AVX2__
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

enum { VL = VEC_BYTES / 4, VL64 = VEC_BYTES / 8 };

typedef float vec __attribute__((vector_size(VEC_BYTES)));
typedef double vec64 __attribute__((vector_size(VEC_BYTES)));
typedef int32_t vmask __attribute__((vector_size(VEC_BYTES)));
typedef float vec_unaligned __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
typedef double vec64_unaligned __attribute__((vector_size(VEC_BYTES), aligned(8), may_alias));
typedef int32_t vmask_unaligned __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));

#define VEC_INLINE static inline __attribute__((always_inline))

/* n rounded up to whole vectors. */
static inline int64_t whole_vectors(int64_t n) { return (n + VL - 1) / VL * VL; }

VEC_INLINE vec v_load(const float *x) { return *(const vec_unaligned *)(const void *)x; }
VEC_INLINE void v_store(float *x, vec v) { *(vec_unaligned *)(void *)x = v; }
VEC_INLINE vec64 v64_load(const double *x) { return *(const vec64_unaligned *)(const void *)x; }
VEC_INLINE void v64_store(double *x, vec64 v) { *(vec64_unaligned *)(void *)x = v; }
VEC_INLINE vec64 v64_set(double x) { return x - (vec64){ 0 }; }
VEC_INLINE vmask v_load_int(const int32_t *x) { return *(const vmask_unaligned *)(const void *)x; }
VEC_INLINE vec v_set(float x) { return x - (vec){ 0 }; }
VEC_INLINE vmask v_set_int(int32_t x) { return x - (vmask){ 0 }; }

/* `yes` in lanes where the mask is set, else `no`. */
VEC_INLINE vec v_select(vmask mask, vec yes, vec no)
{
#if defined __AVX512F__
    return (vec)_mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), (__m512)no, (__m512)yes);
#elif defined __AVX2__
    return (vec)_mm256_blendv_ps((__m256)no, (__m256)yes, (__m256)mask);
#else
    return (vec)((mask & (vmask)yes) | (~mask & (vmask)no));
#endif
}

/* The larger; `no` where either is NaN. */
VEC_INLINE vec v_max(vec yes, vec no)
{
#if defined __AVX512F__
    return (vec)_mm512_max_ps((__m512)yes, (__m512)no);
#elif defined __AVX2__
    return (vec)_mm256_max_ps((__m256)yes, (__m256)no);
#else
    return v_select(yes > no, yes, no);
#endif
}

/* The smaller; `no` where either is NaN. */
VEC_INLINE vec v_min(vec yes, vec no)
{
#if defined __AVX512F__
    return (vec)_mm512_min_ps((__m512)yes, (__m512)no);
#elif defined __AVX2__
    return (vec)_mm256_min_ps((__m256)yes, (__m256)no);
#else
    return v_select(yes < no, yes, no);
#endif
}

/* x clamped to [-limit, limit]; -limit for NaN. */
VEC_INLINE vec v_clamp(vec x, float limit) { return v_min(v_max(x, v_set(-limit)), v_set(limit)); }

VEC_INLINE vec v_abs(vec x) { return (vec)((vmask)x & 0x7fffffff); }

/* e^x for x <= 88, to 1.5 ulp; 0 below -87.3 (just above the underflow of float) and for NaN. */
VEC_INLINE vec v_exp(vec x)
{
    /* Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the float. */
    const vec shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vec p = v_set(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
#if defined __AVX512F__
    const __mmask16 some = _mm512_cmp_ps_mask((__m512)x, (__m512)v_set(-87.3f), _CMP_GT_OQ);
    return (vec)_mm512_maskz_scalef_ps(some, (__m512)p, (__m512)n);
#else
    const vec power = (vec)(((vmask)shifted + 127) << 23);
    return v_select(x > -87.3f, p * power, v_set(0));
#endif
}

/* 2^x for x <= 127, to 3 ulp; 0 for -inf. Cheaper than v_exp with AVX-512, which can cut x at its floor. */
VEC_INLINE vec v_exp2(vec x)
{
#if defined __AVX512F__
    const vec r = (vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
    x = v_max(x, v_set(-127));
    const vec near = (x + 12582912.0f) - 12582912.0f;
    const vec floor = v_select(near > x, near - 1.0f, near), r = x - floor;
#endif
    vec p = v_set(0.00187757669f);
    p = p * r + 0.00898933969f;
    p = p * r + 0.0558263175f;
    p = p * r + 0.240153611f;
    p = p * r + 0.693153083f;
    p = p * r + 0.99999994f;
#if defined __AVX512F__
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
    return p * (vec)((__builtin_convertvector(floor, vmask) + 127) << 23);
#endif
}

/* tanh x to 3 ulp; |x| < 0.3 uses a series, where 1 - e^-2|x| would cancel. */
VEC_INLINE vec v_tanh(vec x)
{
    const vec a = v_abs(x), e = v_exp(a * -2.0f), x2 = x * x;
    const vec far = (1.0f - e) / (1.0f + e);
    const vec series = x +
                       x * x2 *
                           ((-1.0f / 3) + x2 * ((2.0f / 15) + x2 * ((-17.0f / 315) + x2 * (62.0f / 2835))));
    const vec sign = (vec)((vmask)x & INT32_MIN);
    return v_select(a < 0.3f, series, (vec)((vmask)far | (vmask)sign));
}

#endif
