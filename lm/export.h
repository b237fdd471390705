/* SPDX-License-Identifier: MIT
 * From the arrays of train/ to the files of a model. */
#ifndef LOAM_LM_EXPORT_H
#define LOAM_LM_EXPORT_H

#include "lm/config.h"
#include "train/trainer.h"

/* Those arrays of a trainer's one model that move, by their names; whole or not at all. */
int lm_export_arrays(const trainer *t, const char *path, io_error *error);
/* And back, to a trainer of the same model. */
int lm_export_load(trainer *t, const char *path, io_error *error);
/* model.safetensors and config.json of such arrays. */
int lm_export_model(const lm_config *config, const char *arrays, const char *folder, io_error *error);

#endif
