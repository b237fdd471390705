/* SPDX-License-Identifier: MIT
 * What is expected of ridges, temperatures, probes and LoRA on a pretrained model, held against results. */
#ifndef LOAM_CLI_GRAFT_CLAIMS_H
#define LOAM_CLI_GRAFT_CLAIMS_H

#include "cli/graft/results.h"
#include "cli/training/claims.h"

enum { GRAFT_CLAIMS = 8 }; /* at most */

/* Those that can be judged; returns how many. */
int graft_judge(const graft_results *r, claim *claims);

#endif
