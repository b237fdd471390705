/* SPDX-License-Identifier: MIT
 *
 * The pass over keys of the backward of Local Linear Attention on Hopper, for more than 128 channels. As in
 * backward_key_shared.cu 64 keys are shared by two warpgroups: the first has p, 1 - u and dv, the other E, ds
 * and dk. Shared memory has two stages of 32 queries with q and do, and two with rho and y, both of which a
 * tile in two parts takes. So that stages are copied while a tile is computed, products do not wait for those
 * of the next tile: what keeps the tensor cores busy while one warpgroup computes weights is the other, which
 * may be a tile ahead.
 */
#include "src/local/hopper/backward_key_exchange.cuh"

template <class S, int PARTS> using pair_weights = weights_operand<PARTS, S::steps, typename S::type>;
template <class S> struct key_sum {
    float x[S::dim / TILE_SIDE][8][4];
};

/* Issues sum += weights tile. In two parts: hi hi + lo hi, and hi lo where the tile has a lo part, `rest`. */
template <class S, int PARTS>
static __device__ __forceinline__ void issue_sum(key_sum<S> &sum, const pair_weights<S, PARTS> &w,
                                                 const typename S::type *tile,
                                                 const typename S::type *rest = NULL)
{
    if constexpr (PARTS == 2) {
        if (rest) more_weights<S::dim>(sum.x, w.part[0], rest);
        more_weights<S::dim>(sum.x, w.part[1], tile);
    }
    more_weights<S::dim>(sum.x, w.part[0], tile);
}

/* The stages of rho and y of a tile: number `count` of their ring, and the next one where they have two
 * parts. */
template <class S, int PARTS> struct direction_stages {
    key_pass_shared<S> &sm;
    unsigned count;

    __device__ __forceinline__ const typename S::type *tile(int which, int part = 0) const
    {
        return sm.stage[(count + part) % S::stages][which];
    }
    __device__ __forceinline__ void wait() const
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            ring_wait(sm.direction_ring, count + part);
    }
    __device__ __forceinline__ void release() const
    {
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            ring_release(sm.direction_ring, count + part);
    }
    /* x += keys times the direction, which is the first product of x where `add` is false. */
    __device__ __forceinline__ void multiply(float (&x)[S::blocks][4], int which, bool add) const
    {
        if constexpr (PARTS == 2) more_rows<S::dim>(x, sm.keys[0], tile(which, 1), add);
        more_rows<S::dim>(x, sm.keys[0], tile(which), add || PARTS == 2);
    }
    __device__ __forceinline__ void add(key_sum<S> &sum, const pair_weights<S, PARTS> &w, int which) const
    {
        issue_sum<S>(sum, w, tile(which), PARTS == 2 ? tile(which, 1) : NULL);
    }
};

/* The weights of a tile, for the other warpgroup too, and dv. */
struct weight_half {
    template <class S, int PARTS>
    static __device__ __forceinline__ void add_tile(key_sum<S> &sum, key_consumer<S> &wg,
                                                    const direction_stages<S, PARTS> &directions)
    {
        key_scores<S::blocks> pairs;
        pair_weights<S, PARTS> w;
        wgmma_fence();
        more_rows<S::dim>(pairs.s, wg.sm.keys[0], wg.tile(TILE_Q), false);
        wgmma_commit();
        directions.wait();
        wgmma_fence();
        directions.multiply(pairs.u, TILE_RHO, false);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(pairs.s);
        key_weights(pairs.s, terms_of(wg, TERM_LSE), wg);
        wgmma_wait<0>();
        wgmma_results(pairs.u);
        directions.release();
        centre_probe<PARTS>(pairs.u, terms_of(wg, TERM_UNIT), wg);
        if (!tile_whole<S::queries>(wg.v, wg.t.i, wg.j)) {
            mask_pairs(pairs.s, wg);
            mask_pairs(pairs.u, wg);
        }
        exchange_begin(wg.sm, wg.count);
        give_pairs(wg.sm, 0, pairs.s);
        give_pairs(wg.sm, 1, pairs.u);
        exchange_given(wg.sm);
        pack_effective_weights<S>(w, pairs);
        wgmma_fence();
        issue_sum<S>(sum, w, wg.tile(TILE_GRAD_O));
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(sum.x);
    }
};

