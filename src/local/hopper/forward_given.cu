/* SPDX-License-Identifier: MIT
 *
 * Forward with a given probe (0 or args.probe) on Hopper: the sums of local/cuda/given.cuh, for bf16 and
 * float16, dot scores that may decay but have no other bias, and head dimensions to 256: tiles are 64, 128,
 * 192 or 256 channels wide, and channels that the arrays do not have read as 0.
 *
 * Persistent blocks, one on each multiprocessor, go through blocks of 128 rows. Two consumer warpgroups have
 * 64 rows each, from the scores to the output. Each goes through the tiles at its own pace: the exponentials
 * of one overlap with the products of the other. Without a probe, the product of a tile's weights with its
 * values also overlaps with the weights of the next tile. The last warpgroup produces: one warp copies keys
 * and values, one thread the rows, and one warp computes decays. Scores and their maxima are to base 2.
 */
#include "src/gpu/ring.cuh"
#include "src/local/cuda/forward.h"
#include "src/local/hopper/decay.cuh"
#include "src/local/hopper/forward_given_sums.cuh"
#include "src/local/hopper/maps.cuh"
#include "src/local/hopper/order.cuh"

/* Of the `tiles` tiles of a block, those in which the rows of a warpgroup see keys: begin .. end - 1. All
 * these rows see keys unmasked_begin .. unmasked_end - 1. */
struct tile_range {
    int begin, end, tiles, unmasked_begin, unmasked_end;
};

/* A block of rows, as one thread of the producers tells all others: its 64-bit divisions take a microsecond.
 * No rows: there are no more blocks. */
template <class S> struct given_task {
    row_block block;
    tile_range range[S::consumers];
    int column; /* the first of its columns of o */
};
enum { TASKS = 2 };

template <class S> struct given_forward_shared {
    typedef typename S::type T;
    /* The rows of each warpgroup; their outputs overwrite their queries. */
    alignas(1024) T query[S::consumers][S::row_stages][S::dim * TILE_SIDE];
    T probe[S::probed ? S::consumers : 1][S::row_stages][S::probed ? S::dim * TILE_SIDE : 512];
    T keys[S::key_stages][S::dim * S::keys], values[S::value_stages][S::columns * S::keys];
    ring_barriers<S::key_stages> key_ring;
    ring_barriers<S::value_stages> value_ring;
    given_task<S> task[TASKS];
    ring_barriers<TASKS> task_ring;
    ring_barriers<S::row_stages> row_ring[S::consumers];
    uint64_t tail;
    row_state state[S::consumers * THREADS];
    relative_decay<S::decayed, S::keys> decay[S::key_stages]; /* of the keys in each stage */
};

struct given_forward_maps {
    CUtensorMap q, k, v, probe;
};

/* Number n of the blocks, of `rows` rows. Tiles begin at multiples of their size, so that the bits of a row
 * do not depend on the block that it lies in. */
template <class S>
static __device__ __forceinline__ row_block given_block_at(const loam_problem &p, const loam_args &a,
                                                           const block_order &order, unsigned n, int rows)
{
    row_block block = row_block_of(p, a, block_in_order(order, n / S::parts), rows);
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
    if (span.first <= span.last && lo < hi) {
        range.begin = ((int)lo - block.first) / KEYS;
        range.end = ((int)hi - block.first + KEYS - 1) / KEYS;
    }
    return range;
}

/* ------------------------------------------------------------------ copies */

/* The producer thread of rows: tells all others of each block, and copies queries and probes for each
 * warpgroup when it has released those before. */
