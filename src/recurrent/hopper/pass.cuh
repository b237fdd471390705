/* SPDX-License-Identifier: MIT
 *
 * PASS and REVERSE, the sequential stages on Hopper, which carry the state from chunk to chunk. A thread
 * block has some rows of the state of one head, or a tile of 64 x 64 where no product sums over the columns
 * of the state. S0, S1: state before and after a chunk.
 *
 *     additive           S1 = S0 Diag(total) + u^T k_out
 *     delta rule         u = u_hat - w S0^T,   S1 = S0 Diag(total) + u^T k_out
 *     backward, additive dS0 = dS1 Diag(total) + do^T q_in
 *     backward, delta    du = P^T do + k_out dS1^T,   dS0 = dS1 Diag(total) + do^T q_in - du^T w
 *
 * do is scaled; backward goes from the last chunk to the first. The state is float32 in registers.
 * For each chunk a snapshot of it in bf16 is written, which other kernels read; the same rounding of
 * the state, forward with its lo part, is the operand of w S0^T and of k_out dS1^T. A warpgroup
 * computes (recurrent_pass_additive, _delta and _reverse_hopper.cuh), a producer warp fills a ring of
 * stages with the arrays of the next chunks, and one more warp copies snapshots and results to global
 * memory. This file has what they share.
 */
#ifndef LOAM_RECURRENT_HOPPER_PASS_CUH
#define LOAM_RECURRENT_HOPPER_PASS_CUH

#include "src/gpu/ring.cuh"
#include "src/recurrent/hopper/operands.cuh"

/* The arrays of a chunk, named by their role in the pass: forward; backward. */
struct pass_arrays {
    chunk_map value, value_low; /* u_hat; do */
    chunk_map key, key_low;     /* added to the state, value^T key: k_out; q_in */
    chunk_map read;             /* delta: multiplies the state, read S^T: w; k_out */
    chunk_map erase;            /* delta, backward: subtracted from the state, du^T erase: w */
    chunk_map pairs;            /* delta, backward: P */
    const float *total, *after;
    chunk_map snapshot;           /* written: states; grad_states */
    chunk_map result, result_low; /* written, delta: u; du */
    bool with_low;                /* store the lo part of u too */
    loam_const_view begin;
    loam_view end;
    float scale; /* backward: multiplies do */
};

template <int DIM, bool DELTA, bool BACKWARD, bool LOW> struct pass_shape {
    /* u_hat, S0 and u have hi and lo parts. LOW: k_out too. */
    static constexpr bool parts = DELTA && !BACKWARD;
    static constexpr int rows = parts ? TILE_SIDE / 2 : TILE_SIDE,
                         columns = DELTA ? DIM : TILE_SIDE; /* of the state */
    static constexpr int tiles = columns / TILE_SIDE;
    /* The index of the first tile of each array in a stage of the ring. The value is tile 0; its hi and lo
     * part are half a tile each. */
    static constexpr int key = 1, key_low = key + tiles, read = LOW ? key_low + tiles : key_low,
                         erase = read + (DELTA ? tiles : 0);
    static constexpr int pairs = erase + (DELTA && BACKWARD ? tiles : 0);
    static constexpr int all = pairs + (DELTA && BACKWARD ? 1 : 0);
    /* The first tile that may have rows of the next sequence. u_hat of a delta rule has none: rows beyond the
     * end of an array over slots are 0. */
    static constexpr int first_view = parts ? key : 0;
    static constexpr int slots = all > 6 ? 3 : all > 4 ? 4 : 6; /* stages of the ring */
    /* Output buffers; with a delta rule snapshots and results alternate. */
    static constexpr int places = DELTA && BACKWARD ? 2 : 4;
    static constexpr int results = DELTA ? places / 2 : 0, snapshots = places - results;
    static constexpr int blocks_of_head = DIM / rows * (DIM / columns);
    /* The warpgroup; a warp for copies to shared memory and a warp for copies to global memory. */
    static constexpr int consumers = 128, threads = consumers + 64;
};

