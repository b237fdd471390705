/* SPDX-License-Identifier: MIT */
#ifndef LOAM_TRAIN_WORD_LOSS_H
#define LOAM_TRAIN_WORD_LOSS_H

#include "train/machine.h"

/* The operation word_loss by others of its machine, on as many rows of a model at a time as `g` has, with
 * logits of as many as `logits` has. */
void word_loss_in_blocks(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                         numbers targets, const int64_t *counts, matrix logits, matrix g);

/* What another model says of the same words. */
typedef struct word_teaching {
    matrix x, table;     /* its rows and its words, as those of word_loss */
    double weight;       /* of the divergence from it in the loss */
    matrix divergence;   /* [rows][1]: sum p log(p / q) of its p and the model's q */
    matrix logits, each; /* room for those of as many rows of one model as word_loss_taught has logits of */
} word_teaching;

/* Of rows that all have a target: word_loss_in_blocks, but that the loss of a row has by->weight times its
 * divergence besides. */
void word_loss_taught(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                      numbers targets, const int64_t *counts, matrix logits, matrix g,
                      const word_teaching *by);

#endif
