/* SPDX-License-Identifier: MIT
 * The two 16-bit formats, from and to double. */
#ifndef LOAM_IO_HALF_H
#define LOAM_IO_HALF_H

#include <stdint.h>

double f16_to_double(uint16_t bits);
double bf16_to_double(uint16_t bits);

/* Rounded once, to nearest even; too large becomes infinite, a NaN stays a (quiet) NaN. */
uint16_t f16_from_double(double value);
uint16_t bf16_from_double(double value);

#endif