template <class S>
static __device__ __forceinline__ void produce_rows(given_forward_shared<S> &sm, const loam_problem &p,
                                                    const loam_args &a, const given_forward_maps &maps,
                                                    const block_order &order, unsigned blocks, int rows)
{
    constexpr unsigned bytes = (S::probed ? 2 : 1) * S::dim * ROWS * 2;
    unsigned count = 0;
    for_each_block(blocks, [&](unsigned n) {
        given_task<S> &task = sm.task[count % TASKS];
        barrier_wait(&sm.task_ring.empty[count % TASKS], count / TASKS % 2 ^ 1);
        task.block = given_block_at<S>(p, a, order, n, rows);
        asm volatile("" ::: "memory"); /* no registers for it */
        const row_block &block = task.block;
        if (block.rows <= 0) return;
#pragma unroll 1
        for (int w = 0; w < S::consumers; w++)
            task.range[w] = tiles_of<S::keys>(p, block, w);
        task.column = (int)(n % S::parts) * S::columns;
        barrier_arrive(&sm.task_ring.full[count % TASKS]);
        const int h = (int)block.h, b = (int)block.s.b, stage = count % S::row_stages;
        int token = (int)(block.s.q0 + block.i0);
#pragma unroll 1
        for (int w = 0; w < S::consumers; w++, token += ROWS) {
            uint64_t *full = ring_acquire(sm.row_ring[w], count, bytes);
            load_tile<S::dim>(sm.query[w][stage], maps.q, full, token, h, b);
            if (S::probed) load_tile<S::dim>(sm.probe[w][stage], maps.probe, full, token, h, b);
        }
        count++;
    });
    barrier_wait(&sm.task_ring.empty[count % TASKS], count / TASKS % 2 ^ 1);
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

/* ------------------------------------------------------------------ sums */

/* The sweep of a warpgroup over the keys of its rows. */
template <class S> struct forward_consumer {
    typedef typename S::type T;
    given_forward_shared<S> &sm;
    given_forward_sums<S> &acc;
    const T *query, *probe;
    float scale2;
    int unmasked_begin, unmasked_end; /* all rows of the warpgroup see all keys between */
    /* Where scores decay: G of the sequence's keys, and of the two rows. */
    const local_decay_pair *decay_keys;
    local_decay_pair decay_rows[2];

    __device__ __forceinline__ bool unmasked(int j) const
    {
        return j >= unmasked_begin && j + S::keys <= unmasked_end;
    }
    __device__ __forceinline__ row_state &state() const { return sm.state[threadIdx.x]; }

    __device__ __forceinline__ const T *keys(unsigned count) const
    {
        return sm.keys[warp_uniform(count % S::key_stages)];
    }
    __device__ __forceinline__ const T *values(unsigned count) const
    {
        return sm.values[warp_uniform(count % S::value_stages)];
    }
};

/* Issues the products s = q . k of a tile and commits them; more products may follow without a
 * wgmma_fence. */
template <int DIM, int BLOCKS, class T>
static __device__ __forceinline__ void issue_scores(const T *query, float (&s)[BLOCKS][4], const T *keys)
{
    wgmma_fence();
    more_rows<DIM>(s, query, keys, false);
    wgmma_commit();
}

/* Where scores decay: s, the products q . k of tile `count`, which begins at key j, become scores to base 2
 * less `offset`. Where all rows see every key of the tile, decay is counted from its last key
 * (relative_scores): nothing cancels, and a pair costs one addition more than without decay. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void decayed_scores(const forward_consumer<S> &wg, float (&s)[BLOCKS][4],
                                                      int j, unsigned count, float (&offset)[2])
{
    offset[0] = offset[1] = 0;
    if constexpr (S::decayed) {
        if (wg.unmasked(j))
            relative_scores(s, wg.sm.decay[count % S::key_stages], wg.decay_rows, wg.scale2, offset);
        else
            decay_scores(s, wg.decay_keys + j, wg.decay_rows, { wg.scale2, wg.scale2 });
    }
}

/* s, which is the products q . k of the tile from key j on or comes from decayed_scores, becomes
 * weights. */
template <class S, int BLOCKS>
static __device__ __forceinline__ bool softmax_tile(const forward_consumer<S> &wg, float (&s)[BLOCKS][4],
                                                    int j, float (&rescale)[2], const float (&offset)[2])
{
    const float nothing[2] = { -INFINITY, -INFINITY };
    if (!wg.unmasked(j)) mask_tile(s, wg.state(), j, nothing);
    return online_softmax(wg.acc, wg.state(), s, rescale, S::decayed ? 1.0f : wg.scale2, offset);
}

/* Tiles count .. end - 1, of which the first begins at key j. The product o += w v of a tile overlaps with
 * the weights of the next. ready: s are the products q . k of the first tile. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void sweep_keys(const forward_consumer<S> &wg, float (&s)[BLOCKS][4],
                                                  bool ready,
                                                  weights_operand<1, BLOCKS / 2, typename S::type> &w, int j,
                                                  unsigned count, unsigned end)
{
    float rescale[2], offset[2];
    if (!ready) {
        ring_wait(wg.sm.key_ring, count);
        issue_scores<S::dim>(wg.query, s, wg.keys(count));
        wgmma_wait<0>();
        wgmma_results(s);
    }
    decayed_scores(wg, s, j, count, offset);
    ring_release(wg.sm.key_ring, count);
    softmax_tile(wg, s, j, rescale, offset);
    split_weights(w, s);
#pragma unroll 1
    for (; count + 1 != end; count++) {
        ring_wait(wg.sm.key_ring, count + 1);
        ring_wait(wg.sm.value_ring, count);
        issue_scores<S::dim>(wg.query, s, wg.keys(count + 1));
        more_weights<S::columns>(wg.acc.o, w.part[0], wg.values(count));
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(s);
        decayed_scores(wg, s, j += S::keys, count + 1, offset);
        ring_release(wg.sm.key_ring, count + 1);
        const bool moves = softmax_tile(wg, s, j, rescale, offset);
        wgmma_wait<0>();
        wgmma_results(wg.acc.o);
        ring_release(wg.sm.value_ring, count);
        if (moves) rescale_sums(wg.acc, rescale);
        split_weights(w, s);
    }
}

/* The product o += w v of the last tile. */
template <class S, int STEPS>
static __device__ __forceinline__ void finish_keys(const forward_consumer<S> &wg,
                                                   const weights_operand<1, STEPS, typename S::type> &w,
                                                   unsigned last)
{
    ring_wait(wg.sm.value_ring, last);
    multiply_weights<S::columns>(wg.acc.o, w.part[0], wg.values(last));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(wg.acc.o);
    ring_release(wg.sm.value_ring, last);
}

/* The same, and beside it the products s = q . k of the first tile of the next rows, whose queries are
 * `query`. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void finish_keys(const forward_consumer<S> &wg,
                                                   const weights_operand<1, BLOCKS / 2, typename S::type> &w,
                                                   unsigned last, const typename S::type *query,
                                                   float (&s)[BLOCKS][4])
{
    ring_wait(wg.sm.key_ring, last + 1);
    ring_wait(wg.sm.value_ring, last);
    issue_scores<S::dim>(query, s, wg.keys(last + 1));
    more_weights<S::columns>(wg.acc.o, w.part[0], wg.values(last));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(s);
    wgmma_results(wg.acc.o);
    ring_release(wg.sm.value_ring, last);
}

/* The same with a probe, one tile after another, since there are no registers for two: the weights overlap
 * with the products t = probe . k, all else with the other warpgroup. */
template <class S>
static __device__ __forceinline__ void sweep_probed(const forward_consumer<S> &wg, int j, unsigned count,
                                                    unsigned end)
{
#pragma unroll 1
    for (; count != end; count++, j += S::keys) {
        float s[S::keys / 8][4], t[S::keys / 8][4], rescale[2], offset[2];
        weights_operand<1, S::keys / 16, typename S::type> w, u;
        ring_wait(wg.sm.key_ring, count);
        issue_scores<S::dim>(wg.query, s, wg.keys(count));
        more_rows<S::dim>(t, wg.probe, wg.keys(count), false);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(s);
        decayed_scores(wg, s, j, count, offset);
        const bool moves = softmax_tile(wg, s, j, rescale, offset);
        wgmma_wait<0>();
        wgmma_results(t);
        ring_release(wg.sm.key_ring, count);
        if (!wg.unmasked(j)) mask_tile(t, wg.state(), j, wg.acc.centre); /* t may be NaN there */
        probe_weights(wg.acc, t, s, rescale);
        if (moves) recentre_sums(wg.acc, wg.state(), t, s, rescale);
        split_weights(w, s);
        if constexpr (given_forward_sums<S>::folded) fold_weights(wg.acc, wg.state(), t);
        split_weights(u, t);
        ring_wait(wg.sm.value_ring, count);
        multiply_weights<S::columns>(wg.acc.o, w.part[0], wg.values(count));
        more_weights<S::columns>(wg.acc.b, u.part[0], wg.values(count));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(wg.acc.o);
        wgmma_results(wg.acc.b);
        ring_release(wg.sm.value_ring, count);
    }
}

/* Releases tiles count .. end - 1, of which the warpgroup's rows see no key. */
template <int KEY_STAGES, int VALUE_STAGES>
static __device__ __forceinline__ void skip_tiles(ring_barriers<KEY_STAGES> &keys,
                                                  ring_barriers<VALUE_STAGES> &values, unsigned count,
                                                  unsigned end)
{
#pragma unroll 1
    for (; count != end; count++) {
        ring_wait(keys, count);
        ring_release(keys, count);
        ring_wait(values, count);
        ring_release(values, count);
    }
}

/* ------------------------------------------------------------------ results */

/* The sums of the thread's rows become vbar, in o, and value_shift = vbar - o, in b. */
template <class S>
static __device__ __forceinline__ void finish_sums(given_forward_sums<S> &sums, const row_state &state,
                                                   const given_row (&g)[2])
{
    const float inverse[2] = { g[0].inverse, g[1].inverse };
#pragma unroll
    for (int n = 0; n < S::columns / TILE_SIDE; n++)
        scale_rows(sums.o[n], inverse);
    if constexpr (S::probed) {
        float unfold[2] = { inverse[0], inverse[1] };
        if constexpr (given_forward_sums<S>::folded) unfold[0] /= state.fold[0], unfold[1] /= state.fold[1];
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                sums.b[n / 8][n % 8][e] = sums.b[n / 8][n % 8][e] * unfold[e / 2] -
                                          sums.o[n / 8][n % 8][e] * g[e / 2].rest;
        }
    }
}

