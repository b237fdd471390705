/* SPDX-License-Identifier: MIT
 * What is expected of ridges without training, held against results. */
#ifndef LOAM_CLI_RIDGE_CLAIMS_H
#define LOAM_CLI_RIDGE_CLAIMS_H

#include "cli/ridge/law.h"
#include "cli/ridge/results.h"
#include "cli/training/claims.h"

enum { RIDGE_CLAIMS = 8 }; /* at most */

/* Those that can be judged; returns how many. law: of law_measure. */
int ridge_judge(const ridge_results *r, double (*law)[LAW_RIDGES], claim *claims);

#endif
