/* SPDX-License-Identifier: MIT
 * Results as CSV files, as a page with pictures, and as a table on standard output. */
#ifndef LOAM_CLI_GRAFT_REPORT_H
#define LOAM_CLI_GRAFT_REPORT_H

#include "cli/graft/results.h"

typedef struct graft_report {
    const graft_results *results;
    const char *model, *description;
    bool drawn; /* with pictures */
} graft_report;

int graft_report_write(const graft_report *r, const char *directory, io_error *error);

#endif
