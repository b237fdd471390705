/* SPDX-License-Identifier: MIT
 * Tiles of 64 keys, and of values, streaming past a block of 64 rows by bulk copies: one thread asks for a tile as soon as its slot
 * of the ring is free, the copy engine fills it, a barrier in shared memory says when it is there.
 */
#ifndef LOAM_LOCAL_LOCAL_STREAM_SM90_CUH
#define LOAM_LOCAL_LOCAL_STREAM_SM90_CUH

#include "src/gpu/hopper.cuh"
#include "src/local/local_solved_cuda.cuh"

/* Slots of the ring, each for a tile of keys or of values. */
template <int DIM> constexpr unsigned ring_slots = DIM == 64 ? 8 : 4;

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

/* Rows `rows` .. of a tile become 0: what lies beyond a sequence may be anything, and 0 times NaN is not 0. */
template <int DIM> static __device__ __forceinline__ void clear_beyond(const __nv_bfloat16 *tile, int rows)
{
#pragma unroll
    for (int c = 0; c < DIM / SIDE; c++) {
        uint4 *piece = (uint4 *)(tile + c * TILE_ELEMENTS);
        for (int n = rows * 8 + (int)threadIdx.x; n < SIDE * 8; n += THREADS) {
            piece[n] = make_uint4(0, 0, 0, 0);
        }
    }
}

/* The tile of keys from j on, the next after `count` of them, when it is there. */
template <int DIM, bool VALUES>
static __device__ __forceinline__ tiles_at await_tiles(const ring_sm90<DIM> &ring, const row_block &x, int j,
                                                       unsigned count)
{
    constexpr unsigned slots = ring_slots<DIM>;
    const unsigned key = count, value = VALUES ? count + 1 : count;
    const tiles_at t = { j, ring.slot[key % slots], ring.slot[value % slots] };
    barrier_wait(&ring.full[key % slots], key / slots % 2);
    if (VALUES) {
        barrier_wait(&ring.full[value % slots], value / slots % 2);
    }
    if (t.j + SIDE > x.s.nk) {
        clear_beyond<DIM>(t.keys, (int)x.s.nk - t.j);
        if (VALUES) {
            clear_beyond<DIM>(t.values, (int)x.s.nk - t.j);
        }
        fence_async_proxy();
        __syncthreads();
    }
    return t;
}

/* Calls use(tiles) for all tiles of the block's keys in order. All threads of the block take part. */
template <int DIM, bool VALUES, class F>
static __device__ __forceinline__ void stream_sm90(const ring_sm90<DIM> &ring, ring_count &count,
                                                   const maps_sm90 &maps, const row_block &x, F use)
{
    constexpr unsigned each = VALUES ? 2 : 1, ahead = ring_slots<DIM> / each;
    const int tiles = (x.last - x.first + SIDE - 1) / SIDE;
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ahead && n < tiles; n++) {
            ask_tiles<DIM, VALUES>(ring, maps, x, x.first + n * SIDE, count.used + n * each);
        }
    }
    for (int n = 0; n < tiles; n++, count.used += each) {
        use(await_tiles<DIM, VALUES>(ring, x, x.first + n * SIDE, count.used));
        __syncthreads();
        if (threadIdx.x == 0 && n + (int)ahead < tiles) {
            ask_tiles<DIM, VALUES>(ring, maps, x, x.first + (n + (int)ahead) * SIDE,
                                   count.used + ahead * each);
        }
    }
}

/* A pass in four steps: score(tiles) issues the products that weights are made of, weigh(tiles) makes weights once these have ended,
 * pack() takes them as operands when the sums are at rest, gather(tiles) issues the products with them. The scores of the
 * next tile are issued ahead of gather, so that the tensor cores work while the next weights are made. */
template <int DIM, bool VALUES, class SCORE, class WEIGH, class PACK, class GATHER>
static __device__ __forceinline__ void stream_ahead_sm90(const ring_sm90<DIM> &ring, ring_count &count,
                                                         const maps_sm90 &maps, const row_block &x,
                                                         SCORE score, WEIGH weigh, PACK pack, GATHER gather)
{
    constexpr unsigned each = VALUES ? 2 : 1, ahead = ring_slots<DIM> / each;
    if constexpr (ahead < 3) { /* a tile would be asked for when it is wanted */
        stream_sm90<DIM, VALUES>(ring, count, maps, x, [&](const tiles_at &t) {
            score(t);
            products_commit();
            products_wait<0>();
            weigh(t);
            pack();
            gather(t);
            products_commit();
            products_wait<0>();
        });
        return;
    }
    const int tiles = (x.last - x.first + SIDE - 1) / SIDE;
    if (tiles <= 0) {
        return;
    }
    if (threadIdx.x == 0) {
        for (int n = 0; n < (int)ahead && n < tiles; n++) {
            ask_tiles<DIM, VALUES>(ring, maps, x, x.first + n * SIDE, count.used + n * each);
        }
    }
    tiles_at t = await_tiles<DIM, VALUES>(ring, x, x.first, count.used);
    score(t);
    products_commit();
    products_commit();
    for (int n = 0;; n++) {
        products_wait<1>();
        weigh(t);
        products_wait<0>();
        __syncthreads();
        const int next = n - 1 + (int)ahead;
        if (threadIdx.x == 0 && n > 0 && next < tiles) {
            ask_tiles<DIM, VALUES>(ring, maps, x, x.first + next * SIDE, count.used + next * each);
        }
        pack();
        if (n + 1 == tiles) {
            break;
        }
        const tiles_at after = await_tiles<DIM, VALUES>(ring, x, x.first + (n + 1) * SIDE, count.used + (n + 1) * each);
        score(after);
        products_commit();
        gather(t);
        products_commit();
        t = after;
    }
    gather(t);
    products_commit();
    products_wait<0>();
    __syncthreads();
    count.used += tiles * each;
}

#endif
