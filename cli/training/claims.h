/* SPDX-License-Identifier: MIT
 * What the paper says of its figures, held against the results of a plan. */
#ifndef LOAM_CLI_TRAINING_CLAIMS_H
#define LOAM_CLI_TRAINING_CLAIMS_H

#include "cli/training/lines.h"
#include "cli/training/results.h"

typedef enum verdict { VERDICT_HELD, VERDICT_NOT_HELD, VERDICT_UNDECIDED } verdict;

/* "held", "not held", "not decided" */
extern const char *const verdict_names[];

enum { CLAIM_TEXT = 1024 };

typedef struct claim {
    const char *source, *text;
    verdict verdict;
    char numbers[CLAIM_TEXT]; /* why */
} claim;

enum { CLAIMS = 8, CLAIM_SEEDS = 3 }; /* at most; seeds that a claim of an order takes */

/* All claims of the plan's task; returns how many. */
int claims_judge(const results *r, const plan_lines *lines, claim *out);

/* A claim of an order between trained models: one seed may be luck. */
void claim_decide_by_seeds(claim *c, int seeds, bool held);

#endif
