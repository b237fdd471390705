/* SPDX-License-Identifier: MIT
 * The two 16-bit formats, from and to double, and, for arrays of them, from and to float. */
#ifndef LOAM_IO_HALF_H
#define LOAM_IO_HALF_H

#include <stdint.h>
#include <string.h>

double f16_to_double(uint16_t bits);
double bf16_to_double(uint16_t bits);

/* Rounded once, to nearest even; too large becomes infinite, a NaN stays a (quiet) NaN. */
uint16_t f16_from_double(double value);
uint16_t bf16_from_double(double value);

static inline float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bf16_to_float(uint16_t bits) { return float_of_bits((uint32_t)bits << 16); }

/* The exponent is shifted in place, where it is too small by 127 - 15; the product with 2^112 is exact. */
static inline float f16_to_float(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = bits & 0x7fff;
    const uint32_t finite = bits_of_float(float_of_bits(rest << 13) * 0x1p112f);
    return float_of_bits(sign | (rest >= 0x7c00 ? 0x7f800000 | rest << 13 : finite));
}

static inline uint16_t bf16_from_float(float value)
{
    const uint32_t bits = bits_of_float(value), rounded = bits + 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(((bits & 0x7fffffff) > 0x7f800000 ? (bits & 0x80000000) | 0x7fc00000 : rounded) >> 16);
}

/* Subnormal: adding .5 leaves multiples of 2^-24, half's least number, in the low bits. Normal: as bf16. */
static inline uint16_t f16_from_float(float value)
{
    const uint32_t bits = bits_of_float(value), rest = bits & 0x7fffffff;
    const uint32_t small = bits_of_float(float_of_bits(rest) + .5f) - 0x3f000000;
    const uint32_t normal = (rest - ((127 - 15) << 23) + 0xfff + (rest >> 13 & 1)) >> 13;
    const uint32_t half = rest > 0x7f800000    ? 0x7e00
                          : rest >= 0x47800000 ? 0x7c00
                          : rest < 0x38800000  ? small
                                               : normal;
    return (uint16_t)((bits >> 16 & 0x8000) | half);
}

#endif
