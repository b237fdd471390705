/* SPDX-License-Identifier: MIT
 * Which GPU a kernel needs and this thread has. Asking costs a call of the driver, so nothing asks for CPU plans. */
#ifndef LOAM_BASE_GPU_H
#define LOAM_BASE_GPU_H

#include <stdbool.h>

typedef enum gpu_level {
    GPU_NONE, /* a row for the CPU */
    GPU_SM80, /* compute capability 8.0 and everything newer */
    GPU_SM90  /* Hopper, 9.0, whose own instructions nothing else has */
} gpu_level;

/* Compute capability times ten (80, 90) of the calling thread's current device; 0: no driver, no device, no CUDA in
 * this build. */
int gpu_capability(void);
/* Can a device of this capability run what needs `level`? */
bool gpu_offers(int capability, gpu_level level);
const char *gpu_level_name(gpu_level level);  /* "sm80" */
const char *gpu_level_words(gpu_level level); /* "an NVIDIA GPU of compute capability 8.0 or newer" */

#endif
