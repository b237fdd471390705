/* SPDX-License-Identifier: MIT */
#ifndef LOAM_TRAIN_WORD_LOSS_H
#define LOAM_TRAIN_WORD_LOSS_H

#include "train/machine.h"

/* The operation word_loss by others of its machine, on as many rows of a model at a time as `g` has, with
 * logits of as many as `logits` has. */
void word_loss_in_blocks(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                         numbers targets, const int64_t *counts, matrix logits, matrix g);

#endif
