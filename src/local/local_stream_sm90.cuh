/* SPDX-License-Identifier: MIT
 * Tiles of 64 keys, and of values, streaming past a block of 64 rows by bulk copies: one thread asks for a tile as soon as its slot
 * of the ring is free, the copy engine fills it, a barrier in shared memory says when it is there.
 */
#ifndef LOAM_LOCAL_LOCAL_STREAM_SM90_CUH
#define LOAM_LOCAL_LOCAL_STREAM_SM90_CUH

#include "src/gpu/hopper.cuh"
#include "src/local/local_solved_cuda.cuh"

enum { STAGES = 2 };

template <int DIM> struct ring_sm90 {
    static constexpr int tile = DIM * SIDE;
    alignas(1024) __nv_bfloat16 keys[STAGES][tile];
    alignas(1024) __nv_bfloat16 values[STAGES][tile];
    uint64_t full[STAGES];
};

/* The arrays as bulk copies know them. */
struct maps_sm90 {
    CUtensorMap q, k, v;
};

/* Tiles filled and used so far, which tells slot and parity: the same in all threads. */
struct ring_count {
    unsigned used;
};

template <int DIM, bool VALUES>
static __device__ __forceinline__ void ask_tile(ring_sm90<DIM> &ring, const maps_sm90 &maps, const row_block &x, int j,
                                                unsigned slot)
{
    const int token = (int)x.s.k0 + j, h = (int)x.h_kv, b = (int)x.s.b;
    barrier_expect(&ring.full[slot], (VALUES ? 2 : 1) * DIM * SIDE * 2);
#pragma unroll
    for (int c = 0; c < DIM; c += SIDE) {
        copy_box(ring.keys[slot] + c * SIDE, &maps.k, &ring.full[slot], c, token, h, b);
        if (VALUES) {
            copy_box(ring.values[slot] + c * SIDE, &maps.v, &ring.full[slot], c, token, h, b);
        }
    }
}

/* Calls use(tile) for all tiles of the block's keys in order. All threads of the block take part. */
template <int DIM, bool VALUES, class F>
static __device__ __forceinline__ void stream_sm90(ring_sm90<DIM> &ring, ring_count &count, const maps_sm90 &maps,
                                                   const row_block &x, F use)
{
    const int tiles = (x.last - x.first + SIDE - 1) / SIDE;
    if (threadIdx.x == 0) {
        for (int n = 0; n < STAGES && n < tiles; n++) {
            ask_tile<DIM, VALUES>(ring, maps, x, x.first + n * SIDE, (count.used + n) % STAGES);
        }
    }
    for (int n = 0; n < tiles; n++, count.used++) {
        const tile_at t = { x.first + n * SIDE, (int)(count.used % STAGES) };
        barrier_wait(&ring.full[t.slot], count.used / STAGES % 2);
        use(t);
        __syncthreads();
        if (threadIdx.x == 0 && n + STAGES < tiles) {
            ask_tile<DIM, VALUES>(ring, maps, x, t.j + STAGES * SIDE, t.slot);
        }
    }
}

#endif
