/* SPDX-License-Identifier: MIT
 *
 * The pass over the chunks of a sequence on Hopper: what is sequential, and nothing else. A thread block has rows of the state of one
 * head, or a tile of 64 by 64 where no product sums over its columns, and takes one chunk after the other:
 *
 *     additive           S1 = S0 Diag(total) + u^T k_out
 *     delta rule         u = u_hat - w S0^T,   S1 = S0 Diag(total) + u^T k_out
 *     backward, additive dS0 = dS1 Diag(total) + do^T q_in
 *     backward, delta    du = P^T do + k_out dS1^T,   dS0 = dS1 Diag(total) + do^T q_in - du^T w
 *
 * backward from the last chunk to the first. All four find the state of the next chunk from a snapshot of this one's in bf16, the operand
 * of the products and what other kernels read; the state itself is float32, in registers. What a warpgroup does is in a file each
 * (recurrent_pass_additive, _delta and _reverse_sm90.cuh); one more warp asks for copies of the next chunks, into a ring, and one for
 * those out. Here is what they share.
 */
#ifndef LOAM_RECURRENT_RECURRENT_PASS_SM90_CUH
#define LOAM_RECURRENT_RECURRENT_PASS_SM90_CUH

#include "src/gpu/ring.cuh"
#include "src/recurrent/recurrent_operands_sm90.cuh"

/* The sources of a chunk by what the pass does with them. */
struct pass_arrays {
    chunk_map value, value_low; /* u_hat; do */
    chunk_map key, key_low;     /* what the state takes up: k_out; q_in */
    chunk_map read;             /* delta: what reads the state: w; k_out */
    chunk_map erase;            /* delta, backward: w */
    chunk_map pairs;            /* delta, backward: P */
    const float *total, *after;
    chunk_map snapshot;           /* written: states; grad_states */
    chunk_map result, result_low; /* written, delta: u; du */
    bool with_low;                /* u in two parts */
    loam_const_view begin;
    loam_view end;
    float scale; /* backward: of do */
};

template <int DIM, bool DELTA, bool BACKWARD, bool LOW> struct pass_shape {
    static constexpr bool parts = DELTA && !BACKWARD; /* two of u_hat, S0 and u; LOW: of k_out too */
    static constexpr int rows = parts ? SIDE / 2 : SIDE, columns = DELTA ? DIM : SIDE; /* of the state */
    static constexpr int tiles = columns / SIDE;
    /* The tiles of a slot of the ring, after the value, of whose two parts each is half a tile. */
    static constexpr int key = 1, key_low = key + tiles, read = LOW ? key_low + tiles : key_low,
                         erase = read + (DELTA ? tiles : 0);
    static constexpr int pairs = erase + (DELTA && BACKWARD ? tiles : 0);
    static constexpr int all = pairs + (DELTA && BACKWARD ? 1 : 0);
    static constexpr int first_view =
        parts ? key : 0; /* u_hat of a delta rule is an array over slots: zeros follow */
    static constexpr int slots = all > 6 ? 3 : all > 4 ? 4 : 6;
    static constexpr int places = DELTA && BACKWARD
                                      ? 2
                                      : 4; /* of what is on its way out: snapshots and results by turns */
    static constexpr int results = DELTA ? places / 2 : 0, snapshots = places - results;
    static constexpr int blocks_of_head = DIM / rows * (DIM / columns);
    static constexpr int consumers = 128,
                         threads = consumers + 64; /* one warp asks for copies, one for those out */
};

template <int DIM, bool DELTA, bool BACKWARD, bool LOW> struct pass_shared {
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    alignas(1024) __nv_bfloat16 ring_tiles[of::slots][of::all * TILE_ELEMENTS];
    __nv_bfloat16 snapshot[of::snapshots][of::tiles * of::rows * SIDE]; /* on the way out */
    __nv_bfloat16 result[DELTA ? of::results : 1][DELTA ? (1 + of::parts) * CHUNK_TOKENS * of::rows : 512];
    float total[of::slots][of::columns];
    float after[DELTA && !BACKWARD && !LOW ? of::slots : 1][CHUNK_TOKENS];
    ring_barriers<of::slots> ring;
    uint64_t cleared;
};

