/* SPDX-License-Identifier: MIT
 * What is expected of distilled models, held against what was measured. */
#ifndef LOAM_CLI_DISTILL_VERDICTS_H
#define LOAM_CLI_DISTILL_VERDICTS_H

#include "cli/distill/cells.h"
#include "cli/training/claims.h"

enum { VERDICTS = 16 };

/* Those of one model that there are cells for; returns how many. */
int verdicts_of(const cells *c, claim out[VERDICTS]);
/* The lower of degrees of freedom of keys and of attention by the softmax loss; NULL: neither is there. */
const series *verdicts_best(const cells *c, const series *list, int count);

#endif