/* The gradients of the scores of a tile, and dk. */
struct score_half {
    template <class S, int PARTS>
    static __device__ __forceinline__ void add_tile(key_sum<S> &sum, key_consumer<S> &wg,
                                                    const direction_stages<S, PARTS> &directions)
    {
        key_scores<S::blocks> pairs;
        pair_weights<S, PARTS> ds, error, effective;
        wgmma_fence();
        more_rows<S::dim>(pairs.e, wg.sm.values[0], wg.tile(TILE_GRAD_O), false);
        directions.wait();
        wgmma_fence();
        directions.multiply(pairs.e, TILE_Y, true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(pairs.e);
        centre_error(pairs.e, terms_of(wg, TERM_CENTRE), wg);
        if (!tile_whole<S::queries>(wg.v, wg.t.i, wg.j)) mask_pairs(pairs.e, wg);
        exchange_wait(wg.sm, wg.count);
        take_pairs(wg.sm, 0, pairs.s);
        take_pairs(wg.sm, 1, pairs.u);
        exchange_taken(wg.sm);
        pack_effective_weights<S>(effective, pairs);
        score_gradient(pairs, wg);
        if (wg.by_max) add_peaks(pairs.s, wg);
        add_decay_sums(wg, pairs.s);
        split_weights(ds, pairs.s);
        split_weights(error, pairs.e);
        wgmma_fence();
        directions.add(sum, effective, TILE_Y);
        directions.add(sum, error, TILE_RHO);
        wgmma_commit();
        issue_sum<S>(sum, ds, wg.tile(TILE_Q));
        wgmma_commit();
        wgmma_wait<1>();
        directions.release();
        wgmma_wait<0>();
        wgmma_results(sum.x);
    }
};

/* Rows of a tile of packed sequences, beyond the one that it belongs to. */
template <class S, int PARTS>
static __device__ __forceinline__ void clear_tails(const key_consumer<S> &wg,
                                                   const direction_stages<S, PARTS> &directions)
{
    if (!wg.v.packed || wg.t.i + S::queries <= wg.v.nq) return;
    directions.wait();
    clear_tail_consumers(wg, wg.sm.stage[wg.stage][TILE_Q], TILE_RHO);
    for (int part = 0; part < PARTS; part++)
        clear_tail_consumers(wg, wg.sm.stage[(directions.count + part) % S::stages][TILE_RHO],
                             S::tiles - TILE_RHO);
}

/* The tile at wg.t, whose directions begin at stage number `count` of their ring. */
template <class HALF, int PARTS, class S>
static __device__ __forceinline__ void consume_tile(key_sum<S> &sum, key_consumer<S> &wg, unsigned &count)
{
    const direction_stages<S, PARTS> directions = { wg.sm, warp_uniform(count) };
    clear_tails(wg, directions);
    HALF::add_tile(sum, wg, directions);
    count += PARTS;
}

/* All tiles. */
template <class HALF, class S>
static __device__ __forceinline__ void consume_tiles(key_sum<S> &sum, key_consumer<S> &wg, const loam_args &a)
{
    unsigned directions = 0;
    clear_sums<S::dim>(sum.x);
#pragma unroll 1
    for (; wg.t.left > 0; advance<S::queries>(wg.t, wg.block)) {
        if constexpr (S::decayed) decay_of_head(wg, a);
        wait_stage(wg);
        if (wg.sm.two_parts[wg.stage])
            consume_tile<HALF, 2>(sum, wg, directions);
        else
            consume_tile<HALF, 1>(sum, wg, directions);
        ring_release(wg.sm.ring, wg.count++);
    }
}

template <class S> struct solved_consumers {
    typedef S shape;
    static constexpr bool stays = false;

    /* The block, from stage number `count` on: the consumer is part `part` of two. */
    static __device__ __forceinline__ void consume_block(key_pass_shared<S> &sm, const loam_problem &p,
                                                         const loam_args &a, const key_task<S> &task,
                                                         bool by_max, unsigned part, unsigned block_count,
                                                         unsigned &count)
    {
        key_consumer<S> wg = key_consumer_of(sm, p, task, by_max, 0, count);
        key_sum<S> sum;
        ring_wait(sm.key_ring, block_count);
        if (part == 0) {
            consume_tiles<weight_half>(sum, wg, a);
            put_dv(sum.x, p, a, wg);
        } else {
            consume_tiles<score_half>(sum, wg, a);
            put_dk(sum.x, p, a, wg);
            if constexpr (S::decayed) put_last_decay_sums(wg, (int)(p.heads_q / p.heads_kv), a);
        }
        count = wg.count;
    }
};

/* ------------------------------------------------------------------ the launches */

template <class T, bool DECAYED>
using wide_consumers = solved_consumers<key_shape<T, 256, SOLVED_PROBE, DECAYED>>;

template <class T>
static loam_status launch_type(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                               void *memory, loam_error *error)
{
    return p->decay ? launch_keys<wide_consumers<T, true>>(p, a, rows, memory, error)
                    : launch_keys<wide_consumers<T, false>>(p, a, rows, memory, error);
}

loam_status local_keys_solved_wide_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                          void *memory, loam_error *error)
{
    return p->dtype == LOAM_F16 ? launch_type<__half>(p, a, rows, memory, error)
                                : launch_type<__nv_bfloat16>(p, a, rows, memory, error);
}
