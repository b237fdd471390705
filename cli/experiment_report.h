/* SPDX-License-Identifier: MIT
 * The results of a sweep as CSV files and as a table on standard output. */
#ifndef LOAM_CLI_EXPERIMENT_REPORT_H
#define LOAM_CLI_EXPERIMENT_REPORT_H

#include "cli/experiment_sweep.h"

/* One row per cell, estimator and position. */
int report_positions(const sweep *s, const char *path, io_error *error);
/* One row per cell and estimator. */
int report_summary(const sweep *s, const char *path, io_error *error);
int report_table(const sweep *s, io_error *error);

#endif
