/* SPDX-License-Identifier: MIT
 * Data that real models produce and N(0, 1) does not, and ridges down to 0. */
#ifndef TESTS_ACCURACY_HOSTILE_H
#define TESTS_ACCURACY_HOSTILE_H

#include "loam.h"

/* Prints a line per kind of data and ridge; the number of lines beyond their bounds. */
int hostile_run(loam_dtype dtype);

#endif
