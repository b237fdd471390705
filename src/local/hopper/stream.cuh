/* SPDX-License-Identifier: MIT
 * Tiles of 64 keys, and of values, stream past a block of 64 rows through a ring of stages in shared memory.
 * One thread issues the bulk copy of a tile when all threads have passed the __syncthreads after the last use
 * of its stage; the full barrier of the stage completes when the tile has arrived. */
#ifndef LOAM_LOCAL_HOPPER_STREAM_CUH
#define LOAM_LOCAL_HOPPER_STREAM_CUH

#include "src/local/cuda/solve.cuh"
#include "src/local/hopper/tile.cuh"

/* x, which is mostly false: what depends on it goes out of the way of the instructions around it. */
static __device__ __forceinline__ bool rarely(bool x) { return __builtin_expect(x, false); }

/* Stages of the ring, each for a tile of keys or of values. */
template <int DIM> constexpr unsigned ring_stages = DIM == 64 ? 10 : 4;

/* Stages and full barriers lie apart: swizzled tiles must be aligned to 1024 bytes. */
template <int DIM, unsigned STAGES = ring_stages<DIM>, class T = __nv_bfloat16> struct tile_ring {
    T (*stage)[DIM * TILE_SIDE];
    uint64_t *full;
};

/* Tensor maps of queries, keys and values. */
struct qkv_maps {
    CUtensorMap q, k, v;
};

/* Entries that have gone through the ring; the next one's stage and parity follow. The same in all
 * threads. ahead: of a pass over keys to come, how many have been asked for (ask_ahead). */
struct ring_count {
    unsigned used, ahead;
};

/* Stages of a thread block that has a share of the keys of 64 channels (forward_few.cu), which alone asks
 * ahead; wider tiles may have as many. */
enum { SHARE_STAGES = 5 };
template <int DIM, unsigned STAGES>
constexpr bool asks_ahead = STAGES == (unsigned)SHARE_STAGES &&DIM == TILE_SIDE;

/* A tile of keys from key j on, and of their values where values are streamed too. */
template <class T> struct kv_tile {
    int j;
    const T *keys, *values;
};

