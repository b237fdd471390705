/* SPDX-License-Identifier: MIT */
#include "src/base/gpu.h"

#include <stddef.h>

#ifdef LOAM_HAVE_CUDA
#include <cuda_runtime_api.h>

int gpu_capability(void)
{
    int device, major, minor;
    if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device)) {
        (void)cudaGetLastError(); /* no device is an answer, not an error for the next call to find */
        return 0;
    }
    return 10 * major + minor;
}
#else
int gpu_capability(void) { return 0; }
#endif

bool gpu_offers(int capability, gpu_level level)
{
    return level == GPU_NONE || (level == GPU_SM80 && capability >= 80) ||
           (level == GPU_SM90 && capability == 90);
}

const char *gpu_level_name(gpu_level level)
{
    return level == GPU_SM80 ? "cuda" : level == GPU_SM90 ? "hopper" : NULL;
}

const char *gpu_level_words(gpu_level level)
{
    return level == GPU_SM80   ? "an NVIDIA GPU of compute capability 8.0 or newer"
           : level == GPU_SM90 ? "an NVIDIA GPU of compute capability 9.0"
                               : NULL;
}
