/* SPDX-License-Identifier: MIT
 * Decode on GPUs at the speed of memory, for all mechanisms that solve nothing. */
#ifndef LOAM_RECURRENT_DECODE_CUDA_H
#define LOAM_RECURRENT_DECODE_CUDA_H

#include "src/recurrent/recurrent.h"

/* One token, and accesses of four elements can reach the rows of the arguments? */
bool recurrent_step_reads(const loam_problem *p, const loam_args *a);

/* weight: s . x of normalised reads, by tokens as recurrent_work_row counts them, else NULL. */
loam_status recurrent_step_cuda(const loam_problem *p, const loam_args *a, const float *weight,
                                loam_error *error);

#endif
