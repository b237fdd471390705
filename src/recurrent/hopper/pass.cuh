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
 * computes, a producer warp fills a ring of stages with the arrays of the next chunks, and one more warp
 * copies snapshots and results to global memory. This file has the kernel, for a class PASS of the warpgroup,
 * and the class of the additive rules; those of the delta rules are in pass.cu and reverse.cu.
 */
#ifndef LOAM_RECURRENT_HOPPER_PASS_CUH
#define LOAM_RECURRENT_HOPPER_PASS_CUH

#include "src/gpu/launch.cuh"
#include "src/gpu/ring.cuh"
#include "src/recurrent/hopper/maps.cuh"
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
    int rows, columns; /* of the states that are given and returned; the others are 0 */
    float scale;       /* backward: multiplies do */
};

template <int DIM, bool DELTA, bool GATED, bool BACKWARD, bool LO> struct pass_shape {
    static constexpr int dim = DIM;
    static constexpr bool delta = DELTA, gated = GATED, backward = BACKWARD;
    /* hi_lo: u_hat, S0 and u have hi and lo parts; lo: k_out too. */
    static constexpr bool hi_lo = DELTA && !BACKWARD, lo = LO;
    /* e^suf is one number per token and multiplies u; the key is then k itself. */
    static constexpr bool decay_on_u = GATED && hi_lo && !LO;
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
    static constexpr int stages = all > 8 ? 2 : all > 6 ? 3 : all > 4 ? 4 : 6; /* stages of the ring */
    /* Output buffers; with a delta rule snapshots and results alternate. */
    static constexpr int buffers = DELTA && BACKWARD ? 2 : 4;
    static constexpr int results = DELTA ? buffers / 2 : 0, snapshots = buffers - results;
    static constexpr unsigned stage_bytes = all * TILE_ELEMENTS * 2 + (GATED ? columns * 4 : 0) +
                                            (decay_on_u ? CHUNK_TOKENS * 4 : 0);
    static constexpr int blocks_per_head = DIM / rows * (DIM / columns);
    /* The warpgroup; a warp for copies to shared memory and a warp for copies to global memory. */
    static constexpr int consumers = 128, threads = consumers + 64;
};

template <class SHAPE> struct pass_shared {
    alignas(1024) __nv_bfloat16 ring_tiles[SHAPE::stages][SHAPE::all * TILE_ELEMENTS];
    __nv_bfloat16 snapshot[SHAPE::snapshots]
                          [SHAPE::tiles * SHAPE::rows * TILE_SIDE]; /* output buffers, result too */
    __nv_bfloat16 result[SHAPE::delta ? SHAPE::results : 1]
                        [SHAPE::delta ? (1 + SHAPE::hi_lo) * CHUNK_TOKENS * SHAPE::rows : 512];
    float chunk_decay[SHAPE::stages][SHAPE::columns];
    float suf_decay[SHAPE::hi_lo && !SHAPE::lo ? SHAPE::stages : 1][CHUNK_TOKENS];
    ring_barriers<SHAPE::stages> ring;
    uint64_t cleared;
};

/* The work of a thread block: rows from `row`, columns from `column` of the state of value head h of sequence
 * s. Chunks are numbered in the order of the pass. Chunk number `partial` (~0: none) is the last one of a
 * packed sequence, where rows of the next sequence follow. */
struct pass_block {
    chunk_sequence s;
    int64_t h;
    int row, column;
    unsigned first, chunks, partial;
};

