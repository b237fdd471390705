/* SPDX-License-Identifier: MIT
 * index.html of the experiment on distillation: for each model claims, the table, pictures. */
#ifndef LOAM_CLI_DISTILL_PAGE_H
#define LOAM_CLI_DISTILL_PAGE_H

#include "cli/distill/report.h"

int distill_page_write(const distill_report *r, const char *path, io_error *error);

#endif
