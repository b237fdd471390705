/* SPDX-License-Identifier: MIT */
#ifndef LOAM_CLI_GRAFT_PAGE_H
#define LOAM_CLI_GRAFT_PAGE_H

#include "cli/graft/report.h"
#include "cli/training/claims.h"

/* index.html: claims, the table, what was learned, pictures. */
int graft_page_write(const graft_report *r, const claim *claims, int count, const char *path,
                     io_error *error);

#endif
