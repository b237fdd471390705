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
#include "src/gpu/blocks.cuh"
#include "src/local/hopper/backward_key_stream.cuh"
#include "src/local/hopper/channels.cuh"
#include "src/local/hopper/maps.cuh"

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

/* The thread's two keys where scores decay: their G in the current head, and the sums of ds. */
template <bool DECAYED> struct key_decay {
    int head; /* current head, within the group; -1: none yet */
    local_decay_pair own[2];
    float sum[2];
};
template <> struct key_decay<false> {
};

/* The state of a consumer warpgroup. */
template <class S> struct key_consumer {
    typedef typename S::type T;
    key_pass_shared<S> &sm;
    const key_block &block;
    const key_view &v;
    tile_walk t;
    int one_part_rows;            /* count_one_part_rows */
    unsigned group, stage, count; /* stage: of the current tile; count: stages used so far */
    int j, at[2];                 /* the warpgroup's first key, and the thread's two */
    float scale, scale2;          /* scale2: to base 2 */
    bool by_max;
    row_operand<T, S::dim, S::keys_held> keys;
    row_operand<T, S::dim, S::values_held> values;
    key_decay<S::decayed> decay;
    key_folds fold;

    __device__ __forceinline__ const T *tile(int which) const { return sm.stage[stage][which]; }
    __device__ __forceinline__ const T *lo_tile(int which) const
    {
        return sm.stage[(stage + 1) % S::stages][which];
    }
};

/* A term of the rows that are the thread's columns: 2 (lane % 4) and the next one of each fragment. */
template <int BLOCKS> struct column_terms {
    float2 x[BLOCKS];
    __device__ __forceinline__ float at(int n, int e) const { return e % 2 ? x[n].y : x[n].x; }
};

template <int BLOCKS> static __device__ __forceinline__ column_terms<BLOCKS> columns_of(const float *terms)
{
    column_terms<BLOCKS> out;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++)
        out.x[n] = *(const float2 *)(terms + 8 * n + threadIdx.x % 4 * 2);
    return out;
}

template <class S> static __device__ __forceinline__ auto terms_of(const key_consumer<S> &wg, int which)
{
    return columns_of<S::blocks>(wg.sm.terms[wg.stage][which]);
}

template <class S> static __device__ __forceinline__ void wait_stage(key_consumer<S> &wg)
{
    ring_wait(wg.sm.ring, wg.count);
    wg.group = warp_uniform(wg.group), wg.stage = warp_uniform(wg.count % S::stages);
}

/* s: k . q, then p; u: k . rho, then 1 - u; e: v . do + k . y, then E. */
template <int BLOCKS> struct key_scores {
    float s[BLOCKS][4], u[BLOCKS][4], e[BLOCKS][4];
};

template <class S> struct key_gradients {
    float dk[S::dim / TILE_SIDE][8][4], dv[S::dim / TILE_SIDE][8][4];
};

/* Issues three groups of products (two where there is no direction): k . q, k . rho, v . do + k . y. */
template <int PARTS, class S, int BLOCKS>
static __device__ __forceinline__ void issue_scores(key_scores<BLOCKS> &pairs, const key_consumer<S> &wg)
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

/* The products s = k . q become p, raised by key_raise. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void key_weights(float (&s)[BLOCKS][4], const column_terms<BLOCKS> &lse,
                                                   const key_consumer<S> &wg)
{
    constexpr float most = key_raise<typename S::type>;
    const float scale2 = wg.scale2;
    column_terms<BLOCKS> hi, lo;
    if constexpr (S::decayed) {
        hi = columns_of<BLOCKS>(wg.sm.decay[wg.stage][0]);
        lo = columns_of<BLOCKS>(wg.sm.decay[wg.stage][1]);
    }
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float score = s[n][e] * scale2;
            if constexpr (S::decayed) {
                const local_decay_pair &key = wg.decay.own[e / 2];
                score = fmaf(s[n][e], scale2, (hi.at(n, e) - key.hi) + (lo.at(n, e) - key.lo));
            }
            s[n][e] = exp2_fast(fminf(score - lse.at(n, e), most));
        }
    }
}

/* The products k . rho become 1 - u. */
template <int BLOCKS>
static __device__ __forceinline__ void centre_probe(float (&u)[BLOCKS][4], const column_terms<BLOCKS> &unit)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            u[n][e] = unit.at(n, e) - u[n][e];
    }
}

