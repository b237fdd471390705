/* SPDX-License-Identifier: MIT
 * A model of files as one of train/: its blocks, and what it has learned.
 *
 *     trainer_options o = trainer_options_default(lm_pretrained_mixer(config));      or one beside it
 *     if (lm_pretrained_options(&o, lm_files_config(f), path, error)) ...
 *     o.shape.moving = ..., o.mixing.low = ..., o.pretrained = ...
 *     if (trainer_open(&t, &on, &o, &one, 1, &reason)) ...      of a TRAIN_TEXT with the model's vocabulary
 *     if (lm_pretrained_fill(t.net, &on, f, error)) ...
 */
#ifndef LOAM_LM_PRETRAINED_H
#define LOAM_LM_PRETRAINED_H

#include "lm/files.h"
#include "train/trainer.h"

/* "softmax", or of a student "features". */
const mixer *lm_pretrained_mixer(const lm_config *c);

/* Sets the blocks and the sizes of `o`, whose mixer is of the local family or, of a student, "features"; what
 * is put beside or into its attention stays as it is. A model that train/ has no blocks for, of the file
 * `name`, is refused. The configuration must live as long as what is trained by `o`. */
int lm_pretrained_options(trainer_options *o, const lm_config *c, const char *name, io_error *error);

/* Gives the arrays that the files have to every model of a stack, of such options and at most the model's
 * context; the others keep their values. */
int lm_pretrained_fill(train_model *net, const machine *on, const lm_files *f, io_error *error);

#endif
