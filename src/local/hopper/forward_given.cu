/* SPDX-License-Identifier: MIT
 *
 * Forward with a given probe (0 or args.probe) on Hopper: the sums of local/cuda/given.cuh, for bf16 and
 * float16, dot scores that may decay but have no other bias, and head dimensions to 256: tiles are 64, 128,
 * 192 or 256 channels wide, and channels that the arrays do not have read as 0.
 *
 * Persistent blocks, one on each multiprocessor, go through blocks of 128 rows. Two consumer warpgroups have
 * 64 rows each, from the scores to the output, and take turns to issue products: the exponentials of one
 * overlap with the products of the other. Without a probe, the product of a tile's weights with its values
 * also overlaps with the weights of the next tile; with 64 channels, all products do, and turns are those of
 * computing exponentials. The last warpgroup produces: one warp copies keys and values, one thread the rows,
 * and one warp computes decays. Scores and their maxima are to base 2.
 */
#include "src/local/cuda/forward.h"
#include "src/local/hopper/forward_given_results.cuh"
#include "src/local/hopper/maps.cuh"

/* ------------------------------------------------------------------ sums */

/* The sweep of a warpgroup over the keys of its rows. */
template <class S> struct forward_consumer {
    typedef typename S::type T;
    given_forward_shared<S> &sm;
    given_forward_sums<S> &acc;
    const T *query, *probe;
    float scale2;
    int unmasked_begin, unmasked_end; /* all rows of the warpgroup see all keys between */
    bool folds;
    unsigned turns_begin, turns; /* tiles that both warpgroups have, and how many they are */
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

/* The warpgroups take turns to issue products: those of one run while the other computes weights. Left alone
 * they fall into step, and the tensor cores wait for both. Where products run ahead of the weights the turns
 * are for exponentials instead: the rest of one's tile goes beside those of the other. Turns are those of
 * tiles that both have, so that neither waits for the other in vain. */
enum { TURN_BARRIER = 3 }; /* and the next */

template <class S>
static __device__ __forceinline__ void take_turn(const forward_consumer<S> &wg, unsigned count)
{
    if (count - wg.turns_begin < wg.turns)
        named_barrier_sync<2 * THREADS>(TURN_BARRIER + threadIdx.x / THREADS);
}

template <class S>
static __device__ __forceinline__ void give_turn(const forward_consumer<S> &wg, unsigned count)
{
    if (count - wg.turns_begin < wg.turns)
        named_barrier_arrive<2 * THREADS>(TURN_BARRIER + 1 - threadIdx.x / THREADS);
}

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

template <class S> static __device__ __forceinline__ float score_scale(const forward_consumer<S> &wg)
{
    return S::decayed ? 1.0f : wg.scale2; /* decayed_scores are scaled */
}

template <class S, int BLOCKS>
static __device__ __forceinline__ void mask_scores(const forward_consumer<S> &wg, float (&s)[BLOCKS][4],
                                                   int j)
{
    const float nothing[2] = { -INFINITY, -INFINITY };
    if (!wg.unmasked(j)) mask_tile(s, wg.state(), j, nothing);
}

/* s, which is the products q . k of the tile from key j on or comes from decayed_scores, becomes
 * weights. */
template <class S, int BLOCKS>
static __device__ __forceinline__ bool softmax_tile(const forward_consumer<S> &wg, float (&s)[BLOCKS][4],
                                                    int j, float (&rescale)[2], const float (&offset)[2])
{
    float top[2];
    mask_scores(wg, s, j);
    row_tops(top, s, score_scale(wg), offset);
    const bool moves = move_maximum(wg.acc, top, rescale);
    weigh_scores(wg.acc, wg.state(), s, score_scale(wg), offset);
    return moves;
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
        take_turn(wg, count);
        issue_scores<S::dim>(wg.query, s, wg.keys(count + 1));
        more_weights<S::columns>(wg.acc.o, w.part[0], wg.values(count));
        wgmma_commit();
        give_turn(wg, count);
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

/* The same with two tiles of scores, where there are registers for them: beside o += w v of a tile, the
 * products q . k of the next but one are asked for, so that weights wait for no products. One step: s becomes
 * weights w of tile `count`, and `next` the products of the tile after. Masks come first, since products
 * whose weights come from registers hold up what follows them; the compiler then puts the maxima between. */
template <class S, bool FIRST, bool LAST, int BLOCKS>
static __device__ __forceinline__ void step_ahead(const forward_consumer<S> &wg, float (&s)[BLOCKS][4],
                                                  float (&next)[BLOCKS][4],
                                                  weights_operand<1, BLOCKS / 2, typename S::type> &w, int j,
                                                  unsigned count)
{
    float top[2], rescale[2], offset[2];
    if (!S::decayed) mask_scores(wg, s, j);
    if (!LAST) ring_wait(wg.sm.key_ring, count + 1);
    if (!FIRST) ring_wait(wg.sm.value_ring, count - 1);
    wgmma_fence();
    if (!FIRST) more_weights<S::columns>(wg.acc.o, w.part[0], wg.values(count - 1));
    if (!LAST) more_rows<S::dim>(next, wg.query, wg.keys(count + 1), false);
    wgmma_commit();
    decayed_scores(wg, s, j, count, offset);
    if (S::decayed) mask_scores(wg, s, j);
    ring_release(wg.sm.key_ring, count);
    row_tops(top, s, score_scale(wg), offset);
    take_turn(wg, count);
    const bool moves = move_maximum(wg.acc, top, rescale);
    weigh_scores(wg.acc, wg.state(), s, score_scale(wg), offset);
    give_turn(wg, count);
    wgmma_wait<0>();
    if (!LAST) wgmma_results(next);
    if (!FIRST) {
        wgmma_results(wg.acc.o);
        ring_release(wg.sm.value_ring, count - 1);
        if (moves) rescale_sums(wg.acc, rescale);
    }
    split_weights(w, s);
}

template <class S, int BLOCKS>
static __device__ __forceinline__ void sweep_ahead(const forward_consumer<S> &wg, float (&s)[2][BLOCKS][4],
                                                   bool ready,
                                                   weights_operand<1, BLOCKS / 2, typename S::type> &w, int j,
                                                   unsigned count, unsigned end)
{
    if (!ready) {
        ring_wait(wg.sm.key_ring, count);
        issue_scores<S::dim>(wg.query, s[0], wg.keys(count));
        wgmma_wait<0>();
        wgmma_results(s[0]);
    }
    if (count + 1 == end) {
        step_ahead<S, true, true>(wg, s[0], s[1], w, j, count);
        return;
    }
    step_ahead<S, true, false>(wg, s[0], s[1], w, j, count);
#pragma unroll 1
    for (;;) {
        count++, j += S::keys;
        if (count + 1 == end) {
            step_ahead<S, false, true>(wg, s[1], s[0], w, j, count);
            break;
        }
        step_ahead<S, false, false>(wg, s[1], s[0], w, j, count);
        count++, j += S::keys;
        if (count + 1 == end) {
            step_ahead<S, false, true>(wg, s[0], s[1], w, j, count);
            break;
        }
        step_ahead<S, false, false>(wg, s[0], s[1], w, j, count);
    }
}

/* The product o += w v of the last tile. */
template <class S, int STEPS>
static __device__ __forceinline__ void finish_keys(const forward_consumer<S> &wg,
                                                   const weights_operand<1, STEPS, typename S::type> &w,
                                                   unsigned last)
{
    ring_wait(wg.sm.value_ring, last);
    if (!S::ahead) take_turn(wg, last);
    multiply_weights<S::columns>(wg.acc.o, w.part[0], wg.values(last));
    wgmma_commit();
    if (!S::ahead) give_turn(wg, last);
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
    if (!S::ahead) take_turn(wg, last);
    issue_scores<S::dim>(query, s, wg.keys(last + 1));
    more_weights<S::columns>(wg.acc.o, w.part[0], wg.values(last));
    wgmma_commit();
    if (!S::ahead) give_turn(wg, last);
    wgmma_wait<0>();
    wgmma_results(s);
    wgmma_results(wg.acc.o);
    ring_release(wg.sm.value_ring, last);
}

/* All tiles, of which those of a segment are swept at a time. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void sweep_segments(const forward_consumer<S> &wg, float (&s)[2][BLOCKS][4],
                                                      bool ready,
                                                      weights_operand<1, BLOCKS / 2, typename S::type> &w,
                                                      int j, unsigned count, unsigned end)
{
#pragma unroll 1
    for (;;) {
        const unsigned left = (unsigned)(S::segment - j % S::segment) / S::keys;
        const unsigned stop = min(count + left, end);
        sweep_ahead(wg, s, ready, w, j, count, stop);
        if (stop == end) break;
        finish_keys(wg, w, stop - 1, wg.query, s[0]);
        close_segment(wg.sm, wg.acc);
        ready = true, j += (int)(stop - count) * S::keys, count = stop;
    }
}

/* The same with a probe, one tile after another, since there are no registers for two: the weights overlap
 * with the products t = probe . k, all else with the other warpgroup. */
template <class S>
static __device__ __forceinline__ void sweep_probed(const forward_consumer<S> &wg, int j, unsigned count,
                                                    unsigned end)
{
    const unsigned first = count;
#pragma unroll 1
    for (; count != end; count++, j += S::keys) {
        float s[S::keys / 8][4], t[S::keys / 8][4], rescale[2], offset[2];
        weights_operand<1, S::keys / 16, typename S::type> w, u;
        ring_wait(wg.sm.key_ring, count);
        if (count == first) take_turn(wg, count);
        issue_scores<S::dim>(wg.query, s, wg.keys(count));
        more_rows<S::dim>(t, wg.probe, wg.keys(count), false);
        wgmma_commit();
        give_turn(wg, count);
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
        if constexpr (given_forward_sums<S>::folded) {
            if (wg.folds) fold_weights(wg.acc, wg.state(), t);
        }
        split_weights(u, t);
        ring_wait(wg.sm.value_ring, count);
        if (count + 1 != end) take_turn(wg, count + 1);
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
    float s[S::ahead ? 2 : 1][S::keys / 8][4];
    bool ready;
    unsigned row_count, count; /* blocks and tiles so far */
    unsigned received, sent;   /* sums of segments, from and to other blocks of the cluster */
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
    const tile_range other = task.range[S::consumers - 1 - w];
    const int turns_begin = max(range.begin, other.begin), turns_end = min(range.end, other.end);
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
                                   task.folds,
                                   at.count - range.tiles + turns_begin,
                                   (unsigned)max(turns_end - turns_begin, 0),
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
            if constexpr (S::segment != 0)
                sweep_segments(wg, at.s, at.ready, weights, j, begin, end);
            else if constexpr (S::ahead)
                sweep_ahead(wg, at.s, at.ready, weights, j, begin, end);
            else
                sweep_keys(wg, at.s[0], at.ready, weights, j, begin, end);
            at.ready = next_follows(sm, range, w, at.row_count + 1);
            if (at.ready)
                finish_keys(wg, weights, end - 1,
                            sm.query[w][warp_uniform((at.row_count + 1) % S::row_stages)], at.s[0]);
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
                                                    const given_forward_maps &maps, float scale2)
{
    const int w = warp_uniform(threadIdx.x / THREADS);
    forward_position<S> at;
    at.ready = false, at.count = at.received = at.sent = 0;
    if (w == 1) named_barrier_arrive<2 * THREADS>(TURN_BARRIER);
#pragma unroll 1
    for (at.row_count = 0;; at.row_count++) {
        const unsigned stage = warp_uniform(at.row_count % S::row_stages);
        given_task<S> &task = sm.task[at.row_count % TASKS];
        ring_wait(sm.task_ring, at.row_count);
        if (task.block.rows == 0) break;
        ring_wait(sm.row_ring[w], at.row_count);
        given_forward_sums<S> sums;
        clear_forward_sums(sums);
        row_state_begin(sm.state[threadIdx.x], p, task.block);
        if (S::row_stages > 1 && at.row_count > 0)
            release_rows(sm, w, at.row_count - 1, stages_sums<S>(p, a));
        bool merges = false, sends = false;
        if constexpr (S::segment != 0) {
            merges = __any_sync(0xffffffffu, task.range[w].merges);
            if (merges) begin_segments(sm, w, task.range[w].receives, at.received);
        }
        sweep_rows(sm, sums, a, task, w, scale2, at);
        warpgroup_sync(1 + w);
        if constexpr (S::segment != 0) {
            if (merges) sends = end_segments(sm, sums, __any_sync(0xffffffffu, task.range[w].sends), at.sent);
        }
        if (!sends) epilogue(sums, sm, p, a, saved, maps, task, stage);
        if (S::row_stages == 1) release_rows(sm, w, at.row_count, false);
        ring_release(sm.task_ring, at.row_count);
    }
    if (w == 0) named_barrier_sync<2 * THREADS>(TURN_BARRIER);
    if (S::row_stages > 1) store_wait<0>();
}

template <class S> static __device__ __forceinline__ void init_barriers(given_forward_shared<S> &sm)
{
    ring_init(sm.key_ring, S::consumers * THREADS / 32);
    for (int n = 0; n < S::key_stages && S::decayed; n++)
        barrier_init(&sm.key_ring.full[n], 1 + 32); /* the copies, and each lane of produce_decay */
    ring_init(sm.value_ring, S::consumers * THREADS / 32);
    for (int w = 0; w < S::consumers; w++) {
        ring_init(sm.row_ring[w], THREADS / 32);
        if (S::segment) barrier_init(&sm.received[w], 1), barrier_init(&sm.receives[w], THREADS / 32);
    }
    ring_init(sm.task_ring, S::consumers * THREADS / 32 + (S::decayed ? 2 : 1));
    for (int n = 0; n < TASKS; n++)
        sm.task[n].overflows = false;
    barrier_init(&sm.tail, 1);
    fence_async_proxy();
    if (S::segment) fence_barriers_cluster();
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    given_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                        const local_saved saved, const unsigned blocks, const int rows, const float scale2,
                        const __grid_constant__ given_forward_maps maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    given_forward_shared<S> &sm = *(given_forward_shared<S> *)swizzled_memory;
    constexpr int first_producer = S::consumers * THREADS;
    const bool clustered = S::segment && gridDim.y > 1;
    bool described = false;
    if (threadIdx.x == first_producer) {
        prefetch_map(&maps.q), prefetch_map(&maps.k), prefetch_map(&maps.v);
        if (S::probed) prefetch_map(&maps.probe);
    } else if (threadIdx.x == first_producer + 32) {
        const unsigned n = given_block_of_round(blocks, 0);
        described = n < blocks && describe_task(sm, p, a, n, rows, false, 0);
    } else if (threadIdx.x == 0) {
        init_barriers(sm);
    }
    if (clustered) cluster_arrive();
    __syncthreads();
    if (threadIdx.x / THREADS == S::consumers) {
        registers_release<40>();
        if (threadIdx.x / 32 == S::consumers * 4) {
            produce_tiles(sm, maps);
        } else if (threadIdx.x == first_producer + 32) {
            produce_rows(sm, p, a, maps, blocks, rows, described);
        } else if (S::decayed && threadIdx.x / 32 == S::consumers * 4 + 2) {
            if constexpr (S::decayed) produce_decay(sm, a);
        }
        if (clustered) cluster_wait();
    } else {
        registers_acquire<232>();
        if (clustered) cluster_wait();
        consume_rows(sm, p, a, saved, maps, scale2);
    }
}

/* ------------------------------------------------------------------ the launches */

template <class S> static int64_t blocks_of(const loam_problem *p, int rows)
{
    return (p->len_q + rows - 1) / rows * p->batch * p->heads_q * S::parts;
}

/* Rows of a block, and thread blocks of a cluster, which have some of its segments of keys each. Bits depend
 * on neither. */
struct launch_shape {
    int rows, ranks;
};

/* More than one thread block where there are so few blocks of rows that `most` of them at a time would leave
 * multiprocessors over, and each thread block gets half a segment at least. */
template <class S> static int ranks_of_clusters(const loam_problem *p, int64_t blocks, int64_t most)
{
    enum { MOST = 8 }; /* what every GPU with clusters has */
    int ranks = 1;
    while (ranks < MOST && 2 * p->len_kv >= (4 * ranks - 1) * (int64_t)S::segment &&
           2 * ranks * blocks <= most)
        ranks *= 2;
    return ranks;
}

/* Where blocks are few, clusters share out their keys, or they have the rows of fewer warpgroups, which
 * then run alone and faster. Where late rows see all keys and early ones few, a block of late rows takes as
 * long as two that follow each other. */
template <class S> static launch_shape shape_of_launch(const loam_problem *p, int multiprocessors)
{
    const int rounds = p->causal && p->window == 0 && p->len_q == p->len_kv ? 2 : 1;
    const int64_t most = rounds * multiprocessors;
    for (int rows = ROWS; S::segment && rows <= S::rows; rows += ROWS) {
        const int ranks = ranks_of_clusters<S>(p, blocks_of<S>(p, rows), most);
        if (ranks > 1) return { rows, ranks };
    }
    int rows = S::rows;
    while (rows > ROWS && blocks_of<S>(p, rows - ROWS) <= most)
        rows -= ROWS;
    return { rows, 1 };
}

template <class S> static loam_status launch(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    constexpr size_t shared = sizeof(given_forward_shared<S>);
    given_forward_maps maps;
    int most = 0;
    TRY(cuda_multiprocessors(&most, error));
    const launch_shape shape = shape_of_launch<S>(p, most);
    const int64_t blocks = blocks_of<S>(p, shape.rows);
    TRY(query_map_make(&maps.q, p, &a->q, p->dim_qk, ROWS, error));
    TRY(key_map_make(&maps.k, p, &a->k, p->dim_qk, S::keys, error));
    TRY(key_map_make(&maps.v, p, &a->v, p->dim_v, S::keys, error));
    if (S::probed) TRY(query_map_make(&maps.probe, p, &a->probe, p->dim_qk, ROWS, error));
    const loam_const_view o = { a->o.data, a->o.batch, a->o.head, a->o.token };
    maps.stores_boxes = query_map_fits(p, &o) && p->dim_v % 8 == 0; /* they write whole pieces of 16 bytes */
    if (maps.stores_boxes) TRY(query_map_make(&maps.o, p, &o, p->dim_v, 16, error));
    return cuda_launch_ranks("given_kernel_hopper", given_kernel_hopper<S>, blocks, shape.ranks, S::threads,
                             shared, a->stream, error, *p, *a, saved, (unsigned)blocks, shape.rows,
                             (float)(p->scale * LOG2E), maps);
}

template <class T, bool PROBED, bool DECAYED>
static loam_status launch_dim(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    if constexpr (!PROBED) { /* bits are the same where no row has more than one segment */
        typedef given_forward<T, 64, PROBED, DECAYED, true> segmented;
        if (dim <= 64 && p->len_kv > segmented::segment) return launch<segmented>(p, a, error);
    }
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