/* The products v . do + k . y become E, with the fold of dk. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void centre_error(float (&x)[BLOCKS][4], const column_terms<BLOCKS> &centre,
                                                    const key_consumer<S> &wg)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if constexpr (S::folded)
                x[n][e] = fmaf(x[n][e], wg.fold.dk, -centre.at(n, e));
            else
                x[n][e] -= centre.at(n, e);
    }
}

/* Pairs that are not seen become 0 in all three arrays, whatever memory holds there. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void mask_pairs(key_scores<BLOCKS> &pairs, const key_consumer<S> &wg)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = wg.t.i + column_of(n, e), j = wg.at[e / 2];
            const bool seen = i < wg.v.nq && j < wg.v.nk && j <= i + wg.v.up && j >= i + wg.v.low;
            pairs.s[n][e] = seen ? pairs.s[n][e] : 0;
            pairs.u[n][e] = seen && S::probed ? pairs.u[n][e] : 0;
            pairs.e[n][e] = seen ? pairs.e[n][e] : 0;
        }
    }
}

/* p (1 - u) as operand: the weights of do in dv, and of y in dk. */
template <class S, int PARTS, int STEPS, int BLOCKS>
static __device__ __forceinline__ void pack_effective_weights(
    weights_operand<PARTS, STEPS, typename S::type> &effective, const key_scores<BLOCKS> &pairs,
    const key_consumer<S> &wg)
{
    float w[BLOCKS][4];
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            w[n][e] = S::probed ? pairs.s[n][e] * pairs.u[n][e] : pairs.s[n][e];
            if constexpr (S::folded && S::probed) w[n][e] *= wg.fold.dv;
        }
    }
    split_weights(effective, w);
}

/* s becomes scale ds (without scale where there is no direction), e becomes -p E. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void score_gradient(key_scores<BLOCKS> &pairs, const key_consumer<S> &wg)
{
    column_terms<BLOCKS> own;
    if (S::probed) own = terms_of(wg, TERM_E);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float p = pairs.s[n][e], error = pairs.e[n][e];
            pairs.s[n][e] = S::probed ? p * wg.scale * (pairs.u[n][e] * error + own.at(n, e)) : p * error;
            pairs.e[n][e] = -p * error;
        }
    }
}

/* Where the unit of the ridge is the largest p: adds scale e to scale ds of the key that has it. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void add_peaks(float (&ds)[BLOCKS][4], const key_consumer<S> &wg)
{
    const column_terms<BLOCKS> peak = terms_of(wg, TERM_PEAK), own = terms_of(wg, TERM_PEAK_E);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            ds[n][e] += wg.at[e / 2] == __float_as_int(peak.at(n, e)) ? wg.scale * own.at(n, e) : 0;
    }
}

/* Where scores decay: adds ds to the sums of the keys. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void add_decay_sums(key_consumer<S> &wg, const float (&ds)[BLOCKS][4])
{
    if constexpr (S::decayed) {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                wg.decay.sum[e / 2] += ds[n][e];
        }
    }
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

/* Rows of a tile beyond the sequence become 0: the next packed sequence lies there, and 0 times NaN is not 0.
 * Both consumers call it. */
template <class S> static __device__ __forceinline__ void clear_tail_consumers(const key_consumer<S> &wg)
{
    const int real = wg.v.nq - wg.t.i, words = (S::queries - real) * (TILE_SIDE / 2);
    uint32_t *const stage = (uint32_t *)wg.sm.stage[wg.count % S::stages][0];
    for (int n = 0; n < S::tiles * (S::dim / TILE_SIDE); n++)
        for (int e = threadIdx.x; e < words; e += KEY_GROUPS * 128)
            stage[(n * S::queries + real) * (TILE_SIDE / 2) + e] = 0;
    fence_async_proxy();
    asm volatile("bar.sync 1, %0;" ::"n"(KEY_GROUPS * 128) : "memory");
}

/* One tile, with masks and without pipelining. */
template <int PARTS, class S>
static __device__ __forceinline__ void masked_tile(key_gradients<S> &sum, key_consumer<S> &wg)
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
        centre_probe(pairs.u, terms_of(wg, TERM_UNIT));
    }
    centre_error(pairs.e, terms_of(wg, TERM_CENTRE), wg);
    mask_pairs(pairs, wg);
    pack_effective_weights(w, pairs, wg);
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
template <class S> static __device__ __forceinline__ int count_one_part_rows(const key_consumer<S> &wg)
{
    const int i = wg.t.i + (int)(threadIdx.x % 32) * ROWS;
    const bool two_parts = i < wg.v.nq && needs_two_parts(wg.v, wg.t.head, i);
    const unsigned any = __ballot_sync(0xffffffffu, two_parts);
    return warp_uniform((any ? __ffs((int)any) - 1 : 32) * ROWS - (any % 2 ? 0 : wg.t.i % ROWS));
}

