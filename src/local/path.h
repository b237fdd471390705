/* SPDX-License-Identifier: MIT
 * Kernels for PaTH (problem.path). CPU, softmax and Parallax: local/cpu/path_forward.c,
 * local/cpu/path_backward.c, local/cpu/path_decode.c; LLA: local/cpu/path_each.c, but for
 * backward, which the reference does. */
#ifndef LOAM_LOCAL_PATH_H
#define LOAM_LOCAL_PATH_H

#include "src/local/local.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LOCAL_PATH_DECLARE_ISA(isa) \
    local_run_fn local_path_forward_##isa, local_path_backward_##isa, local_path_decode_##isa; \
    local_work_fn local_path_forward_##isa##_work, local_path_backward_##isa##_work, \
        local_path_decode_##isa##_work; \
    local_partial_fn local_path_partial_##isa; \
    local_run_fn local_path_each_forward_##isa, local_path_each_decode_##isa; \
    local_work_fn local_path_each_forward_##isa##_work, local_path_each_decode_##isa##_work; \
    local_partial_fn local_path_each_partial_##isa;

/* CUDA: local_path_*: softmax, bfloat16, 64 channels; local_path_each_*: every probe, type and dimension. */
local_run_fn local_path_forward_cuda, local_path_backward_cuda, local_path_each_forward_cuda,
    local_path_each_backward_cuda;
local_work_fn local_path_forward_cuda_work, local_path_backward_cuda_work, local_path_each_forward_cuda_work,
    local_path_each_backward_cuda_work;
local_fits_fn local_path_cuda_fits, local_path_each_cuda_fits;

LOCAL_PATH_DECLARE_ISA(portable)
LOCAL_PATH_DECLARE_ISA(avx2)
LOCAL_PATH_DECLARE_ISA(avx512)

#ifdef __cplusplus
}
#endif

#endif