/* Saves them for the backward pass; column: the first of theirs. */
template <class S>
static __device__ __forceinline__ void save_sums(const given_forward_sums<S> &sums, const loam_problem &p,
                                                 const local_saved &saved, const row_block &block,
                                                 const row_pair &r, int column)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int64_t line = local_row(&p, &block.s, block.h, block.i0 + r.at[row]);
        if (!r.real[row]) continue;
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
            const float(&o)[4] = sums.o[n / 8][n % 8];
            const int c = column + column_of(n, 0);
            save_pair(saved.vbar, line, c, p.dim_v, o[2 * row], o[2 * row + 1]);
            if constexpr (S::probed) {
                const float(&b)[4] = sums.b[n / 8][n % 8];
                save_pair(saved.value_shift, line, c, p.dim_v, b[2 * row], b[2 * row + 1]);
            }
        }
    }
}

/* The outputs, of finished sums, into the tile of the queries. */
template <class S>
static __device__ __forceinline__ void put_output_tile(const given_forward_sums<S> &sums,
                                                       typename S::type *tile, const row_pair &r)
{
#pragma unroll
    for (int n = 0; n < S::columns / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
            float2 out = { sums.o[n / 8][n % 8][e], sums.o[n / 8][n % 8][e + 1] };
            if constexpr (S::probed) out.x -= sums.b[n / 8][n % 8][e], out.y -= sums.b[n / 8][n % 8][e + 1];
            *(uint32_t *)(tile + swizzled(r.at[e / 2] % ROWS, column_of(n, 0))) = pack_pair<typename S::type>(
                out.x, out.y);
        }
    }
}

