/* SPDX-License-Identifier: MIT
 *
 * Backward on Hopper, second pass: dk and dv of a block of 128 keys, 64 for each of two consumer warpgroups,
 * past which stream the queries of all heads of the group that see them:
 *
 *     dv_j = sum_i p (1 - u) do_i,   dk_j = sum_i (scale ds q_i - p E rho_i + p (1 - u) y_i)
 *
 * A third warpgroup produces: one thread issues bulk copies, other warps write the terms of the rows. Where
 * sequences are short, thread blocks stay, and the next block's keys are copied during this one. Products
 * come out as [key][query], so that weights are operands from registers, and dk and dv stay in registers.
 *
 * rho and y of LLA have more digits than bf16. A tile takes one part of them and of the weights, or two
 * parts: where the pass over rows needed two, as for rows that see few keys, rho and y are large and what
 * they add to dk cancels. Tiles in one part that a warpgroup sees whole are pipelined in runs: the sums of
 * one tile are in flight while the scores of the next are issued, with element-wise work between. All others
 * come one at a time, with masks.
 */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_KEY_RUNS_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_KEY_RUNS_CUH

#include "src/local/hopper/backward_key.cuh"
#include "src/local/hopper/stay.cuh"

/* ------------------------------------------------------------------ a tile and 64 keys */

/* 64 rows as operand A: HELD in registers, else read from shared memory by each product. */
template <class T, int DIM, bool HELD> struct row_operand {
    __device__ __forceinline__ void load(const T *) {}
    template <int BLOCKS>
    __device__ __forceinline__ void multiply(float (&s)[BLOCKS][4], const T *at, const T *tile,
                                             bool add) const
    {
        more_rows<DIM>(s, at, tile, add);
    }
};
template <class T, int DIM> struct row_operand<T, DIM, true> {
    uint32_t rows[DIM / 16][4];
    __device__ __forceinline__ void load(const T *at) { load_rows<DIM>(rows, at); }
    template <int BLOCKS>
    __device__ __forceinline__ void multiply(float (&s)[BLOCKS][4], const T *, const T *tile, bool add) const
    {
        more_rows<DIM>(s, rows, tile, add);
    }
};

/* A consumer warpgroup that has its keys to itself. */
template <class S> struct key_runner : key_consumer<S> {
    typedef typename S::type T;
    row_operand<T, S::dim, S::keys_held> keys;
    row_operand<T, S::dim, S::values_held> values;
};

template <class S> struct key_gradients {
    float dk[S::dim / TILE_SIDE][8][4], dv[S::dim / TILE_SIDE][8][4];
};

/* Issues three groups of products (two where there is no direction): k . q, k . rho, v . do + k . y. */
template <int PARTS, class S, int BLOCKS>
static __device__ __forceinline__ void issue_scores(key_scores<BLOCKS> &pairs, const key_runner<S> &wg)
{
    const typename S::type *const keys = wg.sm.keys[wg.group];
    wgmma_fence();
    wg.keys.multiply(pairs.s, keys, wg.tile(TILE_Q), false);
    wgmma_commit();
    if constexpr (S::probed) {
        if (PARTS == 2) wg.keys.multiply(pairs.u, keys, wg.lo_tile(TILE_RHO), false);
        wg.keys.multiply(pairs.u, keys, wg.tile(TILE_RHO), PARTS == 2);
        wgmma_commit();
    }
    wg.values.multiply(pairs.e, wg.sm.values[wg.group], wg.tile(TILE_GRAD_O), false);
    if constexpr (S::solved) {
        if (PARTS == 2) wg.keys.multiply(pairs.e, keys, wg.lo_tile(TILE_Y), true);
        wg.keys.multiply(pairs.e, keys, wg.tile(TILE_Y), true);
    }
    wgmma_commit();
}

