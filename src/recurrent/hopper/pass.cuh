/* SPDX-License-Identifier: MIT
 *
 * PASS and REVERSE, the sequential stages on Hopper, which carry the state from chunk to chunk. A thread
 * block has some rows of the state of one head, or a tile of 64 x 64 where no product sums over the columns
 * of the state. S0, S1: state before and after a chunk.
 *
 *     additive           S1 = S0 Diag(chunk_decay) + u^T k_out
 *     delta rule         u = u_hat - w S0^T,   S1 = S0 Diag(chunk_decay) + u^T k_out
 *     backward, additive dS0 = dS1 Diag(chunk_decay) + do^T q_in
 *     backward, delta    du = P^T do + k_out dS1^T,   dS0 = dS1 Diag(chunk_decay) + do^T q_in - du^T w
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
    chunk_map value, value_lo; /* u_hat; do */
    chunk_map key, key_lo;     /* added to the state, value^T key: k_out; q_in */
    chunk_map read;            /* delta: multiplies the state, read S^T: w; k_out */
    chunk_map erase;           /* delta, backward: subtracted from the state, du^T erase: w */
    chunk_map pairs;           /* delta, backward: P */
    const float *chunk_decay, *suf_decay;
    chunk_map snapshot;          /* written: states; grad_states */
    chunk_map result, result_lo; /* written, delta: u; du */
    bool store_lo;               /* store the lo part of u too */
    loam_const_view state_in;
    loam_view state_out;
    float scale; /* backward: multiplies do */
};

template <int DIM, bool DELTA, bool BACKWARD, bool LO> struct pass_shape {
    /* u_hat, S0 and u have hi and lo parts. LO: k_out too. */
    static constexpr bool hi_lo = DELTA && !BACKWARD;
    static constexpr int rows = hi_lo ? TILE_SIDE / 2 : TILE_SIDE,
                         columns = DELTA ? DIM : TILE_SIDE; /* of the state */
    static constexpr int tiles = columns / TILE_SIDE;
    /* The index of the first tile of each array in a stage of the ring. The value is tile 0; its hi and lo
     * part are half a tile each. */
    static constexpr int key = 1, key_lo = key + tiles, read = LO ? key_lo + tiles : key_lo,
                         erase = read + (DELTA ? tiles : 0);
    static constexpr int pairs = erase + (DELTA && BACKWARD ? tiles : 0);
    static constexpr int all = pairs + (DELTA && BACKWARD ? 1 : 0);
    /* The first tile that may have rows of the next sequence. u_hat of a delta rule has none: rows beyond the
     * end of an array over slots are 0. */
    static constexpr int first_view = hi_lo ? key : 0;
    static constexpr int stages = all > 6 ? 3 : all > 4 ? 4 : 6; /* stages of the ring */
    /* Output buffers; with a delta rule snapshots and results alternate. */
    static constexpr int buffers = DELTA && BACKWARD ? 2 : 4;
    static constexpr int results = DELTA ? buffers / 2 : 0, snapshots = buffers - results;
    static constexpr int blocks_per_head = DIM / rows * (DIM / columns);
    /* The warpgroup; a warp for copies to shared memory and a warp for copies to global memory. */
    static constexpr int consumers = 128, threads = consumers + 64;
};

template <int DIM, bool DELTA, bool BACKWARD, bool LO> struct pass_shared {
    typedef pass_shape<DIM, DELTA, BACKWARD, LO> shape;
    alignas(1024) __nv_bfloat16 ring_tiles[shape::stages][shape::all * TILE_ELEMENTS];
    __nv_bfloat16 snapshot[shape::snapshots]
                          [shape::tiles * shape::rows * TILE_SIDE]; /* output buffers, result too */
    __nv_bfloat16 result[DELTA ? shape::results : 1]
                        [DELTA ? (1 + shape::hi_lo) * CHUNK_TOKENS * shape::rows : 512];
    float chunk_decay[shape::stages][shape::columns];
    float suf_decay[DELTA && !BACKWARD && !LO ? shape::stages : 1][CHUNK_TOKENS];
    ring_barriers<shape::stages> ring;
    uint64_t cleared;
};

