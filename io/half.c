/* SPDX-License-Identifier: MIT */
#include "io/half.h"

#include <math.h>
#include <string.h>

enum { F16_MANTISSA = 10, F16_BIAS = 15, BF16_MANTISSA = 7, BF16_BIAS = 127, DOUBLE_MANTISSA = 52 };

static double widen(uint16_t bits, int mantissa_bits, int bias)
{
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    int exponent = (bits & 0x7fff) >> mantissa_bits;
    double magnitude;
    if (exponent == 2 * bias + 1)
        magnitude = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        magnitude = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        magnitude = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -magnitude : magnitude;
}

/* significand / 2^shift, a tie to the even side. */
static uint64_t shift_to_nearest(uint64_t significand, int shift)
{
    uint64_t quotient = significand >> shift, rest = significand - (quotient << shift);
    uint64_t half = (uint64_t)1 << (shift - 1);
    return quotient + (rest > half || (rest == half && (quotient & 1)));
}

static uint16_t narrow(double value, int mantissa_bits, int bias)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 63 << 15);
    uint16_t infinite = (uint16_t)((2 * bias + 1) << mantissa_bits);
    if (isnan(value)) return (uint16_t)(sign | infinite | 1 << (mantissa_bits - 1));
    int exponent = (int)(bits >> DOUBLE_MANTISSA & 0x7ff) - 1023 + bias;
    if (exponent > 2 * bias) return sign | infinite;
    int shift = DOUBLE_MANTISSA - mantissa_bits;
    if (exponent < 1) shift += 1 - exponent; /* subnormal: fewer bits are kept */
    if (shift > DOUBLE_MANTISSA + 1)
        return sign; /* below half of the least subnormal; so are the subnormals of double */
    uint64_t one = (uint64_t)1 << DOUBLE_MANTISSA;
    uint64_t rounded = shift_to_nearest((bits & (one - 1)) | one, shift);
    /* A carry out of the mantissa is right as it is: it makes the next power of two, or infinity. */
    uint64_t above = exponent < 1 ? 0 : (uint64_t)(exponent - 1) << mantissa_bits;
    return (uint16_t)(sign | (above + rounded));
}

double f16_to_double(uint16_t bits) { return widen(bits, F16_MANTISSA, F16_BIAS); }

double bf16_to_double(uint16_t bits) { return widen(bits, BF16_MANTISSA, BF16_BIAS); }

uint16_t f16_from_double(double value) { return narrow(value, F16_MANTISSA, F16_BIAS); }

uint16_t bf16_from_double(double value) { return narrow(value, BF16_MANTISSA, BF16_BIAS); }
