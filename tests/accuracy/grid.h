/* SPDX-License-Identifier: MIT
 * The accuracy table: mechanisms, types, dimensions, lengths and instruction sets on N(0, 1). */
#ifndef TESTS_ACCURACY_GRID_H
#define TESTS_ACCURACY_GRID_H

#include <stdbool.h>

/* Prints the tables; the number of cases beyond their bounds. full: all queries of every length. */
int grid_run(bool full);

#endif
