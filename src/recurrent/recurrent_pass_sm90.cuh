/* SPDX-License-Identifier: MIT
 *
 * The pass over the chunks of a sequence on Hopper: what is sequential, and nothing else. A thread block has 64 rows of the state of
 * one head, or a tile of 64 by 64 where no product sums over its columns, and takes one chunk after the other:
 *
 *     additive           S1 = S0 Diag(total) + u^T k_out
 *     delta rule         u = u_hat - w S0^T,   S1 = S0 Diag(total) + u^T k_out
 *     backward, additive dS0 = dS1 Diag(total) + do^T q_in
 *     backward, delta    du = P^T do + k_out dS1^T,   dS0 = dS1 Diag(total) + do^T q_in - du^T w
 *
 * backward from the last chunk to the first. All four find the state of the next chunk from a snapshot of this one's in bf16, the operand
 * of the products and what other kernels read; the state itself is float32, in registers. Everything is transposed, u^T = u_hat^T - S0
 * w^T, so that the state, and then u^T, go from one product into the next as they lie in registers: between chunks nothing passes
 * through shared memory, and no warp waits for another. A warp asks for copies of the next chunks, into a ring.
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
    const float *total;
    chunk_map snapshot; /* written: states; grad_states */
    chunk_map result;   /* written, delta: u; du */
    loam_const_view begin;
    loam_view end;
    float scale; /* backward: of do */
};

template <int DIM, bool DELTA, bool BACKWARD, bool LOW> struct pass_shape {
    static constexpr int columns = DELTA ? DIM : SIDE; /* of the state */
    static constexpr int tiles = columns / SIDE;
    static constexpr bool parts = DELTA && !BACKWARD; /* two of u_hat, S0 and u; LOW: of k_out too */
    /* The tiles of a slot of the ring. */
    static constexpr int key = parts ? 2 : 1, key_low = key + tiles, read = LOW ? key_low + tiles : key_low,
                         erase = read + (DELTA ? tiles : 0);
    static constexpr int pairs = erase + (DELTA && BACKWARD ? tiles : 0);
    static constexpr int all = pairs + (DELTA && BACKWARD ? 1 : 0);
    static constexpr int slots = all == 8 ? 3 : all > 3 ? 4 : 6;
    static constexpr int snapshots = DELTA ? 1 : 2;
    static constexpr int blocks_of_head = DIM / SIDE * (DIM / columns);
    static constexpr int consumers = 128,
                         threads = consumers + 64; /* one warp asks for copies, one for those out */
};

template <int DIM, bool DELTA, bool BACKWARD, bool LOW> struct pass_shared {
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    alignas(1024) __nv_bfloat16 ring_tiles[of::slots][of::all * TILE_ELEMENTS];
    __nv_bfloat16 snapshot[of::snapshots][of::tiles * TILE_ELEMENTS]; /* on the way out */
    __nv_bfloat16 result[DELTA ? TILE_ELEMENTS : 512];
    float total[of::slots][of::columns];
    ring_barriers<of::slots> ring;
    uint64_t tail;
};

/* What a thread block has: rows from `row`, columns from `column` of the state of head h of a sequence. */
struct pass_block {
    chunk_sequence s;
    int64_t h;
    int row, column, chunks;
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
    block.row = (int)tile % (DIM / SIDE) * SIDE, block.column = (int)tile / (DIM / SIDE) * SIDE;
    block.chunks = __shfl_sync(0xffffffffu, (int)((block.s.len + CHUNK_TOKENS - 1) / CHUNK_TOKENS), 0);
    return block;
}

/* The chunk that comes first. */
template <bool BACKWARD>
static __device__ __forceinline__ chunk_place pass_begin(const recurrent_chunks &x, const pass_block &block)
{
    return chunk_of_sequence(x, block.s, block.h, BACKWARD ? block.chunks - 1 : 0);
}

