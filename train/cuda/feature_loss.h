/* SPDX-License-Identifier: MIT
 * What train/feature_losses.h has of a GPU. */
#ifndef LOAM_TRAIN_CUDA_FEATURE_LOSS_H
#define LOAM_TRAIN_CUDA_FEATURE_LOSS_H

#include "train/feature_losses.h"

/* out [count][l->row] = factor (rows - shift) m^T; shift NULL: 0. All but l are of the GPU. */
void gpu_feature_rows(const feature_losses *l, float *out, const feature_rows *from);
/* l->exact and, for l2, l->largest, beside a window l->near, from all of l->x and l->y. */
void gpu_feature_exact(const feature_losses *l);
/* Blocks that work side by side, and the floats of scratch that each has. */
int64_t gpu_feature_blocks(const feature_losses *l);
int64_t gpu_feature_scratch(const feature_losses *l);
void gpu_feature_losses(const feature_losses *l);

#endif
