/* SPDX-License-Identifier: MIT
 *
 * The pass over keys of the backward of Local Linear Attention on Hopper, for bfloat16 and more than 128
 * channels. As in backward_key_shared.cu 64 keys are shared by two warpgroups: the first has p, 1 - u and dv,
 * the other E, ds and dk. Shared memory has two stages of 32 queries with q, do, rho and y, or one where rho
 * and y have two parts. So that the next stage is copied while a tile is computed, its products do not wait
 * for those of the next: what keeps the tensor cores busy while one warpgroup computes weights is the other,
 * which may be a tile ahead.
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

/* What was issued has ended. */
template <class S> static __device__ __forceinline__ void finish_sum(key_sum<S> &sum)
{
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(sum.x);
}

/* The weights of tile number `turn`, for the other warpgroup too, and dv. */
struct weight_half {
    template <int PARTS, class S>
    static __device__ __forceinline__ void add_tile(key_sum<S> &sum, key_consumer<S> &wg, unsigned turn)
    {
        const typename S::type *const keys = wg.sm.keys[0];
        key_scores<S::blocks> pairs;
        pair_weights<S, PARTS> w;
        wgmma_fence();
        more_rows<S::dim>(pairs.s, keys, wg.tile(TILE_Q), false);
        wgmma_commit();
        if constexpr (PARTS == 2) more_rows<S::dim>(pairs.u, keys, wg.lo_tile(TILE_RHO), false);
        more_rows<S::dim>(pairs.u, keys, wg.tile(TILE_RHO), PARTS == 2);
        wgmma_commit();
        wgmma_wait<1>();
        wgmma_results(pairs.s);
        key_weights(pairs.s, terms_of(wg, TERM_LSE), wg);
        wgmma_wait<0>();
        wgmma_results(pairs.u);
        centre_probe<PARTS>(pairs.u, terms_of(wg, TERM_UNIT), wg);
        if (!tile_whole<S::queries>(wg.v, wg.t.i, wg.j)) {
            mask_pairs(pairs.s, wg);
            mask_pairs(pairs.u, wg);
        }
        exchange_begin(wg.sm, turn);
        give_pairs(wg.sm, 0, pairs.s);
        give_pairs(wg.sm, 1, pairs.u);
        exchange_given(wg.sm);
        pack_effective_weights<S>(w, pairs);
        wgmma_fence();
        issue_sum<S>(sum, w, wg.tile(TILE_GRAD_O));
        finish_sum(sum);
    }
};

/* The gradients of the scores of tile number `turn`, and dk. */
struct score_half {
    template <int PARTS, class S>
    static __device__ __forceinline__ void add_tile(key_sum<S> &sum, key_consumer<S> &wg, unsigned turn)
    {
        const typename S::type *const keys = wg.sm.keys[0];
        key_scores<S::blocks> pairs;
        pair_weights<S, PARTS> ds, error, effective;
        wgmma_fence();
        more_rows<S::dim>(pairs.e, wg.sm.values[0], wg.tile(TILE_GRAD_O), false);
        if constexpr (PARTS == 2) more_rows<S::dim>(pairs.e, keys, wg.lo_tile(TILE_Y), true);
        more_rows<S::dim>(pairs.e, keys, wg.tile(TILE_Y), true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_results(pairs.e);
        centre_error(pairs.e, terms_of(wg, TERM_CENTRE), wg);
        if (!tile_whole<S::queries>(wg.v, wg.t.i, wg.j)) mask_pairs(pairs.e, wg);
        exchange_wait(wg.sm, turn);
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
        issue_sum<S>(sum, effective, wg.tile(TILE_Y), PARTS == 2 ? wg.lo_tile(TILE_Y) : NULL);
        issue_sum<S>(sum, ds, wg.tile(TILE_Q));
        issue_sum<S>(sum, error, wg.tile(TILE_RHO), PARTS == 2 ? wg.lo_tile(TILE_RHO) : NULL);
        finish_sum(sum);
    }
};

/* Waits for the lo parts of the tile at wg.t, which are the next stage. */
template <class S> static __device__ __forceinline__ void begin_lo_parts(key_consumer<S> &wg)
{
    wg.count++;
    ring_wait(wg.sm.ring, wg.count);
    if (wg.v.packed && wg.t.i + S::queries > wg.v.nq) clear_tail_consumers(wg);
    wg.count--;
}

/* All tiles. */
template <class HALF, class S>
static __device__ __forceinline__ void consume_tiles(key_sum<S> &sum, key_consumer<S> &wg, const loam_args &a)
{
    clear_sums<S::dim>(sum.x);
#pragma unroll 1
    for (unsigned turn = 0; wg.t.left > 0; turn++) {
        begin_tile(wg, a);
        const bool two_parts = wg.sm.two_parts[wg.stage];
        if (two_parts) {
            begin_lo_parts(wg);
            HALF::template add_tile<2>(sum, wg, turn);
            ring_release(wg.sm.ring, wg.count++);
        } else {
            HALF::template add_tile<1>(sum, wg, turn);
        }
        ring_release(wg.sm.ring, wg.count++);
        advance<S::queries>(wg.t, wg.block);
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

template <bool DECAYED> using wide_shape = key_shape<__nv_bfloat16, 256, SOLVED_PROBE, DECAYED>;

loam_status local_keys_solved_wide_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                          void *memory, loam_error *error)
{
    return p->decay ? launch_keys<solved_consumers<wide_shape<true>>>(p, a, rows, memory, error)
                    : launch_keys<solved_consumers<wide_shape<false>>>(p, a, rows, memory, error);
}
