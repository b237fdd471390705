/* SPDX-License-Identifier: MIT
 * A ring of stages in shared memory between a producer thread, which fills them by bulk copies, and consumer
 * warps. A stage has a full and an empty barrier. Producer and consumers each count the stages that they have
 * used: number `count` is stage count % SLOTS, with parity count / SLOTS % 2. */
#ifndef LOAM_GPU_RING_CUH
#define LOAM_GPU_RING_CUH

#include "src/gpu/hopper.cuh"

template <int SLOTS> struct ring_barriers {
    uint64_t full[SLOTS], empty[SLOTS];
};

/* `warps` consumer warps release each stage. One thread calls this; fence_async_proxy and __syncthreads make
 * the barriers visible to the others. */
template <int SLOTS>
static __device__ __forceinline__ void ring_init(ring_barriers<SLOTS> &ring, unsigned warps)
{
    for (int n = 0; n < SLOTS; n++) {
        barrier_init(&ring.full[n], 1);
        barrier_init(&ring.empty[n], warps);
    }
}

/* The producer waits until stage number `count` is empty; returns its full barrier, which expects `bytes` of
 * copies. */
template <int SLOTS>
static __device__ __forceinline__ uint64_t *ring_fill(ring_barriers<SLOTS> &ring, unsigned count,
                                                      unsigned bytes)
{
    barrier_wait(&ring.empty[count % SLOTS], count / SLOTS % 2 ^ 1);
    barrier_expect(&ring.full[count % SLOTS], bytes);
    return &ring.full[count % SLOTS];
}

template <int SLOTS>
/* A consumer waits until stage number `count` is full. */
static __device__ __forceinline__ void ring_await(ring_barriers<SLOTS> &ring, unsigned count)
{
    barrier_wait(&ring.full[count % SLOTS], count / SLOTS % 2);
}

/* A consumer warp releases a stage: its products and other reads of the stage have ended. All lanes call
 * it. */
template <int SLOTS>
static __device__ __forceinline__ void ring_release(ring_barriers<SLOTS> &ring, unsigned count)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(&ring.empty[count % SLOTS]);
    }
}

#endif