/* ------------------------------------------------------------------ copies */

/* What a slot of the ring is filled with. */
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW> struct pass_boxes {
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    static constexpr unsigned bytes = of::all * TILE_ELEMENTS * 2 + (GATED ? of::columns * 4 : 0);
    chunk_boxes<1> value, value_low, pairs;
    chunk_boxes<of::tiles> key, key_low, read, erase;
    const float *total;

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
    }

    __device__ __forceinline__ void copy(pass_shared<DIM, DELTA, BACKWARD, LOW> &sm, unsigned slot,
                                         uint64_t *full)
    {
        __nv_bfloat16 *tiles = sm.ring_tiles[slot];
        barrier_expect(full, bytes);
        value.copy(tiles, full);
        if constexpr (of::parts) {
            value_low.copy(tiles + TILE_ELEMENTS, full);
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
 * become zeros before the others hear of the slot. */
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW>
static __device__ __forceinline__ void pass_ask(pass_shared<DIM, DELTA, BACKWARD, LOW> &sm,
                                                const recurrent_chunks &chunks, const pass_arrays &arrays,
                                                const pass_block &block, bool packed)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    const bool first = threadIdx.x % 32 == 0;
    const unsigned count = (unsigned)block.chunks, last = BACKWARD ? 0 : count - 1;
    const int rest = (int)(block.s.len % CHUNK_TOKENS);
    pass_boxes<DIM, DELTA, GATED, BACKWARD, LOW> boxes(arrays, block, pass_begin<BACKWARD>(chunks, block));
#pragma unroll 1
    for (unsigned n = 0; n < count; n++) {
        const unsigned slot = n % of::slots;
        const bool whole = n != last || !packed || rest == 0;
        if (first) {
            barrier_wait(&sm.ring.empty[slot], n / of::slots % 2 ^ 1);
            boxes.copy(sm, slot, whole ? &sm.ring.full[slot] : &sm.tail);
        }
        if (!whole) {
            __syncwarp();
            barrier_wait(&sm.tail, 0);
            clear_rows<of::all>(sm.ring_tiles[slot], rest, threadIdx.x % 32, 32);
            fence_async_proxy();
            __syncwarp();
            if (first) {
                barrier_arrive(&sm.ring.full[slot]);
            }
        }
        __syncwarp();
    }
}

/* ------------------------------------------------------------------ the state */

/* use(x, row, column) for what the thread has of the state, row and column counted from the block's. */
template <int TILES, class F>
static __device__ __forceinline__ void each_of_state(float (&state)[TILES][8][4], F use)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < TILES * 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            use(state[n / 8][n % 8][e], row + e / 2 * 8, 8 * n + column + e % 2);
        }
    }
}

template <int TILES>
static __device__ __forceinline__ void begin_state(float (&state)[TILES][8][4], const loam_const_view &view,
                                                   const pass_block &block)
{
    const float *from = (const float *)view.data + RECURRENT_AT(view, block.s.index, block.h, block.row) +
                        block.column;
    each_of_state(
        state, [&](float &x, int row, int column) { x = view.data ? from[row * view.token + column] : 0; });
}

template <int TILES>
static __device__ __forceinline__ void end_state(float (&state)[TILES][8][4], const loam_view &view,
                                                 const pass_block &block)
{
    if (view.data) {
        float *to = (float *)view.data + RECURRENT_AT(view, block.s.index, block.h, block.row) + block.column;
        each_of_state(state, [&](float x, int row, int column) { to[row * view.token + column] = x; });
    }
}

/* ------------------------------------------------------------------ the chunks */

/* Tiles on their way out, in two places by turns: the warpgroup writes, one warp copies. Barriers of the hardware, which take no branch:
 * one between products that are under way would cost a wait for them. */
enum { PUT_THREADS = 128 + 32 };

