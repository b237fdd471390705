/* SPDX-License-Identifier: MIT
 * The results of the experiment on memory: tables, the picture, and what they say of figure 2. */
#ifndef LOAM_CLI_EXPERIMENT_MEMORY_REPORT_H
#define LOAM_CLI_EXPERIMENT_MEMORY_REPORT_H

#include "cli/experiment/memory_child.h"
#include "cli/experiment/options.h"

typedef struct memory_point {
    memory_case what;
    memory_result result;
} memory_point;

/* Every method at every length, ascending. */
typedef struct memory_sweep {
    memory_point points[MEMORY_METHODS][EXPERIMENT_LIST];
    int count; /* of lengths */
    size_t limit;
} memory_sweep;

/* The exponent of the working memory in n, by least squares over the last four lengths that fit; NaN where
 * fewer than two did. */
double memory_growth(const memory_sweep *s, memory_method method);

/* The largest difference of the outputs from those of blocks, over the largest output of these; NaN where one
 * of the two was not computed. */
double memory_difference(const memory_sweep *s, memory_method method, int index);

/* The least length above d from which on blocks keep less than the others; 0 where there is none, or where
 * blocks grow faster than n or differences not as n^2. */
int64_t memory_holds_from(const memory_sweep *s);

/* memory.csv and memory.svg into a directory, the table to standard output. */
int memory_report(const memory_sweep *s, const char *directory, io_error *error);

#endif
