/* SPDX-License-Identifier: MIT
 * Clusters of Hopper: thread blocks that run at the same time and wait for each other. */
#ifndef LOAM_GPU_CLUSTER_CUH
#define LOAM_GPU_CLUSTER_CUH

#include "src/gpu/hopper.cuh"

/* Thread blocks of the cluster, 1 where the launch has none; the number of this one. */
static __device__ __forceinline__ unsigned cluster_size()
{
    unsigned size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}
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

/* What the block `rank` of the cluster has where this block has *shared. */
static __device__ __forceinline__ int cluster_load(const int *shared, unsigned rank)
{
    int x;
    asm volatile("{\n"
                 ".reg .b32 at;\n"
                 "mapa.shared::cluster.u32 at, %1, %2;\n"
                 "ld.shared::cluster.s32 %0, [at];\n"
                 "}\n"
                 : "=r"(x)
                 : "r"(shared_address(shared)), "r"(rank)
                 : "memory");
    return x;
}

#endif