template <class SHAPE>
static __device__ __forceinline__ pass_block pass_block_at(const loam_problem &p, const loam_args &a,
                                                           const recurrent_chunks &chunks)
{
    const unsigned tile = blockIdx.x % SHAPE::blocks_per_head, rest = blockIdx.x / SHAPE::blocks_per_head;
    pass_block block;
    block.h = rest % (unsigned)p.heads_v;
    block.s = chunk_sequence_at(p, a, chunks, rest / (unsigned)p.heads_v);
    block.row = (int)tile % (SHAPE::dim / SHAPE::rows) * SHAPE::rows,
    block.column = (int)tile / (SHAPE::dim / SHAPE::rows) * TILE_SIDE;
    const int64_t all = (block.s.len + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    block.first = (unsigned)chunks.from;
    block.chunks = __shfl_sync(0xffffffffu, (unsigned)(min(all, chunks.to) - chunks.from), 0);
    const bool ends_within = sequence_packed(&p) && block.s.len % CHUNK_TOKENS != 0;
    block.partial = !ends_within ? ~0u : SHAPE::backward ? 0 : block.chunks - 1;
    return block;
}

/* The first chunk in the order of the pass. */
template <class SHAPE>
static __device__ __forceinline__ chunk_place pass_begin(const recurrent_chunks &chunks,
                                                         const pass_block &block)
{
    return chunk_of_sequence(chunks, block.s, block.h,
                             (int64_t)block.first + (SHAPE::backward ? (int64_t)block.chunks - 1 : 0));
}

/* ------------------------------------------------------------------ copies */

/* The coordinates of the copies that fill a stage of the ring. */
template <class SHAPE> struct pass_boxes {
    chunk_boxes<1> value, value_lo, pairs;
    chunk_boxes<SHAPE::tiles> key, key_lo, read, erase;
    const float *chunk_decay, *suf_decay;

    __device__ __forceinline__ pass_boxes(const pass_arrays &arrays, const pass_block &block,
                                          const chunk_place &chunk)
    {
        constexpr int step = SHAPE::backward ? -1 : 1;
        value = chunk_boxes_at<1>(arrays.value, block.row, 0, chunk, step);
        key = chunk_boxes_at<SHAPE::tiles>(arrays.key, block.column, 0, chunk, step);
        if (SHAPE::hi_lo) value_lo = chunk_boxes_at<1>(arrays.value_lo, block.row, 0, chunk, step);
        if (SHAPE::lo) key_lo = chunk_boxes_at<SHAPE::tiles>(arrays.key_lo, block.column, 0, chunk, step);
        if (SHAPE::delta) read = chunk_boxes_at<SHAPE::tiles>(arrays.read, 0, 0, chunk, step);
        if (SHAPE::delta && SHAPE::backward) {
            pairs = chunk_boxes_at<1>(arrays.pairs, 0, 0, chunk, step);
            erase = chunk_boxes_at<SHAPE::tiles>(arrays.erase, 0, 0, chunk, step);
        }
        chunk_decay = arrays.chunk_decay + chunk.slot * SHAPE::dim + block.column;
        suf_decay = arrays.suf_decay + (SHAPE::decay_on_u ? chunk.slot * CHUNK_TOKENS : 0);
    }

    __device__ __forceinline__ void copy(pass_shared<SHAPE> &sm, unsigned stage, uint64_t *full)
    {
        __nv_bfloat16 *tiles = sm.ring_tiles[stage];
        barrier_expect(full, SHAPE::stage_bytes);
        value.copy(tiles, full);
        if constexpr (SHAPE::hi_lo) value_lo.copy(tiles + TILE_ELEMENTS / 2, full);
        if constexpr (SHAPE::delta && SHAPE::backward) pairs.copy(tiles + SHAPE::pairs * TILE_ELEMENTS, full);
        if constexpr (SHAPE::delta) read.copy(tiles + SHAPE::read * TILE_ELEMENTS, full);
        if (SHAPE::gated) {
            load_bytes(sm.chunk_decay[stage], chunk_decay, SHAPE::columns * 4, full);
            chunk_decay += SHAPE::backward ? -SHAPE::dim : SHAPE::dim;
        }
        if constexpr (SHAPE::decay_on_u) {
            load_bytes(sm.suf_decay[stage], suf_decay, CHUNK_TOKENS * 4, full);
            suf_decay += CHUNK_TOKENS;
        }
        key.copy(tiles + SHAPE::key * TILE_ELEMENTS, full);
        if constexpr (SHAPE::lo) key_lo.copy(tiles + SHAPE::key_lo * TILE_ELEMENTS, full);
        if constexpr (SHAPE::delta && SHAPE::backward) erase.copy(tiles + SHAPE::erase * TILE_ELEMENTS, full);
    }
};

/* The producer, one warp. The rows after the last token of a packed sequence belong to the next
 * sequence. Their weights are 0, but 0 times inf or NaN is not 0: the producer sets these rows to 0 and
 * arrives at the barrier `cleared`. */
template <class SHAPE>
static __device__ __forceinline__ void pass_load(pass_shared<SHAPE> &sm, const recurrent_chunks &chunks,
                                                 const pass_arrays &arrays, const pass_block &block)
{
    pass_boxes<SHAPE> boxes(arrays, block, pass_begin<SHAPE>(chunks, block));
#pragma unroll 1
    for (unsigned n = 0; n < block.chunks; n++) {
        const unsigned stage = n % SHAPE::stages;
        if (threadIdx.x % 32 == 0) {
            barrier_wait(&sm.ring.empty[stage], n / SHAPE::stages % 2 ^ 1);
            boxes.copy(sm, stage, &sm.ring.full[stage]);
        }
        __syncwarp();
        if (n == block.partial) {
            ring_wait(sm.ring, n);
            clear_rows<SHAPE::all - SHAPE::first_view>(
                sm.ring_tiles[stage] + SHAPE::first_view * TILE_ELEMENTS, (int)(block.s.len % CHUNK_TOKENS),
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
    if (n == block.partial) barrier_wait(&sm.cleared, 0);
}

/* ------------------------------------------------------------------ the state */

template <int BLOCKS, int ELEMENTS>
static __device__ __forceinline__ void load_state(float (&state)[BLOCKS][ELEMENTS], const pass_arrays &arrays,
                                                  const pass_block &block)
{
    const loam_const_view &view = arrays.state_in;
    const int rows = view.data ? arrays.rows - block.row : 0, columns = arrays.columns - block.column;
    const float *from = (const float *)view.data + RECURRENT_AT(view, block.s.index, block.h, block.row) +
                        block.column;
    for_each_element(state, [&](float &x, int row, int column) {
        x = row < rows && column < columns ? from[row * view.token + column] : 0;
    });
}

template <int BLOCKS, int ELEMENTS>
static __device__ __forceinline__ void store_state(float (&state)[BLOCKS][ELEMENTS],
                                                   const pass_arrays &arrays, const pass_block &block)
{
    const loam_view &view = arrays.state_out;
    if (!view.data) return;
    const int rows = arrays.rows - block.row, columns = arrays.columns - block.column;
    float *to = (float *)view.data + RECURRENT_AT(view, block.s.index, block.h, block.row) + block.column;
    for_each_element(state, [&](float x, int row, int column) {
        if (row < rows && column < columns) to[row * view.token + column] = x;
    });
}

/* Loads the decays of the thread's columns. */
template <int BLOCKS>
static __device__ __forceinline__ void load_decays(float2 (&to)[BLOCKS], const float *decays)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
        to[n] = *(const float2 *)(decays + 8 * n + threadIdx.x % 4 * 2);
}

template <int BLOCKS, int ELEMENTS>
static __device__ __forceinline__ void decay_state(float (&state)[BLOCKS][ELEMENTS],
                                                   const float2 (&chunk_decay)[BLOCKS])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e += 2)
            state[n][e] *= chunk_decay[n].x, state[n][e + 1] *= chunk_decay[n].y;
    }
}

