/* SPDX-License-Identifier: MIT
 * The rows of each model sorted by a number, those of the same number in their order. */
#ifndef LOAM_TRAIN_CUDA_SORT_CUH
#define LOAM_TRAIN_CUDA_SORT_CUH

#include "train/cuda/gpu.cuh"

/* Bytes of the room of sort_rows. */
size_t sort_bytes(int64_t models, int64_t rows);
/* Launches the sort of numbers below `below`. Then the room holds [models][rows]: the numbers, ascending, and
 * of each its row. */
void sort_rows(cudaStream_t stream, numbers list, int64_t models, int64_t rows, int64_t below, void *room);
const int *sorted_keys(const void *room);
const int *sorted_rows(const void *room, int64_t models, int64_t rows);

#endif
