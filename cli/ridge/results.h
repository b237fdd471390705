/* SPDX-License-Identifier: MIT
 * What was measured, in a file until all is, and what is shown of it. */
#ifndef LOAM_CLI_RIDGE_RESULTS_H
#define LOAM_CLI_RIDGE_RESULTS_H

#include "cli/ridge/plan.h"

typedef struct ridge_results {
    const ridge_plan *plan;
    double *values, *seconds; /* [windows][arms]; NaN: not yet measured */
} ridge_results;

int ridge_results_open(ridge_results *r, const ridge_plan *p, io_error *error);
void ridge_results_close(ridge_results *r);

/* `line` names all that values depend on. A file of another line is an error; none is nothing measured. */
int ridge_results_load(ridge_results *r, const char *path, const char *line, io_error *error);
int ridge_results_save(const ridge_results *r, const char *path, const char *line, io_error *error);

/* A mean over what windows score, the ratio of the sums of values and of scored tokens, and its standard
 * error over windows, NaN with one. */
typedef struct paired {
    double mean, error;
    int64_t windows, tokens;
} paired;

/* "+0.00143 ± 0.0005", "" where there is none. */
const char *paired_text(paired x, char text[64]);
/* values and scored [windows]; windows without a value (NaN) are left out. */
paired paired_of(const double *values, const int64_t *scored, int64_t windows);

/* Arm a less arm b; b < 0: itself. text < 0: of all. */
paired ridge_difference(const ridge_results *r, int a, int b, int text);
/* Of the changes by two ridges, times the ridge: the root of the mean square of their difference over
 * windows, relative to that of b. */
double ridge_law(const ridge_results *r, int a, int b);
double ridge_seconds(const ridge_results *r, int arm, int64_t *read); /* of all windows, and their tokens */

#endif
