/* SPDX-License-Identifier: MIT
 * A ring of stages in shared memory between a producer thread, which fills them by bulk copies, and consumer
 * warps. A stage has a full and an empty barrier. Producer and consumers each count the stages that they have
 * used: number `count` is stage count % STAGES, with parity count / STAGES % 2. */
#ifndef LOAM_GPU_RING_CUH
#define LOAM_GPU_RING_CUH

#include "src/gpu/hopper.cuh"

template <int STAGES> struct ring_barriers {
    uint64_t full[STAGES], empty[STAGES];
};

/* `warps` consumer warps release each stage. One thread calls this; fence_async_proxy and __syncthreads make
 * the barriers visible to the others. */
template <int STAGES>
static __device__ __forceinline__ void ring_init(ring_barriers<STAGES> &ring, unsigned warps)
{
    for (int n = 0; n < STAGES; n++) {
        barrier_init(&ring.full[n], 1);
        barrier_init(&ring.empty[n], warps);
    }
}

/* The producer waits until stage number `count` is empty; returns its full barrier, which expects `bytes` of
 * copies. */
template <int STAGES>
static __device__ __forceinline__ uint64_t *ring_acquire(ring_barriers<STAGES> &ring, unsigned count,
                                                         unsigned bytes)
{
    barrier_wait(&ring.empty[count % STAGES], count / STAGES % 2 ^ 1);
    barrier_expect(&ring.full[count % STAGES], bytes);
    return &ring.full[count % STAGES];
}

/* A consumer waits until stage number `count` is full. */
template <int STAGES>
static __device__ __forceinline__ void ring_wait(ring_barriers<STAGES> &ring, unsigned count)
{
    barrier_wait(&ring.full[count % STAGES], count / STAGES % 2);
}

/* A consumer warp releases a stage: its products and other reads of the stage have ended. All lanes call
 * it. */
template <int STAGES>
static __device__ __forceinline__ void ring_release(ring_barriers<STAGES> &ring, unsigned count)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&ring.empty[count % STAGES]);
}

#endif
