/* SPDX-License-Identifier: MIT
 * Forward with a given probe on Hopper: its shared memory, and the producers, which tell the consumers of
 * blocks of rows and copy queries, keys and values for them. */
#ifndef LOAM_LOCAL_HOPPER_FORWARD_GIVEN_STREAM_CUH
#define LOAM_LOCAL_HOPPER_FORWARD_GIVEN_STREAM_CUH

#include "src/gpu/blocks.cuh"
#include "src/gpu/cluster.cuh"
#include "src/gpu/ring.cuh"
#include "src/local/hopper/decay.cuh"
#include "src/local/hopper/forward_given_sums.cuh"

/* Of the `tiles` tiles of a block, those in which the rows of a warpgroup see keys: begin .. end - 1. All
 * these rows see keys unmasked_begin .. unmasked_end - 1. */
struct tile_range {
    int begin, end, tiles, unmasked_begin, unmasked_end;
    /* Where keys are in segments: whether the block before it in the cluster hands over sums of the same
     * rows, whether this one does, and whether either is so or the tiles are of several segments. */
    bool receives, sends, merges;
};

/* A block of rows, as one thread of the producers tells all others: its 64-bit divisions take a microsecond.
 * No rows: there are no more blocks. */
template <class S> struct given_task {
    row_block block;
    tile_range range[S::consumers];
    int column; /* the first of its columns of o */
    /* Of given_forward_sums::folded: whether weights of the probe are folded, and what a warpgroup answers,
     * whether they should have been. */
    bool folds, overflows;
    unsigned number;
};
enum { TASKS = 2 };

/* Of the rows of a warp: means to be saved, whose pitch spreads eight rows over all banks, or, before, o of
 * the segments of keys so far, a lane's part side by side. */
template <int COLUMNS> union warp_sums {
    float row[16][COLUMNS + 8];
    float4 part[COLUMNS / 8][32];
};
template <> union warp_sums<0> {
};

/* What a thread knows of the segments before that which it sums: their weights, and the parity of the
 * hand-over to wait for before they are there, if any. */
struct segment_state {
    segment_weights total;
    unsigned awaited;
};
enum { NOTHING_AWAITED = 2 };

template <class S> struct given_forward_shared {
    typedef typename S::type T;
    /* The rows of each warpgroup; their outputs overwrite their queries. */
    alignas(1024) T query[S::consumers][S::row_stages][S::dim * TILE_SIDE];
    T probe[S::probed ? S::consumers : 1][S::row_stages][S::probed ? S::dim * TILE_SIDE : 512];
    alignas(16) warp_sums<S::stages_saved ? S::columns : 0> saved[S::stages_saved ? S::rows / 16 : 1];
    alignas(1024) T keys[S::key_stages][S::dim * S::keys];
    T values[S::value_stages][S::columns * S::keys];
    ring_barriers<S::key_stages> key_ring;
    ring_barriers<S::value_stages> value_ring;
    given_task<S> task[TASKS];
    ring_barriers<TASKS> task_ring;
    ring_barriers<S::row_stages> row_ring[S::consumers];
    uint64_t tail;
    row_state state[S::consumers * THREADS];
    segment_state segment[S::segment ? S::consumers * THREADS : 1];
    /* Of a warpgroup: it has received the sums of the block before; the warps of that of the block after
     * may. */
    uint64_t received[S::consumers], receives[S::consumers];
    relative_decay<S::decayed, S::keys> decay[S::key_stages]; /* of the keys in each stage */
};

struct given_forward_maps {
    CUtensorMap q, k, v, probe;
    CUtensorMap o;     /* in boxes of the 16 rows of a warp */
    bool stores_boxes; /* whether bulk copies can write o */
};

/* Number n of the blocks, of `rows` rows. Tiles begin at multiples of their size, so that the bits of a row
 * do not depend on the block that it lies in. */
template <class S>
static __device__ __forceinline__ row_block given_block_at(const loam_problem &p, const loam_args &a,
                                                           unsigned n, int rows)
{
    row_block block = row_block_of(p, a, n / S::parts, rows);
    block.first -= block.first % S::keys;
    return block;
}

/* The first and the last row that warpgroup w has; none where last < first. */
struct row_span {
    int64_t first, last;
};

static __device__ __forceinline__ row_span row_span_of(const row_block &block, int w)
{
    return { block.i0 + w * ROWS, block.i0 + min(block.rows, (w + 1) * ROWS) - 1 };
}

template <int KEYS>
static __device__ __forceinline__ tile_range tiles_of(const loam_problem &p, const row_block &block, int w)
{
    const row_span span = row_span_of(block, w);
    int64_t lo, hi, unmasked_begin, unmasked_end;
    local_visible(&p, &block.s, span.first, &lo, &unmasked_end);
    local_visible(&p, &block.s, span.last, &unmasked_begin, &hi);
    tile_range range = { 0, 0, (block.last - block.first + KEYS - 1) / KEYS, (int)unmasked_begin,
                         (int)unmasked_end };
    const int from = max((int)lo, block.first), to = min((int)hi, block.last);
    if (span.first <= span.last && from < to) {
        range.begin = (from - block.first) / KEYS;
        range.end = (to - block.first + KEYS - 1) / KEYS;
    }
    return range;
}