/* Eight numbers of a tile at `out` to `to`, of which `left` are within the array. */
static __device__ __forceinline__ void put_numbers(uint16_t *to, const uint4 &out, int left)
{
    const uint32_t pairs[4] = { out.x, out.y, out.z, out.w };
#pragma unroll
    for (int s = 0; s < 8; s++)
        if (s < left) to[s] = (uint16_t)(pairs[s / 2] >> s % 2 * 16);
}

/* The 16 rows of a warp from the tile of outputs to o, from column `column` on. */
template <class S>
static __device__ __forceinline__ void put_outputs(const typename S::type *tile, const loam_problem &p,
                                                   const loam_args &a, const row_block &block, int column)
{
    constexpr int step = 4; /* rows of an access: 8 lanes have 64 columns of one */
    const bool aligned = (uintptr_t)a.o.data % 16 == 0 && a.o.batch % 8 == 0 && a.o.head % 8 == 0 &&
                         a.o.token % 8 == 0 && p.dim_v % 8 == 0;
    const int lane = threadIdx.x % 32, c = lane % 8 * 8, at = threadIdx.x / 32 * 16 + lane / 8;
    const int left = (int)p.dim_v - column - c;
    uint16_t *to = (uint16_t *)a.o.data + LOCAL_AT(a.o, block.s.b, block.h, block.s.q0 + block.i0 + at) +
                   column + c;
#pragma unroll
    for (int k = 0; k < 16; k += step, to += step * a.o.token) {
        if (at + k >= block.rows) break;
#pragma unroll
        for (int n = 0; n < S::columns; n += TILE_SIDE) {
            const uint4 out = *(const uint4 *)(tile + swizzled((at + k) % ROWS, n + c));
            if (!aligned)
                put_numbers(to + n, out, left - n);
            else if (n < left)
                *(uint4 *)(to + n) = out;
        }
    }
}

