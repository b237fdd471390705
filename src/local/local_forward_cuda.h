/* SPDX-License-Identifier: MIT
 * The parts of the forward pass on GPUs. */
#ifndef LOAM_LOCAL_LOCAL_FORWARD_CUDA_H
#define LOAM_LOCAL_LOCAL_FORWARD_CUDA_H

#include "src/local/local.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Softmax and Parallax. */
local_run_fn local_given_cuda;
/* Local Linear Attention. */
local_run_fn local_solved_cuda;
local_work_fn local_solved_cuda_work;

#ifdef __cplusplus
}
#endif

#endif
