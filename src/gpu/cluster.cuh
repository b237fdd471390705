/* SPDX-License-Identifier: MIT
 * Clusters of thread blocks on Hopper, which run at the same time and reach each other's shared memory. A grid
 * is of [clusters, ranks] blocks: blockIdx.y is a block's rank in its cluster. */
#ifndef LOAM_GPU_CLUSTER_CUH
#define LOAM_GPU_CLUSTER_CUH

#include "src/gpu/hopper.cuh"
#include "src/gpu/launch.cuh"

/* All threads of all blocks of the cluster wait for each other. */
static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* What lies in shared memory of block `rank` of the cluster where `own` lies here. That block must have begun,
 * and must not end before the access. */
template <class T> static __device__ __forceinline__ T *cluster_address(T *own, unsigned rank)
{
    uint64_t address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(own), "r"(rank));
    return (T *)address;
}

/* Arrives at the barrier of block `rank`; what this thread has seen or written is visible there to those that
 * then pass barrier_wait_cluster. */
static __device__ __forceinline__ void barrier_arrive_cluster(uint64_t *own, unsigned rank)
{
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n"
                 "}\n" ::"r"(shared_address(own)),
                 "r"(rank)
                 : "memory");
}

/* barrier_wait for arrivals from other blocks of the cluster. */
static __device__ __forceinline__ void barrier_wait_cluster(uint64_t *barrier, unsigned parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Launches clusters of `ranks` thread blocks, as many as the GPU holds at once but no more than there are
 * `works`, one of which fills a multiprocessor. */
template <class... PARAMETERS, class... ARGUMENTS>
static loam_status cuda_launch_clusters(const char *name, void (*kernel)(PARAMETERS...), int64_t works,
                                        int ranks, unsigned threads, size_t shared, void *stream,
                                        loam_error *error, const ARGUMENTS &...arguments)
{
    int clusters = 0;
    TRY(cuda_allow_shared((const void *)kernel, shared, error));
    TRY(cuda_multiprocessors(&clusters, error));
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = { 1, (unsigned)ranks, 1 };
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1, (unsigned)ranks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = (cudaStream_t)stream;
    config.attrs = &cluster, config.numAttrs = ranks > 1;
    if (ranks > 1) TRY(cuda_check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), name, error));
    config.gridDim.x = (unsigned)(works < clusters ? works : clusters);
    return cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), name, error);
}

#endif