/* The work of a thread block: rows from `row`, columns from `column` of the state of value head h of sequence
 * s. Chunks are numbered in the order of the pass. Chunk number `partial` (~0: none) is the last one of a
 * packed sequence, where rows of the next sequence follow. */
struct pass_block {
    chunk_sequence s;
    int64_t h;
    int row, column;
    unsigned chunks, partial;
};

template <int DIM, bool DELTA, bool BACKWARD, bool LO>
static __device__ __forceinline__ pass_block pass_block_at(const loam_problem &p, const loam_args &a,
                                                           const recurrent_chunks &x)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LO> shape;
    const unsigned tile = blockIdx.x % shape::blocks_per_head, rest = blockIdx.x / shape::blocks_per_head;
    pass_block block;
    block.h = rest % (unsigned)p.heads_v;
    block.s = chunk_sequence_at(p, a, x, rest / (unsigned)p.heads_v);
    block.row = (int)tile % (DIM / shape::rows) * shape::rows,
    block.column = (int)tile / (DIM / shape::rows) * TILE_SIDE;
    block.chunks = __shfl_sync(0xffffffffu, (unsigned)((block.s.len + CHUNK_TOKENS - 1) / CHUNK_TOKENS), 0);
    const bool ends_within = p.total_q >= 0 && block.s.len % CHUNK_TOKENS != 0;
    block.partial = !ends_within ? ~0u : BACKWARD ? 0 : block.chunks - 1;
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
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LO> struct pass_boxes {
    typedef pass_shape<DIM, DELTA, BACKWARD, LO> shape;
    static constexpr bool decay_on_u = GATED && shape::hi_lo && !LO; /* e^suf multiplies u, and key is k */
    static constexpr unsigned bytes = shape::all * TILE_ELEMENTS * 2 + (GATED ? shape::columns * 4 : 0) +
                                      (decay_on_u ? CHUNK_TOKENS * 4 : 0);
    chunk_boxes<1> value, value_lo, pairs;
    chunk_boxes<shape::tiles> key, key_lo, read, erase;
    const float *chunk_decay, *suf_decay;

    __device__ __forceinline__ pass_boxes(const pass_arrays &arrays, const pass_block &block,
                                          const chunk_place &chunk)
    {
        constexpr int step = BACKWARD ? -1 : 1;
        value = chunk_boxes_at<1>(arrays.value, block.row, 0, chunk, step);
        key = chunk_boxes_at<shape::tiles>(arrays.key, block.column, 0, chunk, step);
        if (shape::hi_lo) {
            value_lo = chunk_boxes_at<1>(arrays.value_lo, block.row, 0, chunk, step);
        }
        if (LO) {
            key_lo = chunk_boxes_at<shape::tiles>(arrays.key_lo, block.column, 0, chunk, step);
        }
        if (DELTA) {
            read = chunk_boxes_at<shape::tiles>(arrays.read, 0, 0, chunk, step);
        }
        if (DELTA && BACKWARD) {
            pairs = chunk_boxes_at<1>(arrays.pairs, 0, 0, chunk, step);
            erase = chunk_boxes_at<shape::tiles>(arrays.erase, 0, 0, chunk, step);
        }
        chunk_decay = arrays.chunk_decay + chunk.slot * DIM + block.column;
        suf_decay = arrays.suf_decay + (decay_on_u ? chunk.slot * CHUNK_TOKENS : 0);
    }

    __device__ __forceinline__ void copy(pass_shared<DIM, DELTA, BACKWARD, LO> &sm, unsigned stage,
                                         uint64_t *full)
    {
        __nv_bfloat16 *tiles = sm.ring_tiles[stage];
        barrier_expect(full, bytes);
        value.copy(tiles, full);
        if constexpr (shape::hi_lo) {
            value_lo.copy(tiles + TILE_ELEMENTS / 2, full);
        }
        if constexpr (DELTA && BACKWARD) {
            pairs.copy(tiles + shape::pairs * TILE_ELEMENTS, full);
        }
        if constexpr (DELTA) {
            read.copy(tiles + shape::read * TILE_ELEMENTS, full);
        }
        if (GATED) {
            load_bytes(sm.chunk_decay[stage], chunk_decay, shape::columns * 4, full);
            chunk_decay += BACKWARD ? -DIM : DIM;
        }
        if constexpr (decay_on_u) {
            load_bytes(sm.suf_decay[stage], suf_decay, CHUNK_TOKENS * 4, full);
            suf_decay += CHUNK_TOKENS;
        }
        key.copy(tiles + shape::key * TILE_ELEMENTS, full);
        if constexpr (LO) {
            key_lo.copy(tiles + shape::key_lo * TILE_ELEMENTS, full);
        }
        if constexpr (DELTA && BACKWARD) {
            erase.copy(tiles + shape::erase * TILE_ELEMENTS, full);
        }
    }
};

