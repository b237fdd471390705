/* SPDX-License-Identifier: MIT
 * The GPU generation that a kernel needs and that the current device offers. A query calls the CUDA
 * driver, so CPU plans make none. */
#ifndef LOAM_BASE_GPU_H
#define LOAM_BASE_GPU_H

#include <stdbool.h>

/* The word that rows end in, the capabilities (times ten) that run them, and how errors say it. Instructions
 * of Hopper exist on no other generation. */
#define GPU_LEVELS(X) \
    X(CUDA, "cuda", capability >= 80, "an NVIDIA GPU of compute capability 8.0 or newer") \
    X(HOPPER, "hopper", capability == 90, "an NVIDIA GPU of compute capability 9.0")

#define GPU_LEVEL_ID(id, ...) , GPU_##id
typedef enum gpu_level { GPU_NONE /* a CPU kernel */ GPU_LEVELS(GPU_LEVEL_ID) } gpu_level;

/* Compute capability times ten (80, 90) of the calling thread's current device; 0 without a driver, a
 * device or CUDA in this build. */
int gpu_capability(void);
/* Whether a device of this capability runs kernels that need `level`. */
bool gpu_offers(int capability, gpu_level level);
const char *gpu_level_name(gpu_level level);  /* "cuda", "hopper": as rows end */
const char *gpu_level_words(gpu_level level); /* "an NVIDIA GPU of compute capability 8.0 or newer" */

#endif