static __device__ __forceinline__ void put_begin(unsigned place)
{
    threads_await<PUT_THREADS>(1 + (int)place);
}
static __device__ __forceinline__ void put_end(unsigned place)
{
    threads_arrive<PUT_THREADS>(3 + (int)place);
}

/* One warp: copy(n) for tiles 0 .. count - 1. The place of one has been read when the copy after it is under way. */
template <class F> static __device__ __forceinline__ void copy_put_tiles(unsigned count, F copy)
{
    for (unsigned n = 0; n < min(count, 2u); n++) {
        threads_arrive<PUT_THREADS>(1 + (int)n);
    }
#pragma unroll 1
    for (unsigned n = 0; n < count; n++) {
        threads_await<PUT_THREADS>(3 + (int)(n % 2));
        if (threadIdx.x % 32 == 0) {
            fence_async_proxy(); /* for all that wrote: theirs would wait for the products that are under way */
            copy(n);
            copies_out_commit();
            copies_out_wait<1>();
        }
        __syncwarp();
        if (n > 0 && n + 1 < count) {
            threads_arrive<PUT_THREADS>(1 + (int)((n + 1) % 2));
        }
    }
    copies_out_wait<0>();
}

/* What a thread has of a chunk ahead of its turn: the transpose of the value, and the decays of its columns. */
template <int TILES> struct pass_ahead {
    uint32_t value[4][4], value_low[4][4];
    float2 total[TILES * 8];
};

template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW>
static __device__ __forceinline__ void load_ahead(
    pass_ahead<pass_shape<DIM, DELTA, BACKWARD, LOW>::tiles> &to,
    const pass_shared<DIM, DELTA, BACKWARD, LOW> &sm, unsigned slot)
{
    load_transposed(to.value, sm.ring_tiles[slot]);
    if (pass_shape<DIM, DELTA, BACKWARD, LOW>::parts) {
        load_transposed(to.value_low, sm.ring_tiles[slot] + TILE_ELEMENTS);
    }
#pragma unroll
    for (int n = 0; GATED && n < pass_shape<DIM, DELTA, BACKWARD, LOW>::tiles * 8; n++) {
        to.total[n] = *(const float2 *)(sm.total[slot] + 8 * n + threadIdx.x % 4 * 2);
    }
}

template <bool PARTS, int TILES>
static __device__ __forceinline__ void scale_value(float (&to)[1][8][4], const pass_ahead<TILES> &ahead,
                                                   float factor)
{
#pragma unroll
    for (int e = 0; e < 16; e++) {
        float *x = to[0][e / 4 * 2 + e % 4 / 2] + e % 2 * 2;
        const uint32_t high = ahead.value[e / 4][e % 4], low = PARTS ? ahead.value_low[e / 4][e % 4] : 0;
        x[0] = (pair_low(high) + pair_low(low)) * factor, x[1] = (pair_high(high) + pair_high(low)) * factor;
    }
}

/* x as operands, times a sign: in two parts where PARTS. */
template <bool PARTS, int TILES>
static __device__ __forceinline__ void split_state(uint32_t (&high)[TILES * 4][4],
                                                   uint32_t (&low)[TILES * 4][4],
                                                   const float (&x)[TILES][8][4], float sign)
{
#pragma unroll
    for (int k = 0; k < TILES * 4; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float *from = x[k / 4][k % 4 * 2 + e / 2] + e % 2 * 2;
            uint32_t part[PARTS ? 2 : 1];
            split_pair(part, sign * from[0], sign * from[1]);
            high[k][e] = part[0];
            if (PARTS) {
                low[k][e] = part[PARTS];
            }
        }
    }
}

template <int TILES>
static __device__ __forceinline__ void decay_state(float (&state)[TILES][8][4],
                                                   const float2 (&total)[TILES * 8])
{
#pragma unroll
    for (int n = 0; n < TILES * 8; n++) {
        float(&x)[4] = state[n / 8][n % 8];
        x[0] *= total[n].x, x[1] *= total[n].y, x[2] *= total[n].x, x[3] *= total[n].y;
    }
}