template <int DIM, bool DELTA, bool BACKWARD, bool LOW> struct pass_shared {
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    alignas(1024) __nv_bfloat16 ring_tiles[of::slots][of::all * TILE_ELEMENTS];
    __nv_bfloat16 snapshot[of::snapshots][of::tiles * of::rows * TILE_SIDE]; /* output buffers, result too */
    __nv_bfloat16 result[DELTA ? of::results : 1][DELTA ? (1 + of::parts) * CHUNK_TOKENS * of::rows : 512];
    float total[of::slots][of::columns];
    float after[DELTA && !BACKWARD && !LOW ? of::slots : 1][CHUNK_TOKENS];
    ring_barriers<of::slots> ring;
    uint64_t cleared;
};

/* The work of a thread block: rows from `row`, columns from `column` of the state of value head h of sequence
 * s. Chunks are numbered in the order of the pass. Chunk number `shared` (~0: none) is the last one of a
 * packed sequence, where rows of the next sequence follow. */
struct pass_block {
    chunk_sequence s;
    int64_t h;
    int row, column;
    unsigned chunks, shared;
};

template <int DIM, bool DELTA, bool BACKWARD, bool LOW>
static __device__ __forceinline__ pass_block pass_block_at(const loam_problem &p, const loam_args &a,
                                                           const recurrent_chunks &x)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    const unsigned tile = blockIdx.x % of::blocks_of_head, rest = blockIdx.x / of::blocks_of_head;
    pass_block block;
    block.h = rest % (unsigned)p.heads_v;
    block.s = chunk_sequence_at(p, a, x, rest / (unsigned)p.heads_v);
    block.row = (int)tile % (DIM / of::rows) * of::rows,
    block.column = (int)tile / (DIM / of::rows) * TILE_SIDE;
    block.chunks = __shfl_sync(0xffffffffu, (unsigned)((block.s.len + CHUNK_TOKENS - 1) / CHUNK_TOKENS), 0);
    const bool ends_within = p.total_q >= 0 && block.s.len % CHUNK_TOKENS != 0;
    block.shared = !ends_within ? ~0u : BACKWARD ? 0 : block.chunks - 1;
    return block;
}

/* The first chunk in the order of the pass. */
template <bool BACKWARD>
static __device__ __forceinline__ chunk_place pass_begin(const recurrent_chunks &x, const pass_block &block)
{
    return chunk_of_sequence(x, block.s, block.h, BACKWARD ? (int64_t)block.chunks - 1 : 0);
}

/* ------------------------------------------------------------------ copies */

/* The coordinates of the copies that fill a stage of the ring, `bytes` in all. */
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW> struct pass_boxes {
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    static constexpr bool late = GATED && of::parts && !LOW; /* e^suf multiplies u, and key is k */
    static constexpr unsigned bytes = of::all * TILE_ELEMENTS * 2 + (GATED ? of::columns * 4 : 0) +
                                      (late ? CHUNK_TOKENS * 4 : 0);
    chunk_boxes<1> value, value_low, pairs;
    chunk_boxes<of::tiles> key, key_low, read, erase;
    const float *total, *after;

    __device__ __forceinline__ pass_boxes(const pass_arrays &arrays, const pass_block &block,
                                          const chunk_place &x)
    {
        constexpr int step = BACKWARD ? -1 : 1;
        value = chunk_boxes_at<1>(arrays.value, block.row, 0, x, step);
        key = chunk_boxes_at<of::tiles>(arrays.key, block.column, 0, x, step);
        if (of::parts) {
            value_low = chunk_boxes_at<1>(arrays.value_low, block.row, 0, x, step);
        }
        if (LOW) {
            key_low = chunk_boxes_at<of::tiles>(arrays.key_low, block.column, 0, x, step);
        }
        if (DELTA) {
            read = chunk_boxes_at<of::tiles>(arrays.read, 0, 0, x, step);
        }
        if (DELTA && BACKWARD) {
            pairs = chunk_boxes_at<1>(arrays.pairs, 0, 0, x, step);
            erase = chunk_boxes_at<of::tiles>(arrays.erase, 0, 0, x, step);
        }
        total = arrays.total + x.slot * DIM + block.column;
        after = arrays.after + (late ? x.slot * CHUNK_TOKENS : 0);
    }

    __device__ __forceinline__ void copy(pass_shared<DIM, DELTA, BACKWARD, LOW> &sm, unsigned slot,
                                         uint64_t *full)
    {
        __nv_bfloat16 *tiles = sm.ring_tiles[slot];
        barrier_expect(full, bytes);
        value.copy(tiles, full);
        if constexpr (of::parts) {
            value_low.copy(tiles + TILE_ELEMENTS / 2, full);
        }
        if constexpr (DELTA && BACKWARD) {
            pairs.copy(tiles + of::pairs * TILE_ELEMENTS, full);
        }
        if constexpr (DELTA) {
            read.copy(tiles + of::read * TILE_ELEMENTS, full);
        }
        if (GATED) {
            load_bytes(sm.total[slot], total, of::columns * 4, full);
            total += BACKWARD ? -DIM : DIM;
        }
        if constexpr (late) {
            load_bytes(sm.after[slot], after, CHUNK_TOKENS * 4, full);
            after += CHUNK_TOKENS;
        }
        key.copy(tiles + of::key * TILE_ELEMENTS, full);
        if constexpr (LOW) {
            key_low.copy(tiles + of::key_low * TILE_ELEMENTS, full);
        }
        if constexpr (DELTA && BACKWARD) {
            erase.copy(tiles + of::erase * TILE_ELEMENTS, full);
        }
    }
};

