/* SPDX-License-Identifier: MIT
 * Clusters of thread blocks on Hopper, which run at the same time and reach each other's shared memory. */
#ifndef LOAM_GPU_CLUSTER_CUH
#define LOAM_GPU_CLUSTER_CUH

#include "src/gpu/hopper.cuh"
#include "src/gpu/launch.cuh"

/* The number of this thread block in its cluster. */
static __device__ __forceinline__ unsigned cluster_rank()
{
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* Waits for all threads of the cluster that have not ended. What they wrote before to global memory, or to
 * the shared memory of any of the blocks, is visible afterwards. */
static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\n"
                 "barrier.cluster.wait.acquire;" ::
                     : "memory");
}

/* Makes barriers that this thread has begun visible to the other blocks: before its cluster_arrive. */
static __device__ __forceinline__ void fence_barriers_cluster()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Between the two, which all threads call once, all threads of all blocks of the cluster have begun. */
static __device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
static __device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The address of what lies in shared memory of block `rank` where `own` lies here. That block must have
 * begun, and must not end before it is used. */
static __device__ __forceinline__ uint32_t cluster_address(const void *own, unsigned rank)
{
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(own)), "r"(rank));
    return address;
}

/* The number at `own` of block `rank`. */
static __device__ __forceinline__ int cluster_load(const int *own, unsigned rank)
{
    int x;
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(x) : "r"(cluster_address(own, rank)) : "memory");
    return x;
}

/* Arrives at a barrier of another block. Of what this thread did before only reads are ordered, by those who
 * use what was read. */
static __device__ __forceinline__ void barrier_arrive_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Stores 16 bytes in another block, as bytes of a copy that completes on `barrier` there. */
static __device__ __forceinline__ void store_cluster(uint32_t to, const float4 &x, uint32_t barrier)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
                 "[%5];" ::"r"(to),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
                 : "memory");
}

/* barrier_wait for what other blocks do. */
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

/* Launches clusters of `ranks` thread blocks that stay: as many as the GPU holds at once, one block on a
 * multiprocessor, but in no more rounds than that takes for `works` of them. The grid is of [clusters, ranks]
 * blocks: blockIdx.y is a block's rank in its cluster. */
template <class... PARAMETERS, class... ARGUMENTS>
static loam_status cuda_launch_ranks(const char *name, void (*kernel)(PARAMETERS...), int64_t works,
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
    const int64_t rounds = (works + clusters - 1) / clusters;
    config.gridDim.x = (unsigned)(ranks > 1          ? (works + rounds - 1) / rounds
                                  : works < clusters ? works
                                                     : clusters);
    return cuda_check(cudaLaunchKernelEx(&config, kernel, arguments...), name, error);
}

#endif
