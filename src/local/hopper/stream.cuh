/* SPDX-License-Identifier: MIT
 * Tiles of 64 keys, and of values, stream past a block of 64 rows through a ring of stages in shared memory.
 * One thread issues the bulk copy of a tile when all threads have passed the __syncthreads after the last use
 * of its stage; the full barrier of the stage completes when the tile has arrived. */
#ifndef LOAM_LOCAL_HOPPER_STREAM_CUH
#define LOAM_LOCAL_HOPPER_STREAM_CUH

#include "src/gpu/hopper.cuh"
#include "src/local/cuda/solve.cuh"

/* Stages of the ring, each for a tile of keys or of values. */
template <int DIM> constexpr unsigned ring_slots = DIM == 64 ? 10 : 4;

/* Stages and full barriers lie apart: swizzled tiles must be aligned to 1024 bytes. */
template <int DIM, unsigned STAGES = ring_slots<DIM>> struct ring_hopper {
    __nv_bfloat16 (*slot)[DIM * TILE_SIDE];
    uint64_t *full;
};

/* Tensor maps of queries, keys and values. */
struct maps_hopper {
    CUtensorMap q, k, v;
};

/* Entries that have gone through the ring; the next one's stage and parity follow. The same in all
 * threads. */
struct ring_count {
    unsigned used;
};

/* A tile of keys from key j on, and of their values where values are streamed too. */
struct tiles_at {
    int j;
    const __nv_bfloat16 *keys, *values;
};

/* One thread issues the copy of entry `count` of the ring, the tile from key j on. */
template <int DIM, unsigned STAGES>
static __device__ __forceinline__ void ask_tile(const ring_hopper<DIM, STAGES> &ring, const CUtensorMap &map,
                                                const row_block &x, int j, unsigned count)
{
    const unsigned slot = count % STAGES;
    barrier_expect(&ring.full[slot], DIM * TILE_SIDE * 2);
#pragma unroll
    for (int c = 0; c < DIM; c += TILE_SIDE) {
        load_box(ring.slot[slot] + c * TILE_SIDE, &map, &ring.full[slot], c, (int)x.s.k0 + j, (int)x.h_kv,
                 (int)x.s.b);
    }
}

/* Rows `rows` .. 63 of a tile become 0: memory beyond a sequence may hold NaN, and 0 times NaN is not 0. */
template <int DIM> static __device__ __forceinline__ void clear_beyond(__nv_bfloat16 *tile, int rows)
{
#pragma unroll
    for (int c = 0; c < DIM / TILE_SIDE; c++) {
        uint4 *piece = (uint4 *)(tile + c * TILE_ELEMENTS);
        for (int n = rows * 8 + (int)threadIdx.x; n < TILE_SIDE * 8; n += THREADS) {
            piece[n] = make_uint4(0, 0, 0, 0);
        }
    }
    fence_async_proxy();
    __syncthreads();
}

/* Waits for entry `count` of the ring, the tile from key j on; clears rows beyond the sequence. */
template <int DIM, unsigned STAGES>
static __device__ __forceinline__ void await_tile(const ring_hopper<DIM, STAGES> &ring, const row_block &x,
                                                  int j, unsigned count)
{
    barrier_wait(&ring.full[count % STAGES], count / STAGES % 2);
    if (j + TILE_SIDE > x.s.nk) {
        clear_beyond<DIM>(ring.slot[count % STAGES], (int)x.s.nk - j);
    }
}

/* A pass over the tiles of a block. Its entries in the ring are tiles of keys, or of keys and of values in
 * turn. */
template <int DIM, bool VALUES, unsigned STAGES> struct pass_hopper {
    static constexpr unsigned each = VALUES ? 2 : 1;
    const ring_hopper<DIM, STAGES> &ring;
    const maps_hopper &maps;
    const row_block &x;
    const unsigned begin; /* entries that went through the ring before this pass */
    const int tiles;

    /* One thread issues the copy of entry n, if the pass has that many. */
    __device__ __forceinline__ void ask(unsigned n) const
    {
        if (n / each < (unsigned)tiles) {
            ask_tile(ring, n % each ? maps.v : maps.k, x, x.first + (int)(n / each) * TILE_SIDE, begin + n);
        }
    }
    __device__ __forceinline__ void ask_first() const
    {
        for (unsigned n = 0; threadIdx.x == 0 && n < STAGES; n++) {
            ask(n);
        }
    }
    /* All threads have used tile n: its stages are filled with later entries. */
    __device__ __forceinline__ void done(int n) const
    {
        __syncthreads();
        for (unsigned i = 0; threadIdx.x == 0 && n >= 0 && i < each; i++) {
            ask((unsigned)n * each + i + STAGES);
        }
    }
    __device__ __forceinline__ tiles_at at(int n) const
    {
        const unsigned entry = begin + (unsigned)n * each;
        return { x.first + n * TILE_SIDE, ring.slot[entry % STAGES], ring.slot[(entry + each - 1) % STAGES] };
    }
    __device__ __forceinline__ void await_keys(int n) const
    {
        await_tile(ring, x, x.first + n * TILE_SIDE, begin + (unsigned)n * each);
    }
    __device__ __forceinline__ void await_values(int n) const
    {
        if (VALUES) {
            await_tile(ring, x, x.first + n * TILE_SIDE, begin + (unsigned)n * each + 1);
        }
    }
};

