/* SPDX-License-Identifier: MIT
 * The rows of each model sorted by a number, those of the same number in their order. */
#ifndef LOAM_TRAIN_CUDA_SORT_CUH
#define LOAM_TRAIN_CUDA_SORT_CUH

#include "train/cuda/gpu.cuh"

/* Bytes of scratch of sort_rows. */
size_t sort_bytes(int64_t models, int64_t rows);
/* *keys [models][rows]: the numbers, all below `below`, ascending; *sorted: of each its row. Both in
 * `room`. */
void sort_rows(const machine *on, numbers list, int64_t models, int64_t rows, int64_t below, char *room,
               const int **keys, const int **sorted);

#endif
