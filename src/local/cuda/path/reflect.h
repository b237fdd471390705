/* SPDX-License-Identifier: MIT
 * The functions of batch_backend on CUDA that reflect keys: local/cuda/path/reflect.cu. */
#ifndef LOAM_LOCAL_CUDA_PATH_REFLECT_H
#define LOAM_LOCAL_CUDA_PATH_REFLECT_H

#include "src/local/path_batch.h"

loam_status path_reflect_cuda(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                              const batch_steps *steps, int64_t from, int64_t to, bool copies,
                              loam_error *error);
loam_status path_reflect_back_cuda(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                                   const batch_steps *steps, int64_t frame, loam_error *error);

#endif