/* Tiles of the current head, from the current one on, that make a run: in one part, and seen whole. */
template <class S> static __device__ __forceinline__ int run_length(const key_consumer<S> &wg)
{
    if ((S::solved && (wg.by_max || wg.one_part_rows <= 0)) || !tile_whole<S::queries>(wg.v, wg.t.i, wg.j))
        return 0;
    /* The largest first row of a tile in the run: within the sequence, with key j in the window of the last
     * row of the tile, and with one part. */
    int last = min(wg.v.nq - S::queries, wg.j - (S::queries - 1) - wg.v.low);
    if (S::solved) last = min(last, wg.t.i + wg.one_part_rows - S::queries);
    return (last - wg.t.i) / S::queries + 1;
}

/* A run of `length` tiles, at least one, pipelined. */
template <class S>
static __device__ __forceinline__ void pipelined_tiles(key_gradients<S> &sum, key_consumer<S> &wg, int length)
{
    constexpr int groups = S::probed ? 3 : 2;
    key_scores<S::blocks> pairs;
    advance<S::queries>(wg.t, wg.block, length);
    wait_stage(wg);
    issue_scores<1>(pairs, wg);
    for (;;) {
        weights_operand<1, S::steps, typename S::type> effective, ds, error;
        wg.stage = warp_uniform(wg.stage);
        column_terms<S::blocks> term = terms_of(wg, TERM_LSE);
        wgmma_wait<groups - 1>();
        wgmma_results(pairs.s);
        key_weights(pairs.s, term, wg);
        if constexpr (S::probed) {
            term = terms_of(wg, TERM_UNIT);
            wgmma_wait<1>();
            wgmma_results(pairs.u);
            centre_probe(pairs.u, term);
        }
        pack_effective_weights(effective, pairs, wg);
        multiply_weights<S::dim>(sum.dv, effective.part[0], wg.tile(TILE_GRAD_O));
        if constexpr (S::solved) more_weights<S::dim>(sum.dk, effective.part[0], wg.tile(TILE_Y));
        wgmma_commit();
        term = terms_of(wg, TERM_CENTRE);
        wgmma_wait<1>();
        wgmma_results(pairs.e);
        centre_error(pairs.e, term, wg);
        score_gradient(pairs, wg);
        add_decay_sums(wg, pairs.s);
        split_weights(ds, pairs.s);
        if constexpr (S::probed) split_weights(error, pairs.e);
        multiply_weights<S::dim>(sum.dk, ds.part[0], wg.tile(TILE_Q));
        if constexpr (S::probed) more_weights<S::dim>(sum.dk, error.part[0], wg.tile(TILE_RHO));
        wgmma_commit();
        if constexpr (S::keys_held && S::probed) wgmma_wait<1>();
        const unsigned used = wg.count++;
        if (--length == 0) {
            wgmma_wait<0>();
            wgmma_results(sum);
            ring_release(wg.sm.ring, used);
            return;
        }
        wait_stage(wg);
        issue_scores<1>(pairs, wg);
        wgmma_wait<groups>();
        ring_release(wg.sm.ring, used);
    }
}

/* Writes the keys' sums of ds over one head, from which the gradient of the decay is made. */
template <class S>
static __device__ __forceinline__ void put_decay_sums(const key_consumer<S> &wg, int head, const loam_args &a)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float sum = quad_sum(wg.decay.sum[row]) * (S::probed ? 1 / wg.scale : 1) *
                          unraised<S>(wg.fold.dk);
        if (a.grad_log_decay.data && threadIdx.x % 4 == 0 && wg.at[row] - wg.block.j0 < wg.block.stored) {
            ((float *)a.grad_log_decay.data)[LOCAL_AT(
                a.grad_log_decay, wg.block.s.b, wg.block.first_head + head, wg.block.s.k0 + wg.at[row])] =
                sum;
        }
    }
}

