/* SPDX-License-Identifier: MIT
 * index.html: verdicts, the curve, pictures. */
#ifndef LOAM_CLI_RIDGE_PAGE_H
#define LOAM_CLI_RIDGE_PAGE_H

#include "cli/ridge/results.h"
#include "cli/training/claims.h"

typedef struct ridge_page {
    const ridge_results *results;
    const char *model, *description; /* what was run */
    const claim *claims;
    int claim_count;
    bool drawn; /* the pictures are there */
} ridge_page;

int ridge_page_write(const ridge_page *r, const char *path, io_error *error);

#endif
