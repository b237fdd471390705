/* SPDX-License-Identifier: MIT
 * Conversion of contiguous elements of any 32- or 16-bit type to and from float. */
#ifndef LOAM_SIMD_CONVERT_H
#define LOAM_SIMD_CONVERT_H

#include "src/base/dtype.h"

#if defined __F16C__
#include <immintrin.h>
#endif

static inline void load_f16(float *restrict to, const uint16_t *restrict from, int64_t n)
{
    int64_t c = 0;
#if defined __F16C__
    for (; c + 8 <= n; c += 8)
        _mm256_storeu_ps(to + c, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + c))));
#endif
    for (; c < n; c++)
        to[c] = float_from_f16(from[c]);
}

/* to[0 .. n) = elements [at, at + n) of data. */
static inline void load_floats(float *restrict to, const void *restrict data, loam_dtype dtype, int64_t at,
                               int64_t n)
{
    if (dtype == LOAM_F32) {
        memcpy(to, (const float *)data + at, (size_t)n * sizeof(float));
    } else if (dtype == LOAM_F16) {
        load_f16(to, (const uint16_t *)data + at, n);
    } else {
        const uint16_t *from = (const uint16_t *)data + at;
        for (int64_t c = 0; c < n; c++)
            to[c] = float_from_bf16(from[c]);
    }
}

static inline void store_floats(void *restrict data, loam_dtype dtype, int64_t at, const float *restrict from,
                                int64_t n)
{
    if (dtype == LOAM_F32) {
        memcpy((float *)data + at, from, (size_t)n * sizeof(float));
        return;
    }
    uint16_t *to = (uint16_t *)data + at;
    if (dtype == LOAM_F16)
        for (int64_t c = 0; c < n; c++)
            to[c] = f16_from_float(from[c]);
    else
        for (int64_t c = 0; c < n; c++)
            to[c] = bf16_from_float(from[c]);
}

#endif