template <bool VALUES, int DIM, unsigned STAGES>
static __device__ __forceinline__ pass_hopper<DIM, VALUES, STAGES> pass_of(
    const ring_hopper<DIM, STAGES> &ring, const ring_count &count, const maps_hopper &maps,
    const row_block &x)
{
    return { ring, maps, x, count.used, (x.last - x.first + TILE_SIDE - 1) / TILE_SIDE };
}

/* Calls use(tiles) for all tiles of the block's keys in order. All threads of the block take part. */
template <int DIM, bool VALUES, unsigned STAGES, class F>
static __device__ __forceinline__ void stream_hopper(const ring_hopper<DIM, STAGES> &ring, ring_count &count,
                                                     const maps_hopper &maps, const row_block &x, F use)
{
    const pass_hopper<DIM, VALUES, STAGES> pass = pass_of<VALUES>(ring, count, maps, x);
    pass.ask_first();
    for (int n = 0; n < pass.tiles; n++) {
        pass.await_keys(n);
        pass.await_values(n);
        use(pass.at(n));
        pass.done(n);
    }
    count.used += (unsigned)pass.tiles * pass.each;
}

/* A pass in four steps for each tile: score(tiles) issues the products that weights are made of; weigh(tiles)
 * makes weights when these products have ended; pack() converts the weights to register operands when no
 * product is in flight; gather(tiles) issues the products with these operands. AHEAD, where the ring has
 * room: the scores of the next tile are issued before gather of this one, so that the tensor cores work while
 * the next weights are made. BOTH: score reads the values too. */
template <int DIM, bool VALUES, bool AHEAD, bool BOTH = false, unsigned STAGES, class SCORE, class WEIGH,
          class PACK, class GATHER>
static __device__ __forceinline__ void stream_steps_hopper(const ring_hopper<DIM, STAGES> &ring,
                                                           ring_count &count, const maps_hopper &maps,
                                                           const row_block &x, SCORE score, WEIGH weigh,
                                                           PACK pack, GATHER gather)
{
    const pass_hopper<DIM, VALUES, STAGES> pass = pass_of<VALUES>(ring, count, maps, x);
    if constexpr (!AHEAD || STAGES <= 2 * pass.each) {
        stream_hopper<DIM, VALUES>(ring, count, maps, x, [&](const tiles_at &t) {
            score(t);
            wgmma_commit();
            wgmma_wait<0>();
            weigh(t);
            pack();
            gather(t);
            wgmma_commit();
            wgmma_wait<0>();
        });
        return;
    }
    if (pass.tiles <= 0) {
        return;
    }
    pass.ask_first();
    pass.await_keys(0);
    if (BOTH) {
        pass.await_values(0);
    }
    tiles_at t = pass.at(0);
    score(t);
    wgmma_commit();
    wgmma_commit(); /* an empty group, in the place of gather of the tile before */
    for (int n = 0;; n++) {
        wgmma_wait<1>();
        weigh(t);
        /* This wait, a loop, also keeps the compiler from moving weigh beyond the wait for the sums below. */
        const bool more = n + 1 < pass.tiles;
        if (more) {
            pass.await_keys(n + 1);
        }
        wgmma_wait<0>();
        pack();
        if (!BOTH) {
            pass.await_values(n);
        } else if (more) {
            pass.await_values(n + 1);
        }
        if (!more) {
            break;
        }
        const tiles_at after = pass.at(n + 1);
        score(after);
        wgmma_commit();
        gather(t);
        wgmma_commit();
        pass.done(n - 1);
        t = after;
    }
    gather(t);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();
    count.used += (unsigned)pass.tiles * pass.each;
}

#endif
