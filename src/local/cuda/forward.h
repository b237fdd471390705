/* SPDX-License-Identifier: MIT
 * The parts of the forward pass on GPUs. */
#ifndef LOAM_LOCAL_CUDA_FORWARD_H
#define LOAM_LOCAL_CUDA_FORWARD_H

#include "src/local/local.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Softmax and Parallax; softmax where len_q is 1. */
kernel_run_fn local_given_cuda, local_given_one_cuda;
/* Local Linear Attention: the rows by conjugate gradients, then those that these did not
 * solve, in float64. */
kernel_run_fn local_solved_cuda, local_row_double_cuda;
kernel_work_fn local_solved_cuda_work;
/* Local Linear Attention with all rows in float64. args.weights, where given, must hold zeros. */
kernel_run_fn local_all64_cuda;
kernel_work_fn local_all64_cuda_work;
/* The same on Hopper, for arguments of which *_reads is true: arrays that bulk copies can read, and no
 * args.weights. */
kernel_run_fn local_given_hopper, local_solved_hopper;
kernel_work_fn local_solved_hopper_work;
bool local_given_hopper_reads(const loam_problem *problem, const loam_args *args);
bool local_solved_hopper_reads(const loam_problem *problem, const loam_args *args);

#ifdef __cplusplus
}
#endif

#endif
