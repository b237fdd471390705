/* SPDX-License-Identifier: MIT
 * What the operations have of their GPU. Each launches on its stream; the first error is kept for the next
 * download. */
#ifndef LOAM_TRAIN_CUDA_GPU_CUH
#define LOAM_TRAIN_CUDA_GPU_CUH

extern "C" {
#include "train/cuda/gpu.h"
}

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define OP(name, parameters) extern "C" void cuda_##name parameters;
#include "train/ops.def"
#undef OP

typedef struct products products;

struct machine_gpu {
    cudaStream_t stream, side; /* on which order_tokens runs, from `forked` to `joined` */
    cudaEvent_t forked, joined;
    products *made; /* of cuBLASLt */
    bool hopper;    /* has the instructions of compute capability 9.0 alone */
    loam_error failed;
    char *room; /* scratch of one operation at a time */
    size_t bytes;
    void *older[40]; /* rooms that were too small: graphs may know them */
    int count;
};

void gpu_fail(machine_gpu *gpu, const char *what, const char *text);

static inline void gpu_check(machine_gpu *gpu, cudaError_t code, const char *what)
{
    if (code != cudaSuccess) gpu_fail(gpu, what, cudaGetErrorString(code));
}

/* Of the launch just made. */
static inline void gpu_launched(const machine *on, const char *kernel)
{
    gpu_check(on->gpu, cudaGetLastError(), kernel);
}

/* Scratch until the next call, aligned to 256 bytes; NULL where there is none, which then is an error. */
char *gpu_scratch(machine_gpu *gpu, size_t bytes);

static inline size_t gpu_aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

static inline bool gpu_is_hopper(const machine_gpu *gpu) { return gpu->hopper; }

/* cuBLASLt; NULL: not found, and error says so. */
products *products_open(loam_error *error);
void products_close(products *made);
size_t products_version(const products *made);

#endif