/* The same for the last head. Where no query sees the keys, their sums are 0 for all heads. */
template <class S>
static __device__ __forceinline__ void put_last_decay_sums(key_consumer<S> &wg, int heads, const loam_args &a)
{
    if (wg.decay.head >= 0) {
        put_decay_sums(wg, wg.decay.head, a);
        return;
    }
    wg.decay.sum[0] = wg.decay.sum[1] = 0;
    for (int head = 0; head < heads; head++)
        put_decay_sums(wg, head, a);
}

/* Before each tile: where its head is new, writes the sums of the head before and loads G for the new one. */
template <class S>
static __device__ __forceinline__ void decay_of_head(key_consumer<S> &wg, const loam_args &a)
{
    if (wg.t.head == wg.decay.head) return;
    if (wg.decay.head >= 0) put_decay_sums(wg, wg.decay.head, a);
    wg.decay.head = wg.t.head;
    const local_decay_pair *const sums = decay_sums(a, wg.block.s, wg.block.first_head + wg.t.head);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        wg.decay.own[row] = row_decay(sums, min(wg.at[row] + 1, wg.v.nk));
        wg.decay.sum[row] = 0;
    }
}

/* A consumer warpgroup: all tiles of queries, in runs or one at a time. */
template <class S>
static __device__ __forceinline__ void consume_tiles(key_gradients<S> &sum, key_consumer<S> &wg,
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
            clear_tail_consumers(wg);
            if (two_parts) {
                wg.count++;
                clear_tail_consumers(wg);
                wg.count--;
            }
        }
        if (tile_seen<S::queries>(wg.v, wg.t.i, wg.j)) {
            if (two_parts)
                masked_tile<S::solved ? 2 : 1>(sum, wg);
            else
                masked_tile<1>(sum, wg);
        }
        ring_release(wg.sm.ring, wg.count++);
        if (two_parts) ring_release(wg.sm.ring, wg.count++);
        advance<S::queries>(wg.t, wg.block);
    }
}

/* ------------------------------------------------------------------ the kernel */

template <class S>
static __device__ __forceinline__ void put_key_gradients(const key_gradients<S> &sum,
                                                         const key_consumer<S> &wg, const loam_problem &p,
                                                         const loam_args &a)
{
    typedef typename S::type T;
    const float dk_unit = (S::probed ? 1 : wg.scale) * unraised<S>(wg.fold.dk),
                dv_unit = unraised<S>(wg.fold.dv);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        if (wg.at[row] - wg.block.j0 >= wg.block.stored) continue;
        const int64_t token = wg.block.s.k0 + wg.at[row];
        T *const to_k = (T *)a.grad_k.data + LOCAL_AT(a.grad_k, wg.block.s.b, wg.block.h_kv, token),
                 *const to_v = (T *)a.grad_v.data + LOCAL_AT(a.grad_v, wg.block.s.b, wg.block.h_kv, token);
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++) {
            const float(&dk)[4] = sum.dk[n / 8][n % 8], (&dv)[4] = sum.dv[n / 8][n % 8];
            const int c = column_of(n, 0);
            if (a.grad_k.data)
                store_channels(to_k, c, (int)p.dim_qk, dk_unit * dk[2 * row], dk_unit * dk[2 * row + 1]);
            if (a.grad_v.data)
                store_channels(to_v, c, (int)p.dim_v, dv_unit * dv[2 * row], dv_unit * dv[2 * row + 1]);
        }
    }
}

/* The state of the first 64 rows of the sequence of block n: row_arrays.state counts such blocks from the
 * sequence's end. */
static __device__ __forceinline__ const int32_t *first_state(const loam_problem &p, const row_arrays &arrays,
                                                             const key_block &block, unsigned n)
{
    const int64_t last = (p.len_q + ROWS - 1) / ROWS - 1, sequence = n / p.heads_kv % p.batch;
    return arrays.state + (last * p.batch + sequence) * p.heads_q + block.first_head;
}

template <class S> static __device__ __forceinline__ void init_barriers(key_pass_shared<S> &sm)
{
    for (int n = 0; n < S::stages; n++) {
        barrier_init(&sm.ring.full[n], 1 + 32); /* the copies, and each lane of produce_terms */
        barrier_init(&sm.ring.empty[n], KEY_GROUPS * 4);
    }
    ring_init(sm.key_ring, KEY_GROUPS * 4);
    fence_async_proxy();
}

