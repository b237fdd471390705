/* SPDX-License-Identifier: MIT
 *
 * The pass over keys (backward_key.cu) for tiles of more than 128 channels: dk and dv of 64 keys, each of
 * which takes half of the registers of a thread of its own warpgroup. The first has p and 1 - u of all
 * pairs, and dv; the other gets them through shared memory, and has E, ds and dk. So no product is computed
 * twice. Thread t of one has the same pairs as thread t of the other. Both issue the products of the next
 * tile before the sums of this one. */
#include "src/local/hopper/backward_key_exchange.cuh"

/* ------------------------------------------------------------------ the two halves of a tile */

/* The weights of a tile, and dv. */
template <class S> struct weight_half {
    key_scores<S::blocks> pairs;
    weights_operand<1, S::steps, typename S::type> w;
    float sum[S::dim / TILE_SIDE][8][4];

    __device__ __forceinline__ void issue_scores(const key_consumer<S> &wg)
    {
        wgmma_fence();
        more_rows<S::dim>(pairs.s, wg.sm.keys[0], wg.tile(TILE_Q), false);
        if constexpr (S::probed) more_rows<S::dim>(pairs.u, wg.sm.keys[0], wg.tile(TILE_RHO), false);
        wgmma_commit();
    }
    __device__ __forceinline__ void finish_scores(key_consumer<S> &wg, unsigned turn)
    {
        wgmma_results(pairs.s);
        key_weights(pairs.s, terms_of(wg, TERM_LSE), wg);
        if constexpr (S::probed) {
            wgmma_results(pairs.u);
            centre_probe<1>(pairs.u, terms_of(wg, TERM_UNIT), wg);
        }
        if (!tile_whole<S::queries>(wg.v, wg.t.i, wg.j)) {
            mask_pairs(pairs.s, wg);
            if constexpr (S::probed) mask_pairs(pairs.u, wg);
        }
        exchange_begin(wg.sm, turn);
        give_pairs(wg.sm, 0, pairs.s);
        if constexpr (S::probed) give_pairs(wg.sm, S::exchanged - 1, pairs.u);
        exchange_given(wg.sm);
    }
    __device__ __forceinline__ void pack() { pack_effective_weights<S>(w, pairs); }
    __device__ __forceinline__ void issue_sums(const key_consumer<S> &wg, unsigned stage)
    {
        more_weights<S::dim>(sum, w.part[0], wg.sm.stage[stage][TILE_GRAD_O]);
        wgmma_commit();
    }
};

/* The gradients of the scores of a tile, and dk. */
template <class S> struct score_half {
    key_scores<S::blocks> pairs;
    weights_operand<1, S::steps, typename S::type> ds, error;
    float sum[S::dim / TILE_SIDE][8][4];

    __device__ __forceinline__ void issue_scores(const key_consumer<S> &wg)
    {
        wgmma_fence();
        more_rows<S::dim>(pairs.e, wg.sm.values[0], wg.tile(TILE_GRAD_O), false);
        wgmma_commit();
    }
    __device__ __forceinline__ void finish_scores(key_consumer<S> &wg, unsigned turn)
    {
        wgmma_results(pairs.e);
        centre_error(pairs.e, terms_of(wg, TERM_CENTRE), wg);
        if (!tile_whole<S::queries>(wg.v, wg.t.i, wg.j)) mask_pairs(pairs.e, wg);
        exchange_wait(wg.sm, turn);
        take_pairs(wg.sm, 0, pairs.s);
        if constexpr (S::probed) take_pairs(wg.sm, S::exchanged - 1, pairs.u);
        exchange_taken(wg.sm);
        score_gradient(pairs, wg);
        add_decay_sums(wg, pairs.s);
    }
    __device__ __forceinline__ void pack()
    {
        split_weights(ds, pairs.s);
        if constexpr (S::probed) split_weights(error, pairs.e);
    }
    __device__ __forceinline__ void issue_sums(const key_consumer<S> &wg, unsigned stage)
    {
        more_weights<S::dim>(sum, ds.part[0], wg.sm.stage[stage][TILE_Q]);
        if constexpr (S::probed) more_weights<S::dim>(sum, error.part[0], wg.sm.stage[stage][TILE_RHO]);
        wgmma_commit();
    }
};

