/* SPDX-License-Identifier: MIT
 * The names that config.json has for activations. */
#ifndef LOAM_LM_ACTIVATION_H
#define LOAM_LM_ACTIVATION_H

#include "lm/config.h"

/* -1: not known. */
int lm_activation_of(const char *name);
const char *lm_activation_name(lm_activation activation);

#endif
