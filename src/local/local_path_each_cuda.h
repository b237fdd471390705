/* SPDX-License-Identifier: MIT
 * The functions of each_backend on CUDA that turn keys: local_path_each_turn_cuda.cu. */
#ifndef LOAM_LOCAL_LOCAL_PATH_EACH_CUDA_H
#define LOAM_LOCAL_LOCAL_PATH_EACH_CUDA_H

#include "src/local/local_path_each.h"

loam_status each_turn_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w,
                           const each_steps *steps, int64_t from, int64_t to, bool copies, loam_error *error);
loam_status each_turn_back_cuda(const loam_problem *p, const loam_args *a, const each_arrays *w,
                                const each_steps *steps, int64_t frame, loam_error *error);

#endif