/* What all roles know of block n. */
template <class S> struct key_task {
    key_block block;
    key_view v;
    tile_walk t;
    key_folds fold;

    __device__ __forceinline__ key_task(const loam_problem &p, const loam_args &a, const row_arrays &arrays,
                                        unsigned n)
        : block(key_block_at<S::rows>(p, a, n, S::queries)),
          v(key_view_of(p, block.s, S::solved ? first_state(p, arrays, block, n) : NULL)),
          t{ block.first, 0, (int)(block.tiles * (p.heads_q / p.heads_kv)) },
          fold(key_folds_of<S>(p, arrays, block, n))
    {
    }
};

/* Block number block_count of a consumer warpgroup, from stage number `count` on. */
template <class S, bool STAYS>
static __device__ __forceinline__ void consume_block(key_pass_shared<S> &sm, const loam_problem &p,
                                                     const loam_args &a, const key_task<S> &task, bool by_max,
                                                     unsigned group, unsigned block_count, unsigned &count)
{
    constexpr bool held = S::keys_held && S::values_held;
    const int j = task.block.j0 + (int)group * TILE_SIDE,
              row = j + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    const float scale = (float)p.scale;
    key_consumer<S> wg = { sm,       task.block,
                           task.v,   task.t,
                           0,        group,
                           0,        count,
                           j,        { row, row + 8 },
                           scale,    (float)(p.scale * 1.4426950408889634),
                           by_max,   {},
                           {},       {},
                           task.fold };
    if constexpr (S::decayed) wg.decay.head = -1;
    key_gradients<S> sum;
    clear_sums<S::dim>(sum.dk);
    clear_sums<S::dim>(sum.dv);
    ring_wait(sm.key_ring, block_count);
    wg.keys.load(sm.keys[group]);
    wg.values.load(sm.values[group]);
    if constexpr (held && STAYS) ring_release(sm.key_ring, block_count);
    consume_tiles(sum, wg, a);
    if constexpr (!held && STAYS) ring_release(sm.key_ring, block_count);
    count = wg.count;
    put_key_gradients(sum, wg, p, a);
    if constexpr (S::decayed) put_last_decay_sums(wg, (int)(p.heads_q / p.heads_kv), a);
}

template <class S, bool STAYS>
__global__ void __launch_bounds__(KEY_THREADS, 1)
    key_kernel_hopper(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                      const row_arrays arrays, const key_directions directions, const unsigned blocks,
                      const __grid_constant__ key_maps maps)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    key_pass_shared<S> &sm = *(key_pass_shared<S> *)swizzled_memory;
    if (threadIdx.x == 0) init_barriers(sm);
    __syncthreads();
    const bool by_max = S::solved && p.ridge_unit == LOAM_RIDGE_MAX;
    const unsigned group = warp_uniform(threadIdx.x / 128), warp = warp_uniform(threadIdx.x % 128 / 32);
    constexpr unsigned term_warps = STAYS ? S::term_warps : 1;
    unsigned block_count = 0, count = 0, turn = warp - 1;
    if (group == KEY_GROUPS) {
        registers_release<24>();
        if (warp == 0 ? threadIdx.x % 32 != 0 : warp > term_warps) return;
        for_each_block<STAYS>(blocks, [&](unsigned n) {
            const key_task<S> task(p, a, arrays, n);
            if (task.block.stored <= 0) return;
            if (warp == 0)
                produce_tiles(sm, maps, task.block, task.v, task.t, block_count++, count);
            else
                produce_terms<S, term_warps>(sm, p, a, arrays, directions, task.block, task.v, by_max,
                                             task.fold.dk, task.t, turn, count);
        });
        return;
    }
    registers_acquire<240>();
    for (unsigned round = 0; has_round<STAYS>(blocks, round); round++) {
        const unsigned n = block_of_round(blocks, round);
        if (n >= blocks) continue;
        const key_task<S> task(p, a, arrays, n);
        if (task.block.stored <= 0) continue;
        consume_block<S, STAYS>(sm, p, a, task, by_max, group, block_count++, count);
    }
}

/* ------------------------------------------------------------------ the launches */

static key_directions key_directions_carve(const loam_problem *p, arena *pool)
{
    const size_t rows = p->mechanism == LOAM_LLA ? (size_t)local_rows(p) : 0,
                 numbers = size_mul(rows, (size_t)p->dim_qk);
    key_directions x;
    for (int part = 0; part < 2; part++) {
        x.rho[part] = (__nv_bfloat16 *)arena_take(pool, numbers, sizeof(__nv_bfloat16));
        x.y[part] = (__nv_bfloat16 *)arena_take(pool, numbers, sizeof(__nv_bfloat16));
    }
    x.centre = (float2 *)arena_take(pool, rows, sizeof(float2));
    return x;
}

