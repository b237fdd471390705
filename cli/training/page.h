/* SPDX-License-Identifier: MIT
 * index.html: the claims with their verdicts, the pictures, the values. */
#ifndef LOAM_CLI_TRAINING_PAGE_H
#define LOAM_CLI_TRAINING_PAGE_H

#include "cli/training/claims.h"

/* `description`: the options that the results depend on; `left_out`: what was dropped to save time, "" for
 * nothing; `drawn`: the pictures are there. */
int page_write(const results *r, const claim *claims, int count, const char *description,
               const char *left_out, bool drawn, const char *path, io_error *error);

#endif