/* sum += weights tile. In two parts: hi hi + lo hi, and hi lo where the tile has a lo part, `rest`. */
template <int DIM, int PARTS, int STEPS, class T>
static __device__ __forceinline__ void add_weighted(float (&sum)[DIM / TILE_SIDE][8][4],
                                                    const weights_operand<PARTS, STEPS, T> &w, const T *tile,
                                                    const T *rest = NULL)
{
    if (PARTS > 1) {
        if (rest) multiply_weights<DIM>(sum, w.part[0], rest);
        multiply_weights<DIM>(sum, w.part[PARTS - 1], tile);
    }
    multiply_weights<DIM>(sum, w.part[0], tile);
}

template <class S> static __device__ __forceinline__ void wgmma_results(key_gradients<S> &sum)
{
    wgmma_results(sum.dk);
    wgmma_results(sum.dv);
}

/* One tile with probes, with masks and without pipelining. */
template <int PARTS, class S>
static __device__ __forceinline__ void masked_parts(key_gradients<S> &sum, key_runner<S> &wg)
{
    key_scores<S::blocks> pairs;
    weights_operand<PARTS, S::steps, typename S::type> w;
    issue_scores<PARTS>(pairs, wg);
    wgmma_wait<0>();
    wgmma_results(pairs.s);
    wgmma_results(pairs.e);
    key_weights(pairs.s, terms_of(wg, TERM_LSE), wg);
    if constexpr (S::probed) {
        wgmma_results(pairs.u);
        centre_probe<PARTS>(pairs.u, terms_of(wg, TERM_UNIT), wg);
    }
    centre_error(pairs.e, terms_of(wg, TERM_CENTRE), wg);
    mask_pairs(pairs.s, wg);
    mask_pairs(pairs.e, wg);
    if constexpr (S::probed) mask_pairs(pairs.u, wg);
    pack_effective_weights<S>(w, pairs);
    add_weighted<S::dim>(sum.dv, w, wg.tile(TILE_GRAD_O));
    if constexpr (S::solved)
        add_weighted<S::dim>(sum.dk, w, wg.tile(TILE_Y), PARTS == 2 ? wg.lo_tile(TILE_Y) : NULL);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(sum);
    score_gradient(pairs, wg);
    if (S::solved && wg.by_max) add_peaks(pairs.s, wg);
    add_decay_sums(wg, pairs.s);
    split_weights(w, pairs.s);
    add_weighted<S::dim>(sum.dk, w, wg.tile(TILE_Q));
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(sum);
    if constexpr (S::probed) {
        split_weights(w, pairs.e);
        add_weighted<S::dim>(sum.dk, w, wg.tile(TILE_RHO), PARTS == 2 ? wg.lo_tile(TILE_RHO) : NULL);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(sum);
    }
}

/* Rows of the current head, from the current tile on, whose directions have one part; among the next 32
 * blocks of 64 rows, one for each lane. */
template <class S> static __device__ __forceinline__ int count_one_part_rows(const key_runner<S> &wg)
{
    const int i = wg.t.i + (int)(threadIdx.x % 32) * ROWS;
    const bool two_parts = i < wg.v.nq && needs_two_parts<S>(wg.v, wg.t.head, i);
    const unsigned any = __ballot_sync(0xffffffffu, two_parts);
    return warp_uniform((any ? __ffs((int)any) - 1 : 32) * ROWS - (any % 2 ? 0 : wg.t.i % ROWS));
}

/* Tiles of the current head, from the current one on, that make a run: in one part, and seen whole. */
template <class S> static __device__ __forceinline__ int run_length(const key_runner<S> &wg)
{
    if ((S::solved && (wg.by_max || wg.one_part_rows <= 0)) || !tile_whole<S::queries>(wg.v, wg.t.i, wg.j))
        return 0;
    /* The largest first row of a tile in the run: within the sequence, with key j in the window of the last
     * row of the tile, and with one part. */
    int last = min(wg.v.nq - S::queries, wg.j - (S::queries - 1) - wg.v.low);
    if (S::solved) last = min(last, wg.t.i + wg.one_part_rows - S::queries);
    return (last - wg.t.i) / S::queries + 1;
}

