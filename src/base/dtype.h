/* SPDX-License-Identifier: MIT
 * Loads and stores of one array element of any type, as double. Rounding is to nearest, ties to even. */
#ifndef LOAM_BASE_DTYPE_H
#define LOAM_BASE_DTYPE_H

#include "loam.h"
#include "src/base/inline.h"

#include <string.h>

LOAM_INLINE size_t dtype_bytes(loam_dtype dtype) { return dtype == LOAM_F64 ? 8 : dtype == LOAM_F32 ? 4 : 2; }

/* The type of what loam.h calls `real` (parameters and statistics) for arrays of this dtype. */
LOAM_INLINE loam_dtype dtype_real(loam_dtype dtype) { return dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32; }

LOAM_INLINE float float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

LOAM_INLINE uint32_t bits_from_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

LOAM_INLINE float float_from_bf16(uint16_t x) { return float_from_bits((uint32_t)x << 16); }

LOAM_INLINE uint16_t bf16_from_float(float x)
{
    const uint32_t bits = bits_from_float(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

LOAM_INLINE float float_from_f16(uint16_t x)
{
    const uint32_t sign = (uint32_t)(x & 0x8000u) << 16, rest = x & 0x7fffu;
    if (rest >= 0x7c00u) return float_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    /* The factor 2^112 changes the exponent bias from 15 to 127 and makes subnormal numbers normal. */
    return float_from_bits(bits_from_float(float_from_bits(rest << 13) * 0x1p112f) | sign);
}

LOAM_INLINE uint16_t f16_from_float(float x)
{
    const uint32_t bits = bits_from_float(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) return (uint16_t)(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* subnormal: adding 1/2 rounds at 2^-24, the spacing of f16 here */
        return (uint16_t)(sign | (bits_from_float(float_from_bits(magnitude) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
}

LOAM_INLINE double element_load(const void *data, loam_dtype dtype, int64_t index)
{
    switch (dtype) {
    case LOAM_F64: return ((const double *)data)[index];
    case LOAM_F32: return (double)((const float *)data)[index];
    case LOAM_BF16: return (double)float_from_bf16(((const uint16_t *)data)[index]);
    case LOAM_F16: return (double)float_from_f16(((const uint16_t *)data)[index]);
    }
    return 0;
}

/* 16-bit types are rounded twice, through float: the error stays within 1/2 ulp (1 + 2^-13). */
LOAM_INLINE void element_store(void *data, loam_dtype dtype, int64_t index, double x)
{
    switch (dtype) {
    case LOAM_F64: ((double *)data)[index] = x; break;
    case LOAM_F32: ((float *)data)[index] = (float)x; break;
    case LOAM_BF16: ((uint16_t *)data)[index] = bf16_from_float((float)x); break;
    case LOAM_F16: ((uint16_t *)data)[index] = f16_from_float((float)x); break;
    }
}

#endif