/* Rows `rows` .. 63 of a tile become 0: memory beyond a sequence may hold NaN, and 0 times NaN is not 0. */
template <int DIM, class T> static __device__ __forceinline__ void clear_tail_block(T *tile, int rows)
{
#pragma unroll
    for (int c = 0; c < DIM / TILE_SIDE; c++) {
        uint4 *piece = (uint4 *)(tile + c * TILE_ELEMENTS);
        for (int n = rows * 8 + (int)threadIdx.x; n < TILE_SIDE * 8; n += THREADS)
            piece[n] = make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    __syncthreads();
}

/* A pass over the tiles of a block. Its entries in the ring are tiles of keys, or of keys and of values in
 * turn. What a copy needs to know of the block is in registers: the thread that issues it holds up the
 * others. */
template <int DIM, bool VALUES, unsigned STAGES, class T> struct kv_stream {
    static constexpr unsigned per_tile = VALUES ? 2 : 1;
    const tile_ring<DIM, STAGES, T> &ring;
    const qkv_maps &maps;
    const unsigned begin; /* entries that went through the ring before this pass */
    const unsigned ahead; /* of this pass, those that have been asked for */
    const int tiles;
    const int first, keys;        /* of the pass; of the sequence */
    const int token, head, batch; /* of the first key in the tensor */

    /* One thread issues the copy of entry n, if the pass has that many. */
    __device__ __forceinline__ void load(unsigned n) const
    {
        if (n / per_tile < (unsigned)tiles) {
            const unsigned stage = (begin + n) % STAGES;
            barrier_expect(&ring.full[stage], DIM * TILE_SIDE * 2);
            load_tile<DIM>(ring.stage[stage], n % per_tile ? maps.v : maps.k, &ring.full[stage],
                           token + (int)(n / per_tile) * TILE_SIDE, head, batch);
        }
    }
    /* Waits for entry n, a tile from key j on; clears rows beyond the sequence. */
    __device__ __forceinline__ void wait(unsigned n, int j) const
    {
        const unsigned entry = begin + n;
        barrier_wait(&ring.full[entry % STAGES], entry / STAGES % 2);
        if (rarely(j + TILE_SIDE > keys)) clear_tail_block<DIM>(ring.stage[entry % STAGES], keys - j);
    }
    __device__ __forceinline__ void prologue(unsigned thread = 0) const
    {
        for (unsigned n = 0; threadIdx.x == thread && n < STAGES; n++)
            if (!asks_ahead<DIM, STAGES> || n >= ahead) load(n);
    }
    /* All threads have used tile n: its stages are filled with later entries. */
    __device__ __forceinline__ void release(int n) const
    {
        __syncthreads();
        for (unsigned i = 0; threadIdx.x == 0 && n >= 0 && i < per_tile; i++)
            load((unsigned)n * per_tile + i + STAGES);
    }
    __device__ __forceinline__ kv_tile<T> at(int n) const
    {
        const unsigned entry = begin + (unsigned)n * per_tile;
        return { first + n * TILE_SIDE, operand_tile<DIM>(ring.stage[entry % STAGES]),
                 operand_tile<DIM>(ring.stage[(entry + per_tile - 1) % STAGES]) };
    }
    __device__ __forceinline__ void wait_keys(int n) const
    {
        wait((unsigned)n * per_tile, first + n * TILE_SIDE);
    }
    __device__ __forceinline__ void wait_values(int n) const
    {
        if (VALUES) wait((unsigned)n * per_tile + 1, first + n * TILE_SIDE);
    }
};

template <bool VALUES, int DIM, unsigned STAGES, class T>
static __device__ __forceinline__ kv_stream<DIM, VALUES, STAGES, T> kv_stream_of(
    const tile_ring<DIM, STAGES, T> &ring, const ring_count &count, const qkv_maps &maps,
    const row_block &block)
{
    return { ring,
             maps,
             count.used,
             count.ahead,
             (block.last - block.first + TILE_SIDE - 1) / TILE_SIDE,
             block.first,
             (int)block.s.nk,
             (int)block.s.k0 + block.first,
             (int)block.h_kv,
             (int)block.s.b };
}

/* A thread asks for the first tiles of the next pass, which is over keys; all products of the last one have
 * ended. */
template <int DIM, unsigned STAGES, class T>
static __device__ __forceinline__ void ask_ahead(const tile_ring<DIM, STAGES, T> &ring, ring_count &count,
                                                 const qkv_maps &maps, const row_block &block,
                                                 unsigned thread)
{
    static_assert(asks_ahead<DIM, STAGES>, "other passes ask for all of their tiles");
    const kv_stream<DIM, false, STAGES, T> stream = kv_stream_of<false>(ring, count, maps, block);
    stream.prologue(thread);
    count.ahead = min(STAGES, (unsigned)stream.tiles);
}

/* Waits for tiles that were asked for, where there is another pass, or none. */
template <int DIM, unsigned STAGES, class T>
static __device__ __forceinline__ void drop_ahead(const tile_ring<DIM, STAGES, T> &ring, ring_count &count)
{
    for (; count.ahead > 0; count.ahead--, count.used++)
        barrier_wait(&ring.full[count.used % STAGES], count.used / STAGES % 2);
    __syncthreads();
}

/* Calls use(tiles) for all tiles of the block's keys in order. All threads of the block take part. */
template <int DIM, bool VALUES, unsigned STAGES, class T, class F>
static __device__ __forceinline__ void stream_tiles(const tile_ring<DIM, STAGES, T> &ring, ring_count &count,
                                                    const qkv_maps &maps, const row_block &block, F use)
{
    const kv_stream<DIM, VALUES, STAGES, T> stream = kv_stream_of<VALUES>(ring, count, maps, block);
    stream.prologue();
    for (int n = 0; n < stream.tiles; n++) {
        stream.wait_keys(n);
        stream.wait_values(n);
        use(stream.at(n));
        stream.release(n);
    }
    count.used += (unsigned)stream.tiles * stream.per_tile;
}

/* The steps of stream_pipelined one after another, without overlap. */
template <int DIM, bool VALUES, unsigned STAGES, class T, class SCORE, class WEIGH, class PACK,
          class ACCUMULATE>
static __device__ __forceinline__ void stream_serial(const tile_ring<DIM, STAGES, T> &ring, ring_count &count,
                                                     const qkv_maps &maps, const row_block &block,
                                                     const SCORE &score, const WEIGH &weigh, const PACK &pack,
                                                     const ACCUMULATE &accumulate)
{
    stream_tiles<DIM, VALUES>(
        ring, count, maps, block,
        [&](const kv_tile<T> &t) {
            score(t);
            wgmma_commit();
            wgmma_wait<0>();
            weigh(t);
            pack();
            accumulate(t);
            wgmma_commit();
            wgmma_wait<0>();
        });
}

/* A pass in four steps for each tile: score(tiles) issues the products that weights are made of; weigh(tiles)
 * makes weights when these products have ended; pack() converts the weights to register operands when no
 * product is in flight; accumulate(tiles) issues the products with these operands. PIPELINED, where the ring
 * has room: the scores of the next tile are issued before accumulate of this one, so that the tensor cores
 * work while the next weights are made. SCORE_VALUES: score reads the values too. */
template <int DIM, bool VALUES, bool PIPELINED, bool SCORE_VALUES = false, unsigned STAGES, class T,
          class SCORE, class WEIGH, class PACK, class ACCUMULATE>
static __device__ __forceinline__ void stream_pipelined(const tile_ring<DIM, STAGES, T> &ring,
                                                        ring_count &count, const qkv_maps &maps,
                                                        const row_block &block, SCORE score, WEIGH weigh,
                                                        PACK pack, ACCUMULATE accumulate)
{
    if constexpr (!PIPELINED || STAGES <= (VALUES ? 4 : 2)) {
        stream_serial<DIM, VALUES>(ring, count, maps, block, score, weigh, pack, accumulate);
        return;
    }
    const kv_stream<DIM, VALUES, STAGES, T> stream = kv_stream_of<VALUES>(ring, count, maps, block);
    if (stream.tiles <= 0) return;
    stream.prologue();
    stream.wait_keys(0);
    if (SCORE_VALUES) stream.wait_values(0);
    kv_tile<T> t = stream.at(0);
    score(t);
    wgmma_commit();
    wgmma_commit(); /* an empty group, in the place of accumulate of the tile before */
    for (int n = 0;; n++) {
        wgmma_wait<1>();
        weigh(t);
        /* This wait, a loop, also keeps the compiler from moving weigh beyond the wait for the sums below. */
        const bool more = n + 1 < stream.tiles;
        if (more) stream.wait_keys(n + 1);
        wgmma_wait<0>();
        pack();
        if (!SCORE_VALUES)
            stream.wait_values(n);
        else if (more)
            stream.wait_values(n + 1);
        if (!more) break;
        const kv_tile<T> after = stream.at(n + 1);
        score(after);
        wgmma_commit();
        accumulate(t);
        wgmma_commit();
        stream.release(n - 1);
        t = after;
    }
    accumulate(t);
    wgmma_commit();
    wgmma_wait<0>();
    __syncthreads();
    count.used += (unsigned)stream.tiles * stream.per_tile;
    if (asks_ahead<DIM, STAGES>) count.ahead = 0;
}

#endif
