/* SPDX-License-Identifier: MIT
 * Batches that are made on a GPU. */
#ifndef LOAM_TRAIN_CUDA_DATA_H
#define LOAM_TRAIN_CUDA_DATA_H

#include "train/batch.h"

typedef struct batch_size {
    int64_t models, size, length, answers; /* tokens and places for answers of an example */
    int64_t segments;                      /* the most that a model of regression has */
} batch_size;

/* All arrays of `to` from its requests and examples. */
void gpu_fill(const machine *on, const train_source *from, const batch_size *size, const batch_arrays *to);

#endif