/* From the first chunk to the last, or back. Reads and writes of shared memory wait for the products that a warp asked for before
 * them, so they come where something else must wait anyway; arithmetic does not wait. The waits that wait for nothing tell the compiler
 * that the products of the state have ended, which else would await all where it is read. */
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW>
static __device__ __forceinline__ void pass_chunks(
    pass_shared<DIM, DELTA, BACKWARD, LOW> &sm,
    float (&state)[pass_shape<DIM, DELTA, BACKWARD, LOW>::tiles][8][4], const pass_arrays &arrays,
    unsigned chunks)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    constexpr bool operand = !DELTA || BACKWARD; /* the value; else -u_hat^T + S0 w^T begins with it */
    const float factor = BACKWARD ? arrays.scale : operand ? 1 : -1;
    uint32_t snapshot[of::tiles * 4][4], snapshot_low[of::tiles * 4][4], value[4][4];
    float sum[1][8][4]; /* begins as the value */
    pass_ahead<of::tiles> ahead;
    ring_await(sm.ring, 0);
    load_ahead<DIM, DELTA, GATED, BACKWARD, LOW>(ahead, sm, 0);
    scale_value<of::parts>(sum, ahead, factor);
#pragma unroll 1
    for (unsigned n = 0; n < chunks; n++) {
        const unsigned next = n + 1 < chunks ? n + 1 : n;
        const __nv_bfloat16 *tiles = sm.ring_tiles[n % of::slots];
        if constexpr (operand) {
            round_state(value, sum);
        }
        if constexpr (DELTA && BACKWARD) {
            clear(sum[0]);
            multiply_weights<SIDE>(sum, value, tiles + of::pairs * TILE_ELEMENTS);
            products_commit();
            products_wait<1>();
            products_arrived(state);
        }
        split_state<of::parts>(snapshot, snapshot_low, state, 1);
        if constexpr (DELTA) {
            products_begin();
            if constexpr (of::parts) {
                more_rows<DIM>(sum[0], snapshot_low, tiles + of::read * TILE_ELEMENTS, true);
            }
            more_rows<DIM>(sum[0], snapshot, tiles + of::read * TILE_ELEMENTS, true);
            products_commit();
            products_wait<BACKWARD ? 2 : 1>();
            products_arrived(state);
        }
        if (GATED) {
            decay_state(state, ahead.total);
            products_arrived(state);
        }
        if constexpr (operand) {
            multiply_weights<of::columns>(state, value, tiles + of::key * TILE_ELEMENTS);
            products_commit();
        }
        put_begin(DELTA ? 0 : n % 2);
        store_operands(sm.snapshot[DELTA ? 0 : n % 2], snapshot);
        put_end(DELTA ? 0 : n % 2);
        ring_await(sm.ring, next);
        load_ahead<DIM, DELTA, GATED, BACKWARD, LOW>(ahead, sm, next % of::slots);
        if constexpr (DELTA) {
            uint32_t out[4][4], out_low[4][4]; /* u^T, or -du^T */
            put_begin(1);
            products_wait<BACKWARD ? 1 : 0>();
            products_arrived(sum);
            split_state<of::parts>(out, out_low, sum, -1);
            products_begin();
            if constexpr (of::parts) {
                more_weights<DIM>(state, out_low, tiles + of::key * TILE_ELEMENTS);
            }
            if constexpr (LOW) {
                more_weights<DIM>(state, out, tiles + of::key_low * TILE_ELEMENTS);
            }
            more_weights<DIM>(state, out, tiles + (BACKWARD ? of::erase : of::key) * TILE_ELEMENTS);
            products_commit();
            store_transposed(sm.result, out, BACKWARD ? 0x80008000u : 0);
            put_end(1);
        }
        scale_value<of::parts>(sum, ahead, factor);
        products_wait<0>();
        products_arrived(state);
        ring_release(sm.ring, n);
    }
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
    chunk_boxes<1> result = {};
    if (DELTA) {
        result = chunk_boxes_at<1>(arrays.result, block.row, 0, x, step);
    }
    copy_put_tiles((unsigned)block.chunks * (DELTA ? 2 : 1), [&](unsigned n) {
        if (DELTA && n % 2) {
            result.copy_out(sm.result);
        } else {
            snapshot.copy_out(sm.snapshot[DELTA ? 0 : n % 2]);
        }
    });
}

