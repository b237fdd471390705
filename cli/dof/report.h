/* SPDX-License-Identifier: MIT
 * All that is shown of a study: a table on standard output; CSV files, pictures and a page. */
#ifndef LOAM_CLI_DOF_REPORT_H
#define LOAM_CLI_DOF_REPORT_H

#include "cli/dof/study.h"

int dof_report_print(const study *s, io_error *error);
/* drawn: with pictures, which need gnuplot. */
int dof_report_write(const study *s, const char *directory, bool drawn, io_error *error);

#endif