/* ------------------------------------------------------------------ copies to global memory */

/* Output buffers, BUFFERS of them in turn: the warpgroup writes a buffer, one warp copies it to global
 * memory. A buffer has two named barriers: 1 + n, it is empty, and 1 + BUFFERS + n, it is full. These need
 * no branch, unlike an mbarrier: a branch among asynchronous products makes the compiler wait for the
 * products. */
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
    for (unsigned n = 0; n < min(count, (unsigned)BUFFERS); n++)
        named_barrier_arrive<OUTPUT_BARRIER_THREADS>(1 + (int)n);
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
        if (n > 0 && n - 1 + BUFFERS < count)
            named_barrier_arrive<OUTPUT_BARRIER_THREADS>(1 + (int)((n - 1) % BUFFERS));
    }
    store_wait<0>();
}

/* One warp: copies the snapshot of each chunk to global memory and, with a delta
 * rule, its result after it. */
template <class SHAPE>
static __device__ __forceinline__ void pass_store(pass_shared<SHAPE> &sm, const recurrent_chunks &chunks,
                                                  const pass_arrays &arrays, const pass_block &block)
{
    const chunk_place chunk = pass_begin<SHAPE>(chunks, block);
    constexpr int step = SHAPE::backward ? -1 : 1;
    chunk_boxes<SHAPE::tiles> snapshot = chunk_boxes_at<SHAPE::tiles>(arrays.snapshot, block.column,
                                                                      block.row, chunk, step);
    chunk_boxes<1> result = {}, result_lo = {};
    if (SHAPE::delta) result = chunk_boxes_at<1>(arrays.result, block.row, 0, chunk, step);
    const bool store_lo = SHAPE::hi_lo && arrays.store_lo;
    if (store_lo) result_lo = chunk_boxes_at<1>(arrays.result_lo, block.row, 0, chunk, step);
    store_outputs<SHAPE::buffers>(block.chunks * (SHAPE::delta ? 2 : 1), [&](unsigned n) {
        if (SHAPE::delta && n % 2) {
            const __nv_bfloat16 *tile = sm.result[n / 2 % (SHAPE::delta ? SHAPE::results : 1)];
            result.copy_out(tile);
            if (store_lo) result_lo.copy_out(tile + CHUNK_TOKENS * SHAPE::rows);
        } else {
            snapshot.copy_out(sm.snapshot[(SHAPE::delta ? n / 2 : n) % SHAPE::snapshots],
                              SHAPE::rows * TILE_SIDE);
        }
    });
}

/* ------------------------------------------------------------------ additive rules
 *
 * S1 = S0 Diag(chunk_decay) + X, X = u^T k_out; backward, with scaled do, dS0 = dS1 Diag(chunk_decay) + do^T
 * q_in. X does not depend on the state: its product runs while the snapshot of S0 is stored. */