/* From the scores of a tile in one part, which are issued, to its sums, which it issues. MASKED, where there
 * is no direction: not all pairs are seen. */
template <bool MASKED, class S>
static __device__ __forceinline__ void pipelined_tile(key_gradients<S> &sum, key_runner<S> &wg,
                                                      key_scores<S::blocks> &pairs)
{
    constexpr int groups = S::probed ? 3 : 2;
    weights_operand<1, S::steps, typename S::type> effective, ds, error;
    wg.stage = warp_uniform(wg.stage);
    column_terms<S::blocks> term = terms_of(wg, TERM_LSE);
    wgmma_wait<groups - 1>();
    wgmma_results(pairs.s);
    key_weights(pairs.s, term, wg);
    if (MASKED) mask_pairs(pairs.s, wg);
    if constexpr (S::probed) {
        term = terms_of(wg, TERM_UNIT);
        wgmma_wait<1>();
        wgmma_results(pairs.u);
        centre_probe<1>(pairs.u, term, wg);
    }
    pack_effective_weights<S>(effective, pairs);
    multiply_weights<S::dim>(sum.dv, effective.part[0], wg.tile(TILE_GRAD_O));
    if constexpr (S::solved) more_weights<S::dim>(sum.dk, effective.part[0], wg.tile(TILE_Y));
    wgmma_commit();
    term = terms_of(wg, TERM_CENTRE);
    wgmma_wait<1>();
    wgmma_results(pairs.e);
    centre_error(pairs.e, term, wg);
    if (MASKED) mask_pairs(pairs.e, wg);
    score_gradient(pairs, wg);
    add_decay_sums(wg, pairs.s);
    split_weights(ds, pairs.s);
    if constexpr (S::probed) split_weights(error, pairs.e);
    multiply_weights<S::dim>(sum.dk, ds.part[0], wg.tile(TILE_Q));
    if constexpr (S::probed) more_weights<S::dim>(sum.dk, error.part[0], wg.tile(TILE_RHO));
    wgmma_commit();
    if constexpr (S::keys_held && S::probed) wgmma_wait<1>();
}

/* A run of `length` tiles, at least one, pipelined. */
template <class S>
static __device__ __forceinline__ void pipelined_tiles(key_gradients<S> &sum, key_runner<S> &wg, int length)
{
    key_scores<S::blocks> pairs;
    advance<S::queries>(wg.t, wg.block, length);
    wait_stage(wg);
    issue_scores<1>(pairs, wg);
    for (;;) {
        pipelined_tile<false>(sum, wg, pairs);
        const unsigned used = wg.count++;
        if (--length == 0) {
            wgmma_wait<0>();
            wgmma_results(sum);
            ring_release(wg.sm.ring, used);
            return;
        }
        wait_stage(wg);
        issue_scores<1>(pairs, wg);
        wgmma_wait<S::probed ? 3 : 2>();
        ring_release(wg.sm.ring, used);
    }
}

/* One tile, with masks. */
template <class S>
static __device__ __forceinline__ void masked_tile(key_gradients<S> &sum, key_runner<S> &wg, bool two_parts)
{
    if constexpr (S::probed) {
        if (two_parts)
            masked_parts<S::solved ? 2 : 1>(sum, wg);
        else
            masked_parts<1>(sum, wg);
    } else {
        key_scores<S::blocks> pairs;
        issue_scores<1>(pairs, wg);
        pipelined_tile<true>(sum, wg, pairs);
        wgmma_wait<0>();
        wgmma_results(sum);
    }
}