template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW>
__global__ void __launch_bounds__(pass_shape<DIM, DELTA, BACKWARD, LOW>::threads, 1)
    pass_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                const __grid_constant__ recurrent_chunks chunks, const __grid_constant__ pass_arrays arrays)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    pass_shared<DIM, DELTA, BACKWARD, LOW> &sm = *(pass_shared<DIM, DELTA, BACKWARD, LOW> *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(sm.ring, of::consumers / 32);
        barrier_init(&sm.tail, 1);
        fence_async_proxy();
    }
    __syncthreads();
    next_launch_may_begin();
    await_launch_before();
    const pass_block block = pass_block_at<DIM, DELTA, BACKWARD, LOW>(p, a, chunks);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    if (warp > 4) {
        pass_put<DIM, DELTA, BACKWARD, LOW>(sm, chunks, arrays, block);
    } else if (warp == 4) {
        pass_ask<DIM, DELTA, GATED, BACKWARD, LOW>(sm, chunks, arrays, block, p.total_q >= 0);
    } else {
        float state[of::tiles][8][4];
        begin_state(state, arrays.begin, block);
        if (block.chunks > 0) {
            pass_chunks<DIM, DELTA, GATED, BACKWARD, LOW>(sm, state, arrays, (unsigned)block.chunks);
        }
        end_state(state, arrays.end, block);
    }
}

/* ------------------------------------------------------------------ launches */

template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LOW>
static loam_status pass_launch_as(const loam_problem *p, const loam_args *a, const recurrent_chunks *x,
                                  const pass_arrays *arrays, loam_error *error)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LOW> of;
    const int64_t blocks = p->batch * p->heads_v * of::blocks_of_head;
    return cuda_launch("pass_kernel", pass_kernel<DIM, DELTA, GATED, BACKWARD, LOW>, blocks, of::threads,
                       sizeof(pass_shared<DIM, DELTA, BACKWARD, LOW>), a->stream, true, error, *p, *a, *x,
                       *arrays);
}

template <int DIM, bool BACKWARD>
static loam_status pass_launch_of(const loam_problem *p, const loam_args *a, const recurrent_chunks *x,
                                  const pass_arrays *arrays, loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const bool gated = form->gate != GATE_NONE;
    if (form->delta) {
        return gated ? pass_launch_as<DIM, true, true, BACKWARD, !BACKWARD>(p, a, x, arrays, error)
               : x->k_low && !BACKWARD
                   ? pass_launch_as<DIM, true, false, BACKWARD, !BACKWARD>(p, a, x, arrays, error)
                   : pass_launch_as<DIM, true, false, BACKWARD, false>(p, a, x, arrays, error);
    }
    return gated ? pass_launch_as<DIM, false, true, BACKWARD, false>(p, a, x, arrays, error)
                 : pass_launch_as<DIM, false, false, BACKWARD, false>(p, a, x, arrays, error);
}

template <bool BACKWARD>
static loam_status pass_launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *x,
                               const pass_arrays *arrays, loam_error *error)
{
    if (p->batch == 0) {
        return LOAM_OK;
    }
    return p->dim_qk == 64 ? pass_launch_of<64, BACKWARD>(p, a, x, arrays, error)
                           : pass_launch_of<128, BACKWARD>(p, a, x, arrays, error);
}

#endif