/* What a thread block has: rows from `row`, columns from `column` of the state of head h of a sequence. The rest of chunk number `shared`,
 * counted as they are taken, is the next sequence's. */
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
    block.row = (int)tile % (DIM / of::rows) * of::rows, block.column = (int)tile / (DIM / of::rows) * SIDE;
    block.chunks = __shfl_sync(0xffffffffu, (unsigned)((block.s.len + CHUNK_TOKENS - 1) / CHUNK_TOKENS), 0);
    const bool ends_within = p.total_q >= 0 && block.s.len % CHUNK_TOKENS != 0;
    block.shared = !ends_within ? ~0u : BACKWARD ? 0 : block.chunks - 1;
    return block;
}

/* The chunk that comes first. */
template <bool BACKWARD>
static __device__ __forceinline__ chunk_place pass_begin(const recurrent_chunks &x, const pass_block &block)
{
    return chunk_of_sequence(x, block.s, block.h, BACKWARD ? (int64_t)block.chunks - 1 : 0);
}

/* ------------------------------------------------------------------ copies */

/* What a slot of the ring is filled with. */
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW> struct pass_boxes {
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    static constexpr bool late = GATED && of::parts && !LOW; /* u takes e^suf, k_out is k */
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
            copy_bytes(sm.total[slot], total, of::columns * 4, full);
            total += BACKWARD ? -DIM : DIM;
        }
        if constexpr (late) {
            copy_bytes(sm.after[slot], after, CHUNK_TOKENS * 4, full);
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

/* One warp. What follows the last token of a packed sequence is the next one's, and 0 times what is there need not be 0: such rows
 * become zeros. */
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
            ring_await(sm.ring, n);
            clear_rows<of::all - of::first_view>(sm.ring_tiles[slot] + of::first_view * TILE_ELEMENTS,
                                                 (int)(block.s.len % CHUNK_TOKENS), threadIdx.x % 32, 32);
            fence_async_proxy();
            barrier_arrive(&sm.cleared);
        }
    }
}

/* Chunk number n is there. */
template <class SHARED>
static __device__ __forceinline__ void pass_await(SHARED &sm, const pass_block &block, unsigned n)
{
    ring_await(sm.ring, n);
    if (n == block.shared) {
        barrier_wait(&sm.cleared, 0);
    }
}

/* ------------------------------------------------------------------ the state */

/* What a thread has of the state: two columns of each eight, in one row or in two eight rows apart. use(x, row, column), counted from
 * the block's. */
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

/* The decays of a thread's columns. */
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

/* ------------------------------------------------------------------ copies out */

/* Tiles on their way out, in PLACES places by turns: the warpgroup writes, one warp copies. Barriers of the hardware, which take no
 * branch: one between products that are under way would cost a wait for them. */
enum { PUT_THREADS = 128 + 32 };

static __device__ __forceinline__ void put_begin(unsigned place)
{
    threads_await<PUT_THREADS>(1 + (int)place);
}
template <int PLACES> static __device__ __forceinline__ void put_end(unsigned place)
{
    threads_arrive<PUT_THREADS>(1 + PLACES + (int)place);
}

/* One warp: copy(n) for tiles 0 .. count - 1. The place of one has been read when the copy after it is under way. */
template <int PLACES, class F> static __device__ __forceinline__ void copy_put_tiles(unsigned count, F copy)
{
    for (unsigned n = 0; n < min(count, (unsigned)PLACES); n++) {
        threads_arrive<PUT_THREADS>(1 + (int)n);
    }
#pragma unroll 1
    for (unsigned n = 0; n < count; n++) {
        threads_await<PUT_THREADS>(1 + PLACES + (int)(n % PLACES));
        if (threadIdx.x % 32 == 0) {
            fence_async_proxy(); /* for all that wrote: theirs would wait for the products that are under way */
            copy(n);
            copies_out_commit();
            copies_out_wait<1>();
        }
        __syncwarp();
        if (n > 0 && n - 1 + PLACES < count) {
            threads_arrive<PUT_THREADS>(1 + (int)((n - 1) % PLACES));
        }
    }
    copies_out_wait<0>();
}

/* One warp: snapshots, and with a delta rule a result after each, go out. */
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
            snapshot.copy_out(sm.snapshot[(DELTA ? n / 2 : n) % of::snapshots], of::rows * SIDE);
        }
    });
}

/* What the warpgroup of a block does: PASS has its part of the state, and takes it through the chunks. */
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
