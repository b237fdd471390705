/* SPDX-License-Identifier: MIT
 * The pass over keys of the backward on Hopper: the state of a consumer warpgroup, what it does to the
 * pairs of a tile of queries and its 64 keys, and what it writes. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_KEY_PAIRS_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_KEY_PAIRS_CUH

#include "src/local/hopper/backward_key_stream.cuh"
#include "src/local/hopper/row_store.cuh"

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
    key_decay<S::decayed> decay;
    key_folds fold;
    float ds_scale; /* undoes the fold of dv in ds */

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
            const float log2 = score - lse.at(n, e);
            s[n][e] = exp2_fast(S::bounded ? fminf(log2, most) : log2);
        }
    }
}

/* The products k . rho become 1 - u, with the fold of dv. */
template <int PARTS, class S, int BLOCKS>
static __device__ __forceinline__ void centre_probe(float (&u)[BLOCKS][4], const column_terms<BLOCKS> &unit,
                                                    const key_consumer<S> &wg)
{
    constexpr bool apart = S::solved && (S::folded || PARTS == 2);
    const float factor = S::folded ? -wg.fold.dv * (S::solved ? wg.fold.probe : 1) : -1;
    column_terms<BLOCKS> rest;
    if constexpr (apart) rest = columns_of<BLOCKS>(wg.sm.terms[wg.stage][TERM_REST]);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            u[n][e] = S::folded ? fmaf(u[n][e], factor, unit.at(n, e)) : unit.at(n, e) - u[n][e];
            if constexpr (apart) u[n][e] += rest.at(n, e);
        }
    }
}

/* The products v . do + k . y become E, with the fold of dk, which do and y have where a probe is solved. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void centre_error(float (&x)[BLOCKS][4], const column_terms<BLOCKS> &centre,
                                                    const key_consumer<S> &wg)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if constexpr (S::folded && !S::solved)
                x[n][e] = fmaf(x[n][e], wg.fold.dk, -centre.at(n, e));
            else
                x[n][e] -= centre.at(n, e);
    }
}

/* Of pairs that are not seen x becomes 0, whatever memory holds there. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void mask_pairs(float (&x)[BLOCKS][4], const key_consumer<S> &wg)
{
    int first[2], count[2]; /* of the columns that see the thread's keys */
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const int j = wg.at[row], last = j < wg.v.nk ? min(wg.v.nq - 1, j - wg.v.low) : -1,
                  from = max(j - wg.v.up, 0);
        first[row] = from - wg.t.i - column_of(0, 0), count[row] = max(last + 1 - from, 0);
    }
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const bool seen = (unsigned)(8 * n + e % 2 - first[e / 2]) < (unsigned)count[e / 2];
            x[n][e] = seen ? x[n][e] : 0;
        }
    }
}

/* p (1 - u) as operand: the weights of do in dv, and of y in dk. */
template <class S, int PARTS, int STEPS, int BLOCKS>
static __device__ __forceinline__ void pack_effective_weights(
    weights_operand<PARTS, STEPS, typename S::type> &effective, const key_scores<BLOCKS> &pairs)
{
    float w[BLOCKS][4];
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            w[n][e] = S::probed ? pairs.s[n][e] * pairs.u[n][e] : pairs.s[n][e];
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
            pairs.s[n][e] = S::probed ? p * wg.ds_scale * (pairs.u[n][e] * error + own.at(n, e)) : p * error;
            pairs.e[n][e] = -p * error;
            if constexpr (S::folded && S::solved) pairs.e[n][e] *= wg.fold.error;
        }
    }
}

/* Where the unit of the ridge is the largest p: adds scale e to scale ds of the key that has it. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void add_peaks(float (&ds)[BLOCKS][4], const key_consumer<S> &wg)
{
    const column_terms<BLOCKS> peak = terms_of(wg, TERM_PEAK), own = terms_of(wg, TERM_PEAK_E);
    const float scale = wg.scale * (S::folded ? exp2f(key_raise<typename S::type>) : 1);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            ds[n][e] += wg.at[e / 2] == __float_as_int(peak.at(n, e)) ? scale * own.at(n, e) : 0;
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

/* Rows of `count` tiles beyond the sequence become 0: the next packed sequence lies there, and 0 times NaN is
 * not 0. Both consumers call it. */
template <class S>
static __device__ __forceinline__ void clear_tail_consumers(const key_consumer<S> &wg,
                                                            typename S::type *tiles, int count)
{
    const int real = wg.v.nq - wg.t.i, words = (S::queries - real) * (TILE_SIDE / 2);
    uint32_t *const to = (uint32_t *)tiles;
    for (int n = 0; n < count * (S::dim / TILE_SIDE); n++)
        for (int e = threadIdx.x; e < words; e += KEY_GROUPS * 128)
            to[(n * S::queries + real) * (TILE_SIDE / 2) + e] = 0;
    fence_async_proxy();
    asm volatile("bar.sync 1, %0;" ::"n"(KEY_GROUPS * 128) : "memory");
}

/* ------------------------------------------------------------------ results */

/* Writes the keys' sums of ds over one head, from which the gradient of the decay is made. */
template <class S>
static __device__ __forceinline__ void put_decay_sums(const key_consumer<S> &wg, int head, const loam_args &a)
{
    if (S::shared_keys && threadIdx.x < 128) return; /* the other warpgroup has ds */
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float sum = quad_sum(wg.decay.sum[row]) * (S::probed ? 1 / wg.scale : 1) *
                          unraised<S>(wg.fold, wg.fold.dk);
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

/* Writes the gradient of the thread's keys, times unit: the first channels of rows of `to`. */
template <class S>
static __device__ __forceinline__ void put_key_gradient(const float (&sum)[S::dim / TILE_SIDE][8][4],
                                                        const loam_view &to, int64_t channels, float unit,
                                                        const key_consumer<S> &wg)
{
    typedef typename S::type T;
    if (!to.data) return;
    const bool pieces = rows_are_pieces(to, (int)channels);
#pragma unroll
    for (int row = 0; row < 2; row++) {
        T *const out = (T *)to.data + LOCAL_AT(to, wg.block.s.b, wg.block.h_kv, wg.block.s.k0 + wg.at[row]);
        float2 x[S::dim / 8];
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++) {
            const float(&from)[4] = sum[n / 8][n % 8];
            x[n] = { unit * from[2 * row], unit * from[2 * row + 1] };
        }
        store_row(out, wg.at[row] - wg.block.j0 < wg.block.stored, pieces, 0, (int)channels, x);
    }
}

template <class S>
static __device__ __forceinline__ void put_dk(const float (&sum)[S::dim / TILE_SIDE][8][4],
                                              const loam_problem &p, const loam_args &a,
                                              const key_consumer<S> &wg)
{
    put_key_gradient(sum, a.grad_k, p.dim_qk, (S::probed ? 1 : wg.scale) * unraised<S>(wg.fold, wg.fold.dk),
                     wg);
}
template <class S>
static __device__ __forceinline__ void put_dv(const float (&sum)[S::dim / TILE_SIDE][8][4],
                                              const loam_problem &p, const loam_args &a,
                                              const key_consumer<S> &wg)
{
    put_key_gradient(sum, a.grad_v, p.dim_v, unraised<S>(wg.fold, wg.fold.dv), wg);
}

#endif
