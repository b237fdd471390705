/* SPDX-License-Identifier: MIT
 * A ring of slots in shared memory between one thread that fills them by bulk copies and the warps that use them. Both count the
 * slots that they have gone through; the count tells slot and parity.
 */
#ifndef LOAM_GPU_RING_CUH
#define LOAM_GPU_RING_CUH

#include "src/gpu/hopper.cuh"

template <int SLOTS> struct ring_barriers {
    uint64_t full[SLOTS], empty[SLOTS];
};

/* warps: that use each slot. One thread calls it; a fence and __syncthreads make it known. */
template <int SLOTS>
static __device__ __forceinline__ void ring_init(ring_barriers<SLOTS> &ring, unsigned warps)
{
    for (int n = 0; n < SLOTS; n++) {
        barrier_init(&ring.full[n], 1);
        barrier_init(&ring.empty[n], warps);
    }
}

/* Slot of number `count` may be filled: returns the barrier for `bytes` of copies. */
template <int SLOTS>
static __device__ __forceinline__ uint64_t *ring_fill(ring_barriers<SLOTS> &ring, unsigned count,
                                                      unsigned bytes)
{
    barrier_wait(&ring.empty[count % SLOTS], count / SLOTS % 2 ^ 1);
    barrier_expect(&ring.full[count % SLOTS], bytes);
    return &ring.full[count % SLOTS];
}

template <int SLOTS>
static __device__ __forceinline__ void ring_await(ring_barriers<SLOTS> &ring, unsigned count)
{
    barrier_wait(&ring.full[count % SLOTS], count / SLOTS % 2);
}

/* The warp is through with a slot: its products have ended, its other reads too. All its lanes call it. */
template <int SLOTS>
static __device__ __forceinline__ void ring_release(ring_barriers<SLOTS> &ring, unsigned count)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(&ring.empty[count % SLOTS]);
    }
}

#endif