template <class S>
static __device__ __forceinline__ void epilogue(given_forward_sums<S> &sums, given_forward_shared<S> &sm,
                                                const loam_problem &p, const loam_args &a,
                                                const local_saved &saved, const row_block &block, int column,
                                                unsigned stage)
{
    const int w = threadIdx.x / THREADS;
    const row_state &state = sm.state[threadIdx.x];
    const row_pair r = row_pair_of(p, block);
    given_row g[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        online o;
        o.m[row] = sums.m[row] * 0.693147181f, o.omega[row] = state.omega[row];
        g[row] = given_finish(o, sums.tsum[row], 0, row, p, a, block.h);
        if (r.real[row] && column == 0) {
            put_given_row<S::probed>(p, a, saved, block, r, row, g[row], sums.centre[row]);
            put_given_probe<S::probed>(p, a, block, r, row, [&](int c) {
                return sm.probe[S::probed ? w : 0][stage][swizzled(r.at[row] % ROWS, c)];
            });
        }
    }
    finish_sums(sums, state, g);
    if (a.saved) save_sums(sums, p, saved, block, r, column);
    put_output_tile(sums, sm.query[w][stage], r);
    __syncwarp();
    put_outputs<S>(sm.query[w][stage], p, a, block, column);
}

/* ------------------------------------------------------------------ the kernel */

static __device__ __forceinline__ void row_state_begin(row_state &state, const loam_problem &p,
                                                       const row_block &block)
{
    const row_pair r = row_pair_of(p, block);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        state.lo[row] = r.lo[row], state.hi[row] = r.hi[row];
        state.omega[row] = 0, state.fold[row] = 1;
    }
}

/* What a warpgroup knows between its blocks. ready: s are the products q . k of the next one's first tile. */
template <class S> struct forward_position {
    float s[S::keys / 8][4];
    bool ready;
    unsigned row_count, count; /* blocks and tiles so far */
};

/* Whether the first tile of the block after `task`, number row_count, follows the last of this one, and its
 * products can be asked for together with the last of this one. */
template <class S>
static __device__ __forceinline__ bool next_follows(given_forward_shared<S> &sm, const tile_range &range,
                                                    int w, unsigned row_count)
{
    if (S::row_stages == 1 || range.end != range.tiles) return false;
    const given_task<S> &next = sm.task[row_count % TASKS];
    ring_wait(sm.task_ring, row_count);
    if (next.block.rows == 0 || next.range[w].begin != 0 || next.range[w].end == 0) return false;
    ring_wait(sm.row_ring[w], row_count);
    return true;
}