/* A consumer warpgroup: all tiles of queries, in runs or one at a time. */
template <class S>
static __device__ __forceinline__ void consume_tiles(key_gradients<S> &sum, key_runner<S> &wg,
                                                     const loam_args &a)
{
    while (wg.t.left > 0) {
        if constexpr (S::decayed) decay_of_head(wg, a);
        wg.one_part_rows = S::solved ? count_one_part_rows(wg) : 0;
        const int length = run_length(wg);
        if (length > 0) {
            pipelined_tiles(sum, wg, length);
            continue;
        }
        const bool two_parts = S::solved && wg.one_part_rows <= 0;
        wait_stage(wg);
        if (two_parts) ring_wait(wg.sm.ring, wg.count + 1);
        if (wg.v.packed && wg.t.i + S::queries > wg.v.nq) {
            clear_tail_consumers(wg, wg.sm.stage[wg.count % S::stages][0], S::tiles);
            if (two_parts) {
                wg.count++;
                clear_tail_consumers(wg, wg.sm.stage[wg.count % S::stages][0], S::tiles);
                wg.count--;
            }
        }
        if (tile_seen<S::queries>(wg.v, wg.t.i, wg.j)) masked_tile(sum, wg, two_parts);
        ring_release(wg.sm.ring, wg.count++);
        if (two_parts) ring_release(wg.sm.ring, wg.count++);
        advance<S::queries>(wg.t, wg.block);
    }
}

/* ------------------------------------------------------------------ the consumers */

template <class S, bool STAYS> struct run_consumers {
    typedef S shape;
    static constexpr bool stays = STAYS;

    /* Block number block_count of warpgroup `group`, from stage number `count` on. */
    static __device__ __forceinline__ void consume_block(key_pass_shared<S> &sm, const loam_problem &p,
                                                         const loam_args &a, const key_task<S> &task,
                                                         bool by_max, unsigned group, unsigned block_count,
                                                         unsigned &count)
    {
        constexpr bool held = S::keys_held && S::values_held;
        ring_wait(sm.key_ring, block_count);
        key_runner<S> wg = { key_consumer_of(sm, p, task, by_max, group, count), {}, {} };
        key_gradients<S> sum;
        clear_sums<S::dim>(sum.dk);
        clear_sums<S::dim>(sum.dv);
        wg.keys.load(sm.keys[group]);
        wg.values.load(sm.values[group]);
        if constexpr (held && STAYS) ring_release(sm.key_ring, block_count);
        consume_tiles(sum, wg, a);
        if constexpr (!held && STAYS) ring_release(sm.key_ring, block_count);
        count = wg.count;
        put_dk(sum.dk, p, a, wg);
        put_dv(sum.dv, p, a, wg);
        if constexpr (S::decayed) put_last_decay_sums(wg, (int)(p.heads_q / p.heads_kv), a);
    }
};

/* ------------------------------------------------------------------ the launches */

template <class T, int DIM, int DIRECTIONS>
static loam_status launch_staying(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  void *memory, loam_error *error)
{
    if (p->decay)
        return launch_keys<run_consumers<key_shape<T, DIM, DIRECTIONS, true>, false>>(p, a, rows, memory,
                                                                                      error);
    typedef key_shape<T, DIM, DIRECTIONS, false> S;
    bool stay = false;
    TRY(blocks_stay(&stay, p, p->len_kv > p->len_q ? p->len_kv : p->len_q, STAY_TOKENS_OF_MANY,
                    key_blocks<S>(p), error));
    return stay ? launch_keys<run_consumers<S, true>>(p, a, rows, memory, error)
                : launch_keys<run_consumers<S, false>>(p, a, rows, memory, error);
}

template <class T, int DIM>
static loam_status launch_directions(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                     void *memory, loam_error *error)
{
    if (p->mechanism == LOAM_SOFTMAX) return launch_staying<T, DIM, NO_DIRECTION>(p, a, rows, memory, error);
    if constexpr (!is_half<T>) {
        if (p->mechanism == LOAM_LLA) return launch_staying<T, DIM, SOLVED_PROBE>(p, a, rows, memory, error);
    }
    return launch_staying<T, DIM, GIVEN_PROBE>(p, a, rows, memory, error);
}

template <class T>
static loam_status launch_type(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                               void *memory, loam_error *error)
{
    const int64_t dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    return dim <= 64 ? launch_directions<T, 64>(p, a, rows, memory, error)
                     : launch_directions<T, 128>(p, a, rows, memory, error);
}

#endif
