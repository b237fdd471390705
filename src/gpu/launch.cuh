/* SPDX-License-Identifier: MIT
 * Kernel launches, and errors of CUDA as statuses. */
#ifndef LOAM_GPU_LAUNCH_CUH
#define LOAM_GPU_LAUNCH_CUH

#include "src/base/error.h"

#include <cuda_runtime.h>

static inline loam_status cuda_check(cudaError_t code, const char *what, loam_error *error)
{
    REQUIRE(code == cudaSuccess, error, LOAM_ECUDA, "%s: %s", what, cudaGetErrorString(code));
    return LOAM_OK;
}

/* The status of the launch just made. */
static inline loam_status cuda_launched(const char *kernel, loam_error *error)
{
    return cuda_check(cudaGetLastError(), kernel, error);
}

static inline loam_status cuda_multiprocessors(int *count, loam_error *error)
{
    int device = 0;
    TRY(cuda_check(cudaGetDevice(&device), "the current device", error));
    return cuda_check(cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device),
                      "multiprocessors of the device", error);
}

/* A kernel with more than 48 KiB of dynamic shared memory must opt in to it. */
static inline loam_status cuda_allow_shared(const void *kernel, size_t bytes, loam_error *error)
{
    return cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
                      "shared memory of the kernel", error);
}

/* Launches `blocks` blocks of `threads` threads with `shared` bytes of dynamic shared memory, in clusters of
 * `cluster` blocks. overlapped: the kernel may start before the previous one of the stream has ended
 * (programmatic dependent launch). */
template <class... PARAMETERS, class... ARGUMENTS>
static loam_status cuda_launch_clusters(const char *name, void (*kernel)(PARAMETERS...), int64_t blocks,
                                        unsigned cluster, unsigned threads, size_t shared, void *stream,
                                        bool overlapped, loam_error *error, const ARGUMENTS &...arguments)
{
    TRY(cuda_allow_shared((const void *)kernel, shared, error));
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = overlapped;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = (cudaStream_t)stream;
    config.attrs = attributes, config.numAttrs = cluster > 1 ? 2 : overlapped;
    return cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), name, error);
}

/* The same without clusters. */
template <class... PARAMETERS, class... ARGUMENTS>
static loam_status cuda_launch(const char *name, void (*kernel)(PARAMETERS...), int64_t blocks,
                               unsigned threads, size_t shared, void *stream, bool overlapped,
                               loam_error *error, const ARGUMENTS &...arguments)
{
    return cuda_launch_clusters(name, kernel, blocks, 1, threads, shared, stream, overlapped, error,
                                arguments...);
}

#endif
