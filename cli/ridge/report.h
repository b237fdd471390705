/* SPDX-License-Identifier: MIT
 * All that is shown: CSV files, pictures, the page, and a table on standard output. */
#ifndef LOAM_CLI_RIDGE_REPORT_H
#define LOAM_CLI_RIDGE_REPORT_H

#include "cli/ridge/law.h"
#include "cli/ridge/results.h"

typedef struct ridge_report {
    const ridge_results *results;
    const char *model, *description; /* what was run */
    double (*law)[LAW_RIDGES];       /* law_measure */
    bool drawn;                      /* with pictures */
} ridge_report;

int ridge_report_write(const ridge_report *r, const char *directory, io_error *error);

#endif