/* ------------------------------------------------------------------ the consumers */

/* Waits for the tile at wg.t. */
template <class S> static __device__ __forceinline__ void begin_tile(key_consumer<S> &wg, const loam_args &a)
{
    if constexpr (S::decayed) decay_of_head(wg, a);
    wait_stage(wg);
    if (wg.v.packed && wg.t.i + S::queries > wg.v.nq)
        clear_tail_consumers(wg, wg.sm.stage[wg.count % S::stages][0], S::tiles);
}

/* All tiles, at least one. */
template <class S, class HALF>
static __device__ __forceinline__ void consume_half(HALF &part, key_consumer<S> &wg, const loam_args &a)
{
    unsigned turn = 0;
    begin_tile(wg, a);
    part.issue_scores(wg);
    wgmma_wait<0>();
    part.finish_scores(wg, turn);
    part.pack();
#pragma unroll 1
    for (;;) {
        const unsigned used = wg.count++, stage = wg.stage;
        advance<S::queries>(wg.t, wg.block);
        if (wg.t.left == 0) {
            wgmma_fence();
            part.issue_sums(wg, stage);
            wgmma_wait<0>();
            wgmma_results(part.sum);
            ring_release(wg.sm.ring, used);
            return;
        }
        begin_tile(wg, a);
        part.issue_scores(wg);
        part.issue_sums(wg, stage);
        wgmma_wait<1>();
        part.finish_scores(wg, ++turn);
        wgmma_wait<0>();
        wgmma_results(part.sum);
        ring_release(wg.sm.ring, used);
        part.pack();
    }
}

template <class S> struct half_consumers {
    typedef S shape;
    static constexpr bool stays = false;

    /* The block, from stage number `count` on: the consumer is part `part` of two. */
    static __device__ __forceinline__ void consume_block(key_pass_shared<S> &sm, const loam_problem &p,
                                                         const loam_args &a, const key_task<S> &task, bool,
                                                         unsigned part, unsigned block_count, unsigned &count)
    {
        key_consumer<S> wg = key_consumer_of(sm, p, task, false, 0, count);
        ring_wait(sm.key_ring, block_count);
        if (part == 0) {
            weight_half<S> weights;
            clear_sums<S::dim>(weights.sum);
            if (wg.t.left > 0) consume_half(weights, wg, a);
            put_dv(weights.sum, p, a, wg);
        } else {
            score_half<S> scores;
            clear_sums<S::dim>(scores.sum);
            if (wg.t.left > 0) consume_half(scores, wg, a);
            put_dk(scores.sum, p, a, wg);
            if constexpr (S::decayed) put_last_decay_sums(wg, (int)(p.heads_q / p.heads_kv), a);
        }
        count = wg.count;
    }
};

/* ------------------------------------------------------------------ the launches */

template <class T, int DIM, int DIRECTIONS>
static loam_status launch_decayed(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  loam_error *error)
{
    return p->decay
               ? launch_keys<half_consumers<key_shape<T, DIM, DIRECTIONS, true>>>(p, a, rows, NULL, error)
               : launch_keys<half_consumers<key_shape<T, DIM, DIRECTIONS, false>>>(p, a, rows, NULL, error);
}

template <class T>
static loam_status launch_type(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                               loam_error *error)
{
    if (p->mechanism == LOAM_PARALLAX) return launch_decayed<T, 256, GIVEN_PROBE>(p, a, rows, error);
    return p->dim_qk <= 192 && p->dim_v <= 192 ? launch_decayed<T, 192, NO_DIRECTION>(p, a, rows, error)
                                               : launch_decayed<T, 256, NO_DIRECTION>(p, a, rows, error);
}

loam_status local_keys_shared_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                     loam_error *error)
{
    return p->dtype == LOAM_F16 ? launch_type<__half>(p, a, rows, error)
                                : launch_type<__nv_bfloat16>(p, a, rows, error);
}
