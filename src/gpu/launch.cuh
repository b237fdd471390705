/* SPDX-License-Identifier: MIT
 * Launches with their errors as statuses. */
#ifndef LOAM_GPU_LAUNCH_CUH
#define LOAM_GPU_LAUNCH_CUH

#include "src/base/error.h"

#include <cuda_runtime.h>

static inline loam_status cuda_check(cudaError_t code, const char *what, loam_error *error)
{
    REQUIRE(code == cudaSuccess, error, LOAM_ECUDA, "%s: %s", what, cudaGetErrorString(code));
    return LOAM_OK;
}

/* The launch just made. */
static inline loam_status cuda_launched(const char *kernel, loam_error *error)
{
    return cuda_check(cudaGetLastError(), kernel, error);
}

/* Beyond 48 KiB a kernel must ask for its shared memory. */
static inline loam_status cuda_allow_shared(const void *kernel, size_t bytes, loam_error *error)
{
    return cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                      "shared memory of the kernel", error);
}

#endif
