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
#define OFFERS(id, word, offers, words) || (level == GPU_##id && offers)
    return level == GPU_NONE GPU_LEVELS(OFFERS);
}

const char *gpu_level_name(gpu_level level)
{
#define WORD(id, word, ...) , word
    static const char *const names[] = { NULL GPU_LEVELS(WORD) };
    return names[level];
}

const char *gpu_level_words(gpu_level level)
{
#define WORDS(id, word, offers, words) , words
    static const char *const texts[] = { NULL GPU_LEVELS(WORDS) };
    return texts[level];
}
