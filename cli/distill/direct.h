/* SPDX-License-Identifier: MIT
 * A student's features trained further through the model, by the probability of next tokens, as loam lm tune
 * does it. */
#ifndef LOAM_CLI_DISTILL_DIRECT_H
#define LOAM_CLI_DISTILL_DIRECT_H

#include "cli/distill/distillation.h"

typedef struct direct {
    int64_t steps, batch; /* of windows of the calibration's length, drawn anywhere in its texts */
    int64_t held;         /* tokens of the last tenth of the texts, by which the best state is chosen */
    int64_t seed;
    const char *directory; /* of its own, for what a killed run goes on from */
    double interval, end;  /* seconds between checkpoints; of lm_seconds, when it stops */
} direct;

/* *whole: all steps are taken, and the student is what did best on what was held out. */
int direct_run(const distillation *d, student *s, const direct *how, bool *whole, io_error *error);
/* Removes what is in the directory, and it. */
int direct_discard(const char *directory, io_error *error);

#endif
