/* SPDX-License-Identifier: MIT
 * The results of a sweep as CSV files and as a table on standard output. */
#ifndef LOAM_CLI_EXPERIMENT_REPORT_H
#define LOAM_CLI_EXPERIMENT_REPORT_H

#include "cli/experiment/sweep.h"

#include <stdio.h>

/* Rows of one cell, whose columns are given: an estimator, position, mean, standard error and 95 % interval
 * each. */
void report_curves(FILE *out, const char *cell, const moments *m);

/* One row per cell, estimator and position. */
int report_positions(const sweep *s, const char *path, io_error *error);
/* One row per cell and estimator. */
int report_summary(const sweep *s, const char *path, io_error *error);
int report_table(const sweep *s, io_error *error);

#endif
