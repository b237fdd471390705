/* SPDX-License-Identifier: MIT */
#include "tests/support/element.h"

#include <math.h>
#include <string.h>

size_t element_bytes(loam_dtype dtype) { return dtype == LOAM_F64 ? 8 : dtype == LOAM_F32 ? 4 : 2; }

loam_dtype element_real(loam_dtype dtype) { return dtype == LOAM_F64 ? LOAM_F64 : LOAM_F32; }

/* A 16-bit float with `fraction` bits of fraction and the exponent bias `bias`. */
static double half_get(uint16_t bits, int fraction, int bias)
{
    const int exponent = (bits & 0x7fff) >> fraction, rest = bits & ((1 << fraction) - 1);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == 0x7fff >> fraction) return rest ? (double)NAN : sign * HUGE_VAL;
    return exponent ? sign * ldexp((1 << fraction) + rest, exponent - bias - fraction)
                    : sign * ldexp(rest, 1 - bias - fraction);
}

static uint16_t half_set(double x, int fraction, int bias)
{
    const unsigned sign = signbit(x) ? 0x8000u : 0, infinity = 0x7fffu >> fraction << fraction;
    if (isnan(x)) return (uint16_t)(sign | infinity | 1u << (fraction - 1));
    int exponent;
    frexp(x, &exponent);
    const int place = (exponent - 1 > 1 - bias ? exponent - 1 : 1 - bias) - fraction; /* of the last bit */
    const double units = nearbyint(ldexp(fabs(x), -place));
    if (x == 0 || units == 0) return (uint16_t)sign;
    /* The leading bit of a normal number adds one to the exponent field, as does a carry. */
    const double field = units + ldexp(place + fraction + bias - 1, fraction);
    return (uint16_t)(sign | (field >= infinity ? infinity : (unsigned)field));
}

double element_get(const void *data, loam_dtype dtype, int64_t index)
{
    switch (dtype) {
    case LOAM_F64: return ((const double *)data)[index];
    case LOAM_F32: return (double)((const float *)data)[index];
    case LOAM_BF16: return half_get(((const uint16_t *)data)[index], 7, 127);
    case LOAM_F16: return half_get(((const uint16_t *)data)[index], 10, 15);
    }
    return (double)NAN;
}

void element_set(void *data, loam_dtype dtype, int64_t index, double x)
{
    switch (dtype) {
    case LOAM_F64: ((double *)data)[index] = x; break;
    case LOAM_F32: ((float *)data)[index] = (float)x; break;
    case LOAM_BF16: ((uint16_t *)data)[index] = half_set(x, 7, 127); break;
    case LOAM_F16: ((uint16_t *)data)[index] = half_set(x, 10, 15); break;
    }
}

double element_round(loam_dtype dtype, double x)
{
    double room;
    element_set(&room, dtype, 0, x);
    return element_get(&room, dtype, 0);
}