template <int DIM, bool GATED, bool BACKWARD> struct additive_pass {
    typedef pass_shape<DIM, false, GATED, BACKWARD, false> shape;
    typedef pass_shared<shape> shared;
    float state[8][4];

    /* Issues the product of chunk number n, and loads the decays of the chunk. */
    static __device__ __forceinline__ void issue_product(float (&product)[8][4], float2 (&chunk_decay)[8],
                                                         shared &sm, const pass_block &block, unsigned n)
    {
        const unsigned stage = n % shape::stages;
        pass_wait(sm, block, n);
        multiply_transposed(product, sm.ring_tiles[stage], sm.ring_tiles[stage] + shape::key * TILE_ELEMENTS);
        wgmma_commit();
        if (GATED) load_decays(chunk_decay, sm.chunk_decay[stage]);
    }

    __device__ __forceinline__ void run(shared &sm, const pass_arrays &arrays, const pass_block &block)
    {
        float product[8][4];
        float2 chunk_decay[8];
        issue_product(product, chunk_decay, sm, block, 0);
#pragma unroll 1
        for (unsigned n = 0; n < block.chunks; n++) {
            uint32_t snapshot[4][4];
            round_to_operand(snapshot, *(float(*)[1][8][4]) & state);
            output_acquire(n % shape::buffers);
            store_operands(sm.snapshot[n % shape::buffers], snapshot);
            output_commit<shape::buffers>(n % shape::buffers);
            wgmma_wait<0>();
            wgmma_results(product);
            if (GATED && BACKWARD) decay_state(state, chunk_decay);
#pragma unroll
            for (int e = 0; e < 32; e++) {
                float &x = state[e / 4][e % 4];
                const float2 decays = chunk_decay[e / 4];
                const float decay = !GATED ? 1 : e % 2 ? decays.y : decays.x;
                /* Forward as in recurrent/hopper/additive.cuh, for the same bits. */
                x = BACKWARD ? fmaf(product[e / 4][e % 4], arrays.scale, x)
                             : fmaf(x, decay, product[e / 4][e % 4]);
            }
            ring_release(sm.ring, n);
            /* The last product is computed twice, so that there is no branch around the products. */
            issue_product(product, chunk_decay, sm, block, n + 1 < block.chunks ? n + 1 : n);
        }
        wgmma_wait<0>();
    }
};

/* ------------------------------------------------------------------ the kernel */

/* The warpgroup: PASS has the block's part of the state in registers, and carries it through the chunks. */
template <class PASS>
static __device__ __forceinline__ void carry_state(typename PASS::shared &sm, const pass_arrays &arrays,
                                                   const pass_block &block)
{
    PASS pass;
    load_state(pass.state, arrays, block);
    if (block.chunks > 0) pass.run(sm, arrays, block);
    store_state(pass.state, arrays, block);
}

/* REVERSE (backward) reads nothing that PASS writes, so the two run at the same time by programmatic
 * dependent launch: REVERSE may begin when all blocks of PASS have called launch_dependents(), which they
 * do after PREPARE has ended, so that the arrays of PREPARE are complete. REVERSE calls
 * wait_for_previous_launch() only at its end, so that it does not end before PASS. */
template <class PASS>
__global__ void __launch_bounds__(PASS::shape::threads, 1)
    pass_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                const __grid_constant__ recurrent_chunks chunks, const __grid_constant__ pass_arrays arrays)
{
    typedef typename PASS::shape shape;
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    typename PASS::shared &sm = *(typename PASS::shared *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(sm.ring, shape::consumers / 32);
        barrier_init(&sm.cleared, 32);
        fence_async_proxy();
    }
    __syncthreads();
    if (!shape::backward) wait_for_previous_launch();
    launch_dependents();
    const pass_block block = pass_block_at<shape>(p, a, chunks);
    const int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0);
    if (warp > 4)
        pass_store(sm, chunks, arrays, block);
    else if (warp == 4)
        pass_load(sm, chunks, arrays, block);
    else
        carry_state<PASS>(sm, arrays, block);
    if (shape::backward) wait_for_previous_launch();
}

template <class PASS>
static loam_status pass_launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                               const pass_arrays *arrays, loam_error *error)
{
    typedef typename PASS::shape shape;
    const int64_t blocks = p->batch * p->heads_v * shape::blocks_per_head;
    return blocks == 0
               ? LOAM_OK
               : cuda_launch("pass_kernel", pass_kernel<PASS>, blocks, shape::threads,
                             sizeof(typename PASS::shared), a->stream, true, error, *p, *a, *chunks, *arrays);
}

#endif
