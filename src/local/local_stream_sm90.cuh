/* SPDX-License-Identifier: MIT
 * Tiles of 64 keys, and of values, streaming past a block of 64 rows by bulk copies: one thread asks for a tile as soon as its slot
 * of the ring is free, the copy engine fills it, a barrier in shared memory says when it is there.
 */
#ifndef LOAM_LOCAL_LOCAL_STREAM_SM90_CUH
#define LOAM_LOCAL_LOCAL_STREAM_SM90_CUH

#include "src/gpu/hopper.cuh"
#include "src/local/local_solved_cuda.cuh"

/* Slots of the ring, each for a tile of keys or of values. */
template <int DIM> constexpr unsigned ring_slots = DIM == 64 ? 6 : 4;

/* The ring lies in two places, for swizzled tiles want 1024 bytes of alignment and barriers none. */
template <int DIM> struct ring_sm90 {
    __nv_bfloat16 (*slot)[DIM * SIDE];
    uint64_t *full;
};

/* The arrays as bulk copies know them. */
struct maps_sm90 {
    CUtensorMap q, k, v;
};

/* Slots filled and used so far, which tells slot and parity: the same in all threads. */
struct ring_count {
    unsigned used;
};

/* Keys from j on, and their values where these are streamed too. */
struct tiles_at {
    int j;
    const __nv_bfloat16 *keys, *values;
};

template <int DIM>
static __device__ __forceinline__ void ask_tile(const ring_sm90<DIM> &ring, const CUtensorMap &map,
                                                const row_block &x, int j, unsigned count)
{
    const unsigned slot = count % ring_slots<DIM>;
    barrier_expect(&ring.full[slot], DIM * SIDE * 2);
#pragma unroll
    for (int c = 0; c < DIM; c += SIDE) {
        copy_box(ring.slot[slot] + c * SIDE, &map, &ring.full[slot], c, (int)x.s.k0 + j, (int)x.h_kv,
                 (int)x.s.b);
    }
}

template <int DIM, bool VALUES>
static __device__ __forceinline__ void ask_tiles(const ring_sm90<DIM> &ring, const maps_sm90 &maps,
                                                 const row_block &x, int j, unsigned count)
{
    ask_tile(ring, maps.k, x, j, count);
    if (VALUES) {
        ask_tile(ring, maps.v, x, j, count + 1);
    }
}

/* Calls use(tiles) for all tiles of the block's keys in order. All threads of the block take part. */
template <int DIM, bool VALUES, class F>
static __device__ __forceinline__ void stream_sm90(const ring_sm90<DIM> &ring, ring_count &count,
                                                   const maps_sm90 &maps, const row_block &x, F use)
{
    constexpr unsigned each = VALUES ? 2 : 1, slots = ring_slots<DIM>, ahead = slots / each;
    const int tiles = (x.last - x.first + SIDE - 1) / SIDE;
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ahead && n < tiles; n++) {
            ask_tiles<DIM, VALUES>(ring, maps, x, x.first + n * SIDE, count.used + n * each);
        }
    }
    for (int n = 0; n < tiles; n++, count.used += each) {
        const unsigned k = count.used % slots, v = (count.used + each - 1) % slots;
        const tiles_at t = { x.first + n * SIDE, ring.slot[k], ring.slot[v] };
        barrier_wait(&ring.full[k], count.used / slots % 2);
        if (VALUES) {
            barrier_wait(&ring.full[v], (count.used + 1) / slots % 2);
        }
        use(t);
        __syncthreads();
        if (threadIdx.x == 0 && n + (int)ahead < tiles) {
            ask_tiles<DIM, VALUES>(ring, maps, x, t.j + (int)ahead * SIDE, count.used + ahead * each);
        }
    }
}

#endif