/* The sweep over the keys of the warpgroup's rows of a task. */
template <class S>
static __device__ __forceinline__ void sweep_rows(given_forward_shared<S> &sm, given_forward_sums<S> &sums,
                                                  const loam_args &a, const given_task<S> &task, int w,
                                                  float scale2, forward_position<S> &at)
{
    const tile_range range = task.range[w];
    const unsigned begin = at.count + range.begin, end = at.count + range.end,
                   stage = warp_uniform(at.row_count % S::row_stages);
    skip_tiles(sm.key_ring, sm.value_ring, at.count, begin);
    at.count += range.tiles;
    if (begin != end) {
        forward_consumer<S> wg = { sm,
                                   sums,
                                   sm.query[w][stage],
                                   S::probed ? sm.probe[w][stage] : NULL,
                                   scale2,
                                   range.unmasked_begin,
                                   range.unmasked_end,
                                   NULL,
                                   {} };
        if constexpr (S::decayed) {
            wg.decay_keys = decay_sums(a, task.block.s, task.block.h);
            wg.decay_rows[0] = row_decay(wg.decay_keys, wg.state().hi[0]);
            wg.decay_rows[1] = row_decay(wg.decay_keys, wg.state().hi[1]);
        }
        const int j = task.block.first + range.begin * S::keys;
        if constexpr (S::probed) {
            sweep_probed(wg, j, begin, end);
        } else {
            weights_operand<1, S::keys / 16, typename S::type> weights;
            sweep_keys(wg, at.s, at.ready, weights, j, begin, end);
            at.ready = next_follows(sm, range, w, at.row_count + 1);
            if (at.ready)
                finish_keys(wg, weights, end - 1,
                            sm.query[w][warp_uniform((at.row_count + 1) % S::row_stages)], at.s);
            else
                finish_keys(wg, weights, end - 1);
        }
    }
    skip_tiles(sm.key_ring, sm.value_ring, end, at.count);
}

/* A consumer: a warpgroup computes 64 rows of each block. */
template <class S>
static __device__ __forceinline__ void consume_rows(given_forward_shared<S> &sm, const loam_problem &p,
                                                    const loam_args &a, const local_saved &saved,
                                                    float scale2)
{
    const int w = warp_uniform(threadIdx.x / THREADS);
    forward_position<S> at;
    at.ready = false, at.count = 0;
#pragma unroll 1
    for (at.row_count = 0;; at.row_count++) {
        const unsigned stage = warp_uniform(at.row_count % S::row_stages);
        const given_task<S> &task = sm.task[at.row_count % TASKS];
        ring_wait(sm.task_ring, at.row_count);
        if (task.block.rows == 0) break;
        ring_wait(sm.row_ring[w], at.row_count);
        given_forward_sums<S> sums;
        clear_forward_sums(sums);
        row_state_begin(sm.state[threadIdx.x], p, task.block);
        sweep_rows(sm, sums, a, task, w, scale2, at);
        warpgroup_sync(1 + w);
        epilogue(sums, sm, p, a, saved, task.block, task.column, stage);
        fence_async_proxy();
        ring_release(sm.row_ring[w], at.row_count);
        ring_release(sm.task_ring, at.row_count);
    }
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    given_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                        const local_saved saved, const block_order order, const unsigned blocks,
                        const int rows, const float scale2, const __grid_constant__ given_forward_maps maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    given_forward_shared<S> &sm = *(given_forward_shared<S> *)swizzled_memory;
    if (threadIdx.x == 0) {
        ring_init(sm.key_ring, S::consumers * THREADS / 32);
        for (int n = 0; n < S::key_stages && S::decayed; n++)
            barrier_init(&sm.key_ring.full[n], 1 + 32); /* the copies, and each lane of produce_decay */
        ring_init(sm.value_ring, S::consumers * THREADS / 32);
        for (int w = 0; w < S::consumers; w++)
            ring_init(sm.row_ring[w], THREADS / 32);
        ring_init(sm.task_ring, S::consumers * THREADS / 32 + (S::decayed ? 2 : 1));
        barrier_init(&sm.tail, 1);
        fence_async_proxy();
    }
    __syncthreads();
    if (threadIdx.x / THREADS == S::consumers) {
        registers_release<40>();
        if (threadIdx.x / 32 == S::consumers * 4) {
            produce_tiles(sm, maps);
        } else if (threadIdx.x == S::consumers * THREADS + 32) {
            produce_rows(sm, p, a, maps, order, blocks, rows);
        } else if (S::decayed && threadIdx.x / 32 == S::consumers * 4 + 2) {
            if constexpr (S::decayed) produce_decay(sm, a);
        }
    } else {
        registers_acquire<232>();
        consume_rows(sm, p, a, saved, scale2);
    }
}

