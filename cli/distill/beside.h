/* SPDX-License-Identifier: MIT
 * Features beside exact attention to the first tokens and a window, in the memory that features alone, or a
 * window alone, have. */
#ifndef LOAM_CLI_DISTILL_BESIDE_H
#define LOAM_CLI_DISTILL_BESIDE_H

#include "cli/distill/fit.h"

/* As they start, and trained. */
typedef enum beside_form { BESIDE_DRAWN, BESIDE_TRAINED, BESIDE_FORMS } beside_form;
const distill_arm *beside_arm(beside_form form);

/* *features: those of each head that a window of so many tokens leaves memory to; where it is none, an
 * error. */
int beside_features(const distillation *d, int64_t window, int64_t *features, io_error *error);
/* The student of such an arm, with gains, in *s; by: a training of it, without one of DRAWN. *whole: all its
 * steps are taken. */
int beside_begin(distillation *d, student *s, beside_form form, int64_t window, const fit *by, uint64_t seed,
                 bool *whole, io_error *error);

#endif
