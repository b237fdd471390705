/* SPDX-License-Identifier: MIT
 * Decode on GPUs, bound by memory bandwidth, for all mechanisms but MesaNet. */
#ifndef LOAM_RECURRENT_CUDA_DECODE_H
#define LOAM_RECURRENT_CUDA_DECODE_H

#include "src/recurrent/recurrent.h"

/* Whether there is one token, and all rows can be accessed four elements at a time. */
bool recurrent_step_reads(const loam_problem *p, const loam_args *a);

/* denominator: s . x of normalised reads, indexed by recurrent_work_row; else NULL. */
loam_status recurrent_step_cuda(const loam_problem *p, const loam_args *a, const float *denominator,
                                loam_error *error);

#endif