/* The producer, one warp. The rows after the last token of a packed sequence belong to the next
 * sequence. Their weights are 0, but 0 times inf or NaN is not 0: the producer sets these rows to 0 and
 * arrives at the barrier `cleared`. */
template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LO>
static __device__ __forceinline__ void pass_load(pass_shared<DIM, DELTA, BACKWARD, LO> &sm,
                                                 const recurrent_chunks &chunks, const pass_arrays &arrays,
                                                 const pass_block &block)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LO> shape;
    pass_boxes<DIM, DELTA, GATED, BACKWARD, LO> boxes(arrays, block, pass_begin<BACKWARD>(chunks, block));
#pragma unroll 1
    for (unsigned n = 0; n < block.chunks; n++) {
        const unsigned stage = n % shape::stages;
        if (threadIdx.x % 32 == 0) {
            barrier_wait(&sm.ring.empty[stage], n / shape::stages % 2 ^ 1);
            boxes.copy(sm, stage, &sm.ring.full[stage]);
        }
        __syncwarp();
        if (n == block.partial) {
            ring_wait(sm.ring, n);
            clear_rows<shape::all - shape::first_view>(
                sm.ring_tiles[stage] + shape::first_view * TILE_ELEMENTS, (int)(block.s.len % CHUNK_TOKENS),
                threadIdx.x % 32, 32);
            fence_async_proxy();
            barrier_arrive(&sm.cleared);
        }
    }
}

/* Waits until stage n % stages has chunk number n. */
template <class SHARED>
static __device__ __forceinline__ void pass_wait(SHARED &sm, const pass_block &block, unsigned n)
{
    ring_wait(sm.ring, n);
    if (n == block.partial) {
        barrier_wait(&sm.cleared, 0);
    }
}

/* ------------------------------------------------------------------ the state */

/* Calls use(x, row, column) for the elements of the state that a thread has: two columns of every
 * eight, in one row (ELEMENTS = 2) or in two rows that are eight apart (4). Row and column are
 * relative to the thread block's. */
template <int BLOCKS, int ELEMENTS, class F>
static __device__ __forceinline__ void for_each_element(float (&state)[BLOCKS][ELEMENTS], F use)
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
static __device__ __forceinline__ void load_state(float (&state)[BLOCKS][ELEMENTS],
                                                  const loam_const_view &view, const pass_block &block)
{
    const float *from = (const float *)view.data + RECURRENT_AT(view, block.s.index, block.h, block.row) +
                        block.column;
    for_each_element(
        state, [&](float &x, int row, int column) { x = view.data ? from[row * view.token + column] : 0; });
}

template <int BLOCKS, int ELEMENTS>
static __device__ __forceinline__ void store_state(float (&state)[BLOCKS][ELEMENTS], const loam_view &view,
                                                   const pass_block &block)
{
    if (view.data) {
        float *to = (float *)view.data + RECURRENT_AT(view, block.s.index, block.h, block.row) + block.column;
        for_each_element(state, [&](float x, int row, int column) { to[row * view.token + column] = x; });
    }
}

/* Loads the decays of the thread's columns. */
template <int BLOCKS>
static __device__ __forceinline__ void load_decays(float2 (&to)[BLOCKS], const float *decays)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
        to[n] = *(const float2 *)(decays + 8 * n + threadIdx.x % 4 * 2);
    }
}

template <int BLOCKS, int ELEMENTS>
static __device__ __forceinline__ void decay_state(float (&state)[BLOCKS][ELEMENTS],
                                                   const float2 (&chunk_decay)[BLOCKS])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += 2) {
            state[n][e] *= chunk_decay[n].x, state[n][e + 1] *= chunk_decay[n].y;
        }
    }
}

/* ------------------------------------------------------------------ copies to global memory */

