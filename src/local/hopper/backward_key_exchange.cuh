/* SPDX-License-Identifier: MIT
 * The pass over keys of the backward on Hopper where two warpgroups share 64 keys: how each thread of the
 * one gives its pairs of a tile to the thread of the other that has the same pairs. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_KEY_EXCHANGE_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_KEY_EXCHANGE_CUH

#include "src/local/hopper/backward_key.cuh"

/* The threads' pairs go to the other warpgroup: number n of the exchanges of a tile, of turn `turn`. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void give_pairs(key_pass_shared<S> &sm, int n, const float (&x)[BLOCKS][4])
{
#pragma unroll
    for (int k = 0; k < BLOCKS; k++)
        sm.exchange[n][k][threadIdx.x % 128] = make_float4(x[k][0], x[k][1], x[k][2], x[k][3]);
}

template <class S, int BLOCKS>
static __device__ __forceinline__ void take_pairs(const key_pass_shared<S> &sm, int n, float (&x)[BLOCKS][4])
{
#pragma unroll
    for (int k = 0; k < BLOCKS; k++) {
        const float4 own = sm.exchange[n][k][threadIdx.x % 128];
        x[k][0] = own.x, x[k][1] = own.y, x[k][2] = own.z, x[k][3] = own.w;
    }
}

/* The barriers of the warp and its counterpart; `turn` counts the tiles. */
template <class S>
static __device__ __forceinline__ void exchange_begin(key_pass_shared<S> &sm, unsigned turn)
{
    barrier_wait(&sm.exchange_ring.empty[threadIdx.x % 128 / 32], turn % 2 ^ 1);
}
template <class S> static __device__ __forceinline__ void exchange_given(key_pass_shared<S> &sm)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&sm.exchange_ring.full[threadIdx.x % 128 / 32]);
}
template <class S> static __device__ __forceinline__ void exchange_wait(key_pass_shared<S> &sm, unsigned turn)
{
    barrier_wait(&sm.exchange_ring.full[threadIdx.x % 128 / 32], turn % 2);
}
template <class S> static __device__ __forceinline__ void exchange_taken(key_pass_shared<S> &sm)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(&sm.exchange_ring.empty[threadIdx.x % 128 / 32]);
}

#endif
