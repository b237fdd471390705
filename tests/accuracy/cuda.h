/* SPDX-License-Identifier: MIT
 * The accuracy of the rows of CUDA: bfloat16 with 16-bit operands, float32 at float32 accuracy. */
#ifndef TESTS_ACCURACY_CUDA_H
#define TESTS_ACCURACY_CUDA_H

/* Prints tables, of the rows for one instruction set ("hopper") or of all (NULL);
 * 0: all within their bounds, 1: some beyond, 77: no such row can run here. */
int cuda_run(const char *isa);

#endif