/* Output buffers, BUFFERS of them in turn: the warpgroup writes a buffer, one warp copies it to global memory.
 * A buffer has two named barriers: 1 + n, it is empty, and 1 + BUFFERS + n, it is full. These need no branch,
 * unlike an mbarrier: a branch among asynchronous products makes the compiler wait for the products. */
enum { OUTPUT_BARRIER_THREADS = 128 + 32 };

static __device__ __forceinline__ void output_acquire(unsigned buffer)
{
    named_barrier_sync<OUTPUT_BARRIER_THREADS>(1 + (int)buffer);
}
template <int BUFFERS> static __device__ __forceinline__ void output_commit(unsigned buffer)
{
    named_barrier_arrive<OUTPUT_BARRIER_THREADS>(1 + BUFFERS + (int)buffer);
}

/* One warp: copy(n) for buffers 0 .. count - 1 in the order of the pass. After the copy of buffer n is issued
 * it waits until that of buffer n - 1 has read shared memory, and then declares that buffer empty. */
template <int BUFFERS, class F> static __device__ __forceinline__ void store_outputs(unsigned count, F copy)
{
    for (unsigned n = 0; n < min(count, (unsigned)BUFFERS); n++) {
        named_barrier_arrive<OUTPUT_BARRIER_THREADS>(1 + (int)n);
    }
#pragma unroll 1
    for (unsigned n = 0; n < count; n++) {
        named_barrier_sync<OUTPUT_BARRIER_THREADS>(1 + BUFFERS + (int)(n % BUFFERS));
        if (threadIdx.x % 32 == 0) {
            fence_async_proxy(); /* here for all writers: in the warpgroup it would wait for the products */
            copy(n);
            store_commit();
            store_wait<1>();
        }
        __syncwarp();
        if (n > 0 && n - 1 + BUFFERS < count) {
            named_barrier_arrive<OUTPUT_BARRIER_THREADS>(1 + (int)((n - 1) % BUFFERS));
        }
    }
    store_wait<0>();
}

/* One warp: copies the snapshot of each chunk to global memory and, with a delta
 * rule, its result after it. */
template <int DIM, bool DELTA, bool BACKWARD, bool LO>
static __device__ __forceinline__ void pass_store(pass_shared<DIM, DELTA, BACKWARD, LO> &sm,
                                                  const recurrent_chunks &chunks, const pass_arrays &arrays,
                                                  const pass_block &block)
{
    typedef pass_shape<DIM, DELTA, BACKWARD, LO> shape;
    const chunk_place chunk = pass_begin<BACKWARD>(chunks, block);
    constexpr int step = BACKWARD ? -1 : 1;
    chunk_boxes<shape::tiles> snapshot = chunk_boxes_at<shape::tiles>(arrays.snapshot, block.column,
                                                                      block.row, chunk, step);
    chunk_boxes<1> result = {}, result_lo = {};
    if (DELTA) {
        result = chunk_boxes_at<1>(arrays.result, block.row, 0, chunk, step);
    }
    const bool store_lo = shape::hi_lo && arrays.store_lo;
    if (store_lo) {
        result_lo = chunk_boxes_at<1>(arrays.result_lo, block.row, 0, chunk, step);
    }
    store_outputs<shape::buffers>(block.chunks * (DELTA ? 2 : 1), [&](unsigned n) {
        if (DELTA && n % 2) {
            const __nv_bfloat16 *tile = sm.result[n / 2 % (DELTA ? shape::results : 1)];
            result.copy_out(tile);
            if (store_lo) {
                result_lo.copy_out(tile + CHUNK_TOKENS * shape::rows);
            }
        } else {
            snapshot.copy_out(sm.snapshot[(DELTA ? n / 2 : n) % shape::snapshots], shape::rows * TILE_SIDE);
        }
    });
}

/* The warpgroup: PASS has the block's part of the state in registers, and carries it through the chunks. */
template <class PASS, class SHARED>
static __device__ __forceinline__ void carry_state(SHARED &sm, const pass_arrays &arrays,
                                                   const pass_block &block)
{
    PASS pass;
    load_state(pass.state, arrays.state_in, block);
    if (block.chunks > 0) {
        pass.run(sm, arrays, block);
    }
    store_state(pass.state, arrays.state_out, block);
}

#endif