/* The producer, one warp. The rows after the last token of a packed sequence belong to the next
 * sequence. Their weights are 0, but 0 times inf or NaN is not 0: the producer sets these rows to 0 and
 * arrives at the barrier `cleared`. */
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW>
static __device__ __forceinline__ void pass_ask(pass_shared<DIM, DELTA, BACKWARD, LOW> &sm,
                                                const recurrent_chunks &chunks, const pass_arrays &arrays,
                                                const pass_block &block)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    pass_boxes<DIM, DELTA, GATED, BACKWARD, LOW> boxes(arrays, block, pass_begin<BACKWARD>(chunks, block));
#pragma unroll 1
    for (unsigned n = 0; n < block.chunks; n++) {
        const unsigned slot = n % of::slots;
        if (threadIdx.x % 32 == 0) {
            barrier_wait(&sm.ring.empty[slot], n / of::slots % 2 ^ 1);
            boxes.copy(sm, slot, &sm.ring.full[slot]);
        }
        __syncwarp();
        if (n == block.shared) {
            ring_wait(sm.ring, n);
            clear_rows<of::all - of::first_view>(sm.ring_tiles[slot] + of::first_view * TILE_ELEMENTS,
                                                 (int)(block.s.len % CHUNK_TOKENS), threadIdx.x % 32, 32);
            fence_async_proxy();
            barrier_arrive(&sm.cleared);
        }
    }
}

/* Waits until stage n % slots has chunk number n. */
template <class SHARED>
static __device__ __forceinline__ void pass_await(SHARED &sm, const pass_block &block, unsigned n)
{
    ring_wait(sm.ring, n);
    if (n == block.shared) {
        barrier_wait(&sm.cleared, 0);
    }
}

/* ------------------------------------------------------------------ the state */

/* Calls use(x, row, column) for the elements of the state that a thread has: two columns of every
 * eight, in one row (ELEMENTS = 2) or in two rows that are eight apart (4). Row and column are
 * relative to the thread block's. */
template <int BLOCKS, int ELEMENTS, class F>
static __device__ __forceinline__ void each_of_state(float (&state)[BLOCKS][ELEMENTS], F use)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * (ELEMENTS * 4) + lane / 4,
              column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++) {
            use(state[n][e], row + e / 2 * 8, 8 * n + column + e % 2);
        }
    }
}

template <int BLOCKS, int ELEMENTS>
static __device__ __forceinline__ void begin_state(float (&state)[BLOCKS][ELEMENTS],
                                                   const loam_const_view &view, const pass_block &block)
{
    const float *from = (const float *)view.data + RECURRENT_AT(view, block.s.index, block.h, block.row) +
                        block.column;
    each_of_state(
        state, [&](float &x, int row, int column) { x = view.data ? from[row * view.token + column] : 0; });
}

template <int BLOCKS, int ELEMENTS>
static __device__ __forceinline__ void end_state(float (&state)[BLOCKS][ELEMENTS], const loam_view &view,
                                                 const pass_block &block)
{
    if (view.data) {
        float *to = (float *)view.data + RECURRENT_AT(view, block.s.index, block.h, block.row) + block.column;
        each_of_state(state, [&](float x, int row, int column) { to[row * view.token + column] = x; });
    }
}

/* Loads the decays of the thread's columns. */
template <int BLOCKS>
static __device__ __forceinline__ void load_totals(float2 (&to)[BLOCKS], const float *totals)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
        to[n] = *(const float2 *)(totals + 8 * n + threadIdx.x % 4 * 2);
    }
}

