/* SPDX-License-Identifier: MIT
 * What a token takes behind more and more others, with keys and values and with the states of features. */
#ifndef LOAM_CLI_DISTILL_SPEED_H
#define LOAM_CLI_DISTILL_SPEED_H

#include "cli/distill/cells.h"

/* How many tokens it is measured behind, from a quarter of the calibration's windows to sixteen of them, as
 * far as the model reads; and bytes of what a text keeps. */
void speed_plan(cells *c, const course *of, const lm_session *s);
/* c->speeds: medians, of a token of each in turn, the logits too. The features are Fix, as they are drawn. */
int speed_measure(cells *c, distillation *d, io_error *error);
bool speed_known(const cells *c);

#endif
