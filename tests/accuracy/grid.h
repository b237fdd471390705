/* SPDX-License-Identifier: MIT
 * The accuracy table: mechanisms, types, dimensions, lengths and instruction sets on N(0, 1). */
#ifndef TESTS_ACCURACY_GRID_H
#define TESTS_ACCURACY_GRID_H

#include <stdbool.h>

/* Prints the tables; the number of cases beyond their bounds. Of long samples
 * the last queries are taken: few, on the slower instruction sets in float32
 * only, or (full) many, n = 4096 on the fastest instruction set only. */
int grid_run(bool full);

#endif
