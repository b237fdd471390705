/* SPDX-License-Identifier: MIT
 * The results as CSV files, and as a table on standard output. */
#ifndef LOAM_CLI_TRAINING_REPORT_H
#define LOAM_CLI_TRAINING_REPORT_H

#include "cli/training/claims.h"

#include <stdio.h>

/* One row for each run, test and part. */
int training_report_runs(const results *r, const char *path, io_error *error);
/* One row for each mechanism, cell and part. */
int training_report_best(const results *r, const char *path, io_error *error);
/* One row for each run and test. */
int training_report_times(const results *r, const char *path, io_error *error);
/* A paragraph for each. */
void report_claims(FILE *out, const claim *claims, int count);
/* With the verdicts below. */
int training_report_table(const results *r, const claim *claims, int count, io_error *error);

#endif
