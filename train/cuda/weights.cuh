/* SPDX-License-Identifier: MIT
 * Weights as they are kept: matrices [out][in] of 16 or 32 bits, of which few rows of activations are
 * multiplied, or whose rows are widened. */
#ifndef LOAM_TRAIN_CUDA_WEIGHTS_CUH
#define LOAM_TRAIN_CUDA_WEIGHTS_CUH

#include "train/cuda/gpu.cuh"

/* Rows of activations that read the weights once; with more, tensor cores pay. */
enum { FEW_ROWS = 4 };

/* out (+)= a b^T for 1 .. FEW_ROWS rows. b may be float16 too; sums are float32, of operands as they are.
 * What a row becomes depends neither on the other rows nor on their number. */
void weights_few_rows(const machine *on, matrix out, matrix a, matrix b, bool add);
/* out_i = row at_i of `from`, which is float16; row i where `at` has no data. */
void weights_from_half(const machine *on, matrix out, matrix from, numbers at);

#endif
