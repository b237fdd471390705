/* SPDX-License-Identifier: MIT
 * How the model predicts with an arm in the place of softmax. */
#ifndef LOAM_CLI_DISTILL_MEASURE_H
#define LOAM_CLI_DISTILL_MEASURE_H

#include "cli/distill/distillation.h"
#include "cli/distill/trial.h"

/* As the trial's next arm. s: of an arm that has features; layer: the only one, -1: all; window: beside the
 * features, 0: none. */
int measure_arm_of(const distillation *from, trial *t, const distill_arm *arm, const student *s,
                   int64_t layer, int64_t window, io_error *error);

#endif
