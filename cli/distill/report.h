/* SPDX-License-Identifier: MIT
 * The experiment's results as CSV files, pictures, a page, and a table on standard output. */
#ifndef LOAM_CLI_DISTILL_REPORT_H
#define LOAM_CLI_DISTILL_REPORT_H

#include "cli/distill/cells.h"

typedef struct distill_report {
    const cells *models;
    int count;
    const char *calibration, *texts; /* paths with commas between */
    bool drawn;                      /* with pictures */
} distill_report;

/* results.csv last: where it is, all is. */
int distill_report_write(const distill_report *r, const char *directory, io_error *error);

#endif