/* ------------------------------------------------------------------ the launches */

template <class S> static int64_t blocks_of(const loam_problem *p, int rows)
{
    return (p->len_q + rows - 1) / rows * p->batch * p->heads_q * S::parts;
}

/* Where blocks are few, they have the rows of fewer warpgroups, which then run alone and faster. Where late
 * rows see all keys and early ones few, a block of late rows takes as long as two that follow each other. */
template <class S> static int rows_of_blocks(const loam_problem *p, int multiprocessors)
{
    const int rounds = p->causal && p->window == 0 && p->len_q == p->len_kv ? 2 : 1;
    int rows = S::rows;
    while (rows > ROWS && blocks_of<S>(p, rows - ROWS) <= rounds * multiprocessors)
        rows -= ROWS;
    return rows;
}

template <class S> static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(given_forward_shared<S>);
    given_forward_maps maps;
    int most = 0;
    TRY(cuda_multiprocessors(&most, error));
    const int rows = rows_of_blocks<S>(p, most);
    const int64_t blocks = blocks_of<S>(p, rows);
    block_order order;
    TRY(local_row_order_hopper(&order, p, blocks / S::parts, error));
    TRY(query_map_make(&maps.q, p, &a->q, p->dim_qk, ROWS, error));
    TRY(key_map_make(&maps.k, p, &a->k, p->dim_qk, S::keys, error));
    TRY(key_map_make(&maps.v, p, &a->v, p->dim_v, S::keys, error));
    if (S::probed) TRY(query_map_make(&maps.probe, p, &a->probe, p->dim_qk, ROWS, error));
    TRY(cuda_allow_shared((const void *)given_kernel_hopper<S>, shared, error));
    given_kernel_hopper<S>
        <<<(unsigned)(blocks < most ? blocks : most), S::threads, shared, (cudaStream_t)a->stream>>>(
            *p, *a, saved, order, (unsigned)blocks, rows, (float)(p->scale * LOG2E), maps);
    return cuda_launched("given_kernel_hopper", error);
}

template <class T, bool PROBED, bool DECAYED>
static loam_status launch_dim(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    if (dim <= 64) return launch<given_forward<T, 64, PROBED, DECAYED>>(p, a, error);
    if (dim <= 128) return launch<given_forward<T, 128, PROBED, DECAYED>>(p, a, error);
    if constexpr (!PROBED) {
        if (dim <= 192) return launch<given_forward<T, 192, PROBED, DECAYED>>(p, a, error);
    }
    return launch<given_forward<T, 256, PROBED, DECAYED>>(p, a, error);
}

template <class T>
static loam_status launch_type(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (p->mechanism == LOAM_PARALLAX)
        return p->decay ? launch_dim<T, true, true>(p, a, error) : launch_dim<T, true, false>(p, a, error);
    return p->decay ? launch_dim<T, false, true>(p, a, error) : launch_dim<T, false, false>(p, a, error);
}

/* The kernel takes the maximum of products q . k for that of scores, which needs a positive scale. */
bool local_given_hopper_reads(const loam_problem *p, const loam_args *a)
{
    return !a->weights.data && p->scale > 0 && query_map_fits(p, &a->q) && key_map_fits(p, &a->k) &&
           key_map_fits(p, &a->v) && (p->mechanism != LOAM_PARALLAX || query_map_fits(p, &a->probe));
}

loam_status local_given_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return p->dtype == LOAM_F16 ? launch_type<__half>(p, a, error) : launch_type<__nv_bfloat16>(p, a, error);
}