template <int BLOCKS, int ELEMENTS>
static __device__ __forceinline__ void decay_state(float (&state)[BLOCKS][ELEMENTS],
                                                   const float2 (&total)[BLOCKS])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += 2) {
            state[n][e] *= total[n].x, state[n][e + 1] *= total[n].y;
        }
    }
}

/* ------------------------------------------------------------------ copies to global memory */

/* Output buffers, PLACES of them in turn: the warpgroup writes a buffer, one warp copies it to global memory.
 * A buffer has two named barriers: 1 + n, it is empty, and 1 + PLACES + n, it is full. These need no branch,
 * unlike an mbarrier: a branch among asynchronous products makes the compiler wait for the products. */
enum { PUT_THREADS = 128 + 32 };

static __device__ __forceinline__ void put_begin(unsigned place)
{
    named_barrier_sync<PUT_THREADS>(1 + (int)place);
}
template <int PLACES> static __device__ __forceinline__ void put_end(unsigned place)
{
    named_barrier_arrive<PUT_THREADS>(1 + PLACES + (int)place);
}

/* One warp: copy(n) for buffers 0 .. count - 1 in the order of the pass. After the copy of buffer n is issued
 * it waits until that of buffer n - 1 has read shared memory, and then declares that buffer empty. */
template <int PLACES, class F> static __device__ __forceinline__ void copy_put_tiles(unsigned count, F copy)
{
    for (unsigned n = 0; n < min(count, (unsigned)PLACES); n++) {
        named_barrier_arrive<PUT_THREADS>(1 + (int)n);
    }
#pragma unroll 1
    for (unsigned n = 0; n < count; n++) {
        named_barrier_sync<PUT_THREADS>(1 + PLACES + (int)(n % PLACES));
        if (threadIdx.x % 32 == 0) {
            fence_async_proxy(); /* here for all writers: in the warpgroup it would wait for the products */
            copy(n);
            store_commit();
            store_wait<1>();
        }
        __syncwarp();
        if (n > 0 && n - 1 + PLACES < count) {
            named_barrier_arrive<PUT_THREADS>(1 + (int)((n - 1) % PLACES));
        }
    }
    store_wait<0>();
}

/* One warp: copies the snapshot of each chunk to global memory and, with a delta
 * rule, its result after it. */
template <int DIM, bool DELTA, bool BACKWARD, bool LOW>
static __device__ __forceinline__ void pass_put(pass_shared<DIM, DELTA, BACKWARD, LOW> &sm,
                                                const recurrent_chunks &chunks, const pass_arrays &arrays,
                                                const pass_block &block)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    const chunk_place x = pass_begin<BACKWARD>(chunks, block);
    constexpr int step = BACKWARD ? -1 : 1;
    chunk_boxes<of::tiles> snapshot = chunk_boxes_at<of::tiles>(arrays.snapshot, block.column, block.row, x,
                                                                step);
    chunk_boxes<1> result = {}, result_low = {};
    if (DELTA) {
        result = chunk_boxes_at<1>(arrays.result, block.row, 0, x, step);
    }
    const bool with_low = of::parts && arrays.with_low;
    if (with_low) {
        result_low = chunk_boxes_at<1>(arrays.result_low, block.row, 0, x, step);
    }
    copy_put_tiles<of::places>(block.chunks * (DELTA ? 2 : 1), [&](unsigned n) {
        if (DELTA && n % 2) {
            const __nv_bfloat16 *tile = sm.result[n / 2 % (DELTA ? of::results : 1)];
            result.copy_out(tile);
            if (with_low) {
                result_low.copy_out(tile + CHUNK_TOKENS * of::rows);
            }
        } else {
            snapshot.copy_out(sm.snapshot[(DELTA ? n / 2 : n) % of::snapshots], of::rows * TILE_SIDE);
        }
    });
}

/* The warpgroup: PASS has the block's part of the state in registers, and carries it through the chunks. */
template <class PASS, class SHARED>
static __device__ __forceinline__ void take_state(SHARED &sm, const pass_arrays &arrays,
                                                  const pass_block &block)
{
    PASS pass;
    begin_state(pass.state, arrays.begin, block);
    if (block.chunks > 0) {
        pass.run(sm, arrays, block);
    }
    end_state(pass.state, arrays.end, block);
}

#endif