size_t local_keys_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)key_directions_carve(p, &pool);
    return pool.used;
}

/* A view of dense rows in the order of local_row. */
static loam_const_view rows_view_of(const loam_problem *p, const void *data)
{
    const int64_t d = p->dim_qk, tokens = extents_of(p).queries;
    return loam_const_view{ data, p->heads_q * tokens * d, tokens * d, d };
}

template <class S>
static loam_status make_maps(key_maps *maps, const loam_problem *p, const loam_args *a,
                             const key_directions *directions, loam_error *error)
{
    constexpr int rows = S::queries;
    TRY(key_map_make(&maps->k, p, &a->k, p->dim_qk, TILE_SIDE, error));
    TRY(key_map_make(&maps->v, p, &a->v, p->dim_v, TILE_SIDE, error));
    TRY(query_map_make(&maps->query[TILE_Q], p, &a->q, p->dim_qk, rows, error));
    TRY(query_map_make(&maps->query[TILE_GRAD_O], p, &a->grad_o, p->dim_v, rows, error));
    if (S::probed && !S::solved)
        TRY(query_map_make(&maps->query[TILE_RHO], p, &a->probe, p->dim_qk, rows, error));
    for (int part = 0; part < 2 && S::solved; part++) {
        CUtensorMap *const to = part ? maps->lo : maps->query;
        const loam_const_view rho = rows_view_of(p, directions->rho[part]),
                              y = rows_view_of(p, directions->y[part]);
        TRY(query_map_make(to + TILE_RHO, p, &rho, p->dim_qk, rows, error));
        TRY(query_map_make(to + TILE_Y, p, &y, p->dim_qk, rows, error));
    }
    return LOAM_OK;
}

template <class S, bool STAYS>
static loam_status launch(const loam_problem *p, const loam_args *a, const row_arrays *rows, void *memory,
                          loam_error *error)
{
    const int64_t blocks = (p->len_kv + S::rows - 1) / S::rows * p->batch * p->heads_kv;
    const cudaStream_t stream = (cudaStream_t)a->stream;
    int64_t grid;
    TRY(cuda_grid_that_stays(blocks, STAYS, &grid, error));
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    arena pool = { (char *)memory, 0 };
    const key_directions directions = key_directions_carve(p, &pool);
    if constexpr (S::solved) {
        const int64_t tiles = (p->len_q + ROWS - 1) / ROWS * p->batch * p->heads_q;
        split_directions_kernel<S::dim>
            <<<(unsigned)tiles, 256, 0, stream>>>(*p, *a, saved, *rows, directions);
        TRY(cuda_launched("split_directions_kernel", error));
    }
    key_maps maps;
    TRY(make_maps<S>(&maps, p, a, &directions, error));
    constexpr size_t shared = sizeof(key_pass_shared<S>);
    TRY(cuda_allow_shared((const void *)key_kernel_hopper<S, STAYS>, shared, error));
    key_kernel_hopper<S, STAYS>
        <<<(unsigned)grid, KEY_THREADS, shared, stream>>>(*p, *a, *rows, directions, (unsigned)blocks, maps);
    return cuda_launched("key_kernel_hopper", error);
}

template <class T, int DIM, int DIRECTIONS>
static loam_status launch_staying(const loam_problem *p, const loam_args *a, const row_arrays *rows,
                                  void *memory, loam_error *error)
{
    if (p->decay) return launch<key_shape<T, DIM, DIRECTIONS, true>, false>(p, a, rows, memory, error);
    typedef key_shape<T, DIM, DIRECTIONS, false> S;
    return p->len_kv <= KEY_SHORT && p->len_q <= KEY_SHORT ? launch<S, true>(p, a, rows, memory, error)
                                                           : launch<S, false>(p, a, rows, memory, error);
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

loam_status local_keys_hopper(const loam_problem *p, const loam_args *a, const row_arrays *rows, void *memory,
                              loam_error *error)
{
    return p->dtype == LOAM_F16 ? launch_type<__half>(p, a, rows, memory, error)
                                : launch_type<__nv_bfloat16>(p, a, rows, memory, error);
}