/* Shares out the segments of keys that a block of rows sees among the last thread blocks of the cluster, a
 * run of them to each; the last one writes what comes of it. Returns whether this thread block has any.
 * edges: whether there are some before and after. */
template <class S> static __device__ __forceinline__ bool take_segments(row_block &block, tile_range &edges)
{
    edges.receives = edges.sends = false;
    if constexpr (S::segment != 0) {
        const int ranks = (int)gridDim.y, from = block.first / S::segment,
                  to = (block.last + S::segment - 1) / S::segment, all = max(to - from, 1),
                  used = min(all, ranks), n = (int)blockIdx.y - (ranks - used);
        if (n < 0) return false;
        edges.receives = n > 0, edges.sends = n + 1 < used;
        block.first = max(block.first, (from + all * n / used) * S::segment);
        block.last = min(block.last, (from + all * (n + 1) / used) * S::segment);
    }
    return true;
}

/* Whether the rows of warpgroup w have sums of several segments. */
template <class S>
static __device__ __forceinline__ void mark_segments(tile_range &range, const tile_range &edges,
                                                     const row_block &block, int w)
{
    if constexpr (S::segment != 0) {
        constexpr int tiles = S::segment / S::keys;
        const int before = block.first % S::segment / S::keys;
        const bool any = w * ROWS < block.rows;
        range.receives = any && edges.receives, range.sends = any && edges.sends;
        range.merges = range.receives || range.sends ||
                       (before + range.begin) / tiles < (before + range.end - 1) / tiles;
    }
}

/* ------------------------------------------------------------------ copies */

/* Brings a tensor map near; the first copy by it then need not wait for it. */
static __device__ __forceinline__ void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Stores `bytes`, a multiple of 16, as both addresses are, by a bulk copy. A fence_async_proxy comes between
 * the writes to shared memory and this. */
