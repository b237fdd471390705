/* SPDX-License-Identifier: MIT */
#include "train/cuda/gpu.cuh"

#define OP(name, parameters) cuda_##name,
static const ops table = {
#include "train/ops.def"
};
#undef OP

extern "C" const ops *gpu_ops(void) { return &table; }
