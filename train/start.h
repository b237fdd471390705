/* SPDX-License-Identifier: MIT
 * How parameters begin. */
#ifndef LOAM_TRAIN_START_H
#define LOAM_TRAIN_START_H

#include "train/machine.h"
#include "train/parameter.h"

#include <stdint.h>

/* Array `number` of a model, of its seed; seeds: one for each model. */
void start_parameter(const machine *on, const parameter *p, int64_t number, const uint64_t *seeds);

#endif