static __device__ __forceinline__ void store_bytes(void *global, const void *shared, unsigned bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
                 "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

/* Describes block n as task number `count`, whose place is free. Returns whether there is something to do:
 * the sequence has such a block, and this thread block a part of its keys. */
template <class S>
static __device__ __forceinline__ bool describe_task(given_forward_shared<S> &sm, const loam_problem &p,
                                                     const loam_args &a, unsigned n, int rows, bool folds,
                                                     unsigned count)
{
    given_task<S> &task = sm.task[count % TASKS];
    task.block = given_block_at<S>(p, a, n, rows);
    asm volatile("" ::: "memory"); /* no registers for it */
    tile_range edges;
    if (task.block.rows <= 0 || !take_segments<S>(task.block, edges)) return false;
#pragma unroll 1
    for (int w = 0; w < S::consumers; w++) {
        task.range[w] = tiles_of<S::keys>(p, task.block, w);
        mark_segments<S>(task.range[w], edges, task.block, w);
    }
    task.column = (int)(n % S::parts) * S::columns;
    task.folds = folds, task.number = n;
    return true;
}

/* Tells all others of the task, and copies queries and probes for each warpgroup when it has released those
 * before. */
template <class S>
static __device__ __forceinline__ void begin_task(given_forward_shared<S> &sm, const given_forward_maps &maps,
                                                  unsigned count)
{
    constexpr unsigned bytes = (S::probed ? 2 : 1) * S::dim * ROWS * 2;
    const row_block &block = sm.task[count % TASKS].block;
    barrier_arrive(&sm.task_ring.full[count % TASKS]);
    const int h = (int)block.h, b = (int)block.s.b, stage = count % S::row_stages;
    int token = (int)(block.s.q0 + block.i0);
#pragma unroll 1
    for (int w = 0; w < S::consumers; w++, token += ROWS) {
        uint64_t *full = ring_acquire(sm.row_ring[w], count, bytes);
        load_tile<S::dim>(sm.query[w][stage], maps.q, full, token, h, b);
        if (S::probed) load_tile<S::dim>(sm.probe[w][stage], maps.probe, full, token, h, b);
    }
}

/* Block number `round` of this thread block, or `blocks`. A cluster takes its rounds backwards: the last rank
 * alone has the blocks of early rows, and need not wait before them for the sums of late ones. */
static __device__ __forceinline__ unsigned given_block_of_round(unsigned blocks, unsigned round)
{
    const unsigned last = (blocks - 1) / gridDim.x;
    return block_of_round(blocks, gridDim.y > 1 ? last - round : round);
}

/* Waits until the place of task number `count` is free. Tells whether the block that had it has to be done
 * again, folded: number n. */
template <class S>
static __device__ __forceinline__ bool overflowed(given_forward_shared<S> &sm, unsigned count, unsigned &n)
{
    given_task<S> &task = sm.task[count % TASKS];
    barrier_wait(&sm.task_ring.empty[count % TASKS], count / TASKS % 2 ^ 1);
    if (!given_forward_sums<S>::folded || !task.overflows) return false;
    task.overflows = false, n = task.number;
    return true;
}

/* The producer thread of rows. described: the task of the first round is there. */
template <class S>
static __device__ __forceinline__ void produce_rows(given_forward_shared<S> &sm, const loam_problem &p,
                                                    const loam_args &a, const given_forward_maps &maps,
                                                    unsigned blocks, int rows, bool described)
{
    constexpr unsigned ends = given_forward_sums<S>::folded ? TASKS : 1;
    unsigned count = 0, round = 1, end = 0;
    if (described) begin_task(sm, maps, count++);
    while (end < ends) {
        unsigned n;
        const bool again = overflowed(sm, count + end, n);
        if (!again) {
            if (has_round<true>(blocks, round))
                n = given_block_of_round(blocks, round++);
            else
                n = blocks, end++;
        }
        if (n < blocks && describe_task(sm, p, a, n, rows, again, count)) begin_task(sm, maps, count++);
    }
    sm.task[count % TASKS].block.rows = 0;
    barrier_arrive(&sm.task_ring.full[count % TASKS]);
}

/* Calls use(block, column) for each block in turn, with its first column of o: the loop of the other producer
 * warps. */
template <class S, class F>
static __device__ __forceinline__ void for_each_task(given_forward_shared<S> &sm, F use)
{
    for (unsigned count = 0;; count++) {
        const given_task<S> &task = sm.task[count % TASKS];
        ring_wait(sm.task_ring, count);
        if (task.block.rows == 0) break;
        use(task.block, task.column);
        ring_release(sm.task_ring, count);
    }
}

/* Rows `from` .. KEYS - 1 of a tile become 0; the lanes of a warp share the work. */
template <int DIM, int KEYS, class T> static __device__ __forceinline__ void clear_tail(T *tile, int from)
{
    const uint4 zeros = make_uint4(0, 0, 0, 0);
#pragma unroll 1
    for (int c = 0; c < DIM; c += TILE_SIDE) {
#pragma unroll 1
        for (int e = from * TILE_SIDE + threadIdx.x % 32 * 8; e < KEYS * TILE_SIDE; e += 32 * 8)
            *(uint4 *)(tile + c * KEYS + e) = zeros;
    }
}

/* The producer warp of keys and values. Values beyond the last key that the block sees may be NaN (beyond the
 * sequence, anything), which weights of 0 do not cancel. So the last tile of values completes on `tail`
 * first; the warp clears the rows beyond the last key and then arrives at the full barrier. */
template <class S>
static __device__ __forceinline__ void produce_tiles(given_forward_shared<S> &sm,
                                                     const given_forward_maps &maps)
{
    constexpr unsigned key_bytes = S::dim * S::keys * 2, value_bytes = S::columns * S::keys * 2;
    const bool first = threadIdx.x % 32 == 0;
    unsigned count = 0, tails = 0;
    for_each_task(sm, [&](const row_block &block, int column) {
        for (int j = block.first; j < block.last; j += S::keys, count++) {
            const unsigned stage = count % S::value_stages;
            const int64_t token = block.s.k0 + j;
            const bool full_tile = block.last - j >= S::keys;
            if (first) {
                uint64_t *full = ring_acquire(sm.key_ring, count, key_bytes);
                load_tile<S::dim, S::keys>(sm.keys[count % S::key_stages], maps.k, full, (int)token,
                                           (int)block.h_kv, (int)block.s.b);
                if (full_tile) {
                    full = ring_acquire(sm.value_ring, count, value_bytes);
                } else {
                    barrier_wait(&sm.value_ring.empty[stage], count / S::value_stages % 2 ^ 1);
                    barrier_expect(full = &sm.tail, value_bytes);
                }
                load_tile<S::columns, S::keys>(sm.values[stage], maps.v, full, (int)token, (int)block.h_kv,
                                               (int)block.s.b, column);
            }
            if (!full_tile) {
                __syncwarp();
                barrier_wait(&sm.tail, tails++ % 2);
                clear_tail<S::columns, S::keys>(sm.values[stage], block.last - j);
                fence_async_proxy();
                __syncwarp();
                if (first) barrier_arrive(&sm.value_ring.full[stage]);
            }
            __syncwarp();
        }
    });
}

/* The producer warp of decays: fills the relative_decay of each tile of keys, and each lane arrives at the
 * full barrier of its stage. */
template <class S>
static __device__ __forceinline__ void produce_decay(given_forward_shared<S> &sm, const loam_args &a)
{
    unsigned count = 0;
    for_each_task(sm, [&](const row_block &block, int) {
        const local_decay_pair *const sums = decay_sums(a, block.s, block.h);
        for (int j = block.first; j < block.last; j += S::keys, count++) {
            const relative_decay_keys<S::keys> keys(sums, j, block.last);
            const unsigned stage = count % S::key_stages;
            barrier_wait(&sm.key_ring.empty[stage], count / S::key_stages % 2 ^ 1);
            keys.store(sm.decay[stage]);
            barrier_arrive(&sm.key_ring.full[stage]);
        }
    });
}

#endif
