/* SPDX-License-Identifier: MIT
 *
 * Local Linear Attention forward on Hopper: the first sweep over the keys of a block of 64 rows, which finds
 * lse and the means of keys and values, and the rules of its solver.
 */
#ifndef LOAM_LOCAL_HOPPER_FORWARD_MEANS_CUH
#define LOAM_LOCAL_HOPPER_FORWARD_MEANS_CUH

#include "src/local/hopper/forward_rows.cuh"

/* Segments of the keys of blocks with so many tiles, in sequences with more keys than this: lengths alone
 * decide, so that bits do not depend on the number of blocks. */
enum { SEGMENTS = 4, SEGMENTED_TILES = 7, UNSEGMENTED_KEYS = 23 * TILE_SIDE };

/* Tiles of each segment but the last, of those that the block sees; 0: there is one segment. */
static __device__ __forceinline__ int segment_tiles(const row_block &block)
{
    const int tiles = key_tiles(block);
    return tiles >= SEGMENTED_TILES && block.s.nk > UNSEGMENTED_KEYS ? (tiles + SEGMENTS - 1) / SEGMENTS : 0;
}

/* One thread calls it. */
template <int DIM> static __device__ __forceinline__ void init_rings(solver_shared<DIM, __half> &sm)
{
    for (int n = 0; n < (int)ring_stages<DIM>; n++)
        barrier_init(&sm.full[n], 1);
    for (int n = 0; n < (int)ring_stages<DIM> + 2; n++) {
        barrier_init(&sm.extended_full[0][n], 1);
        barrier_init(&sm.extended_full[1][n], 1);
    }
    sm.extended[0].used = sm.extended[1].used = 0;
    barrier_init(&sm.query_full, 1);
    fence_async_proxy();
}

/* The products s = q . k with keys from j on become scores to base 2; -inf where a row does not see one. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void masked_scores(float (&s)[8][4],
                                                     const block_system<DIM, DECAYED, T> &sys, int j)
{
    add_decay(s, sys, j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] *= DECAYED ? 1.0f : sys.scale2[e / 2];
    }
    if (rarely(!sys.unmasked(j))) {
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[n][e] = sys.seen(e / 2, j + column_of(n, e)) ? s[n][e] : -INFINITY;
        }
    }
}

/* The online softmax of two rows: the running maximum to base 2, and the sums of weights, exact and as
 * rounded to their parts (this thread's columns). rescale: the factor for all that was summed before. */
struct softmax_rows {
    float m[2], omega[2], rounded[2], rescale[2];
};

static constexpr softmax_rows no_weights = { { -INFINITY, -INFINITY }, { 0, 0 }, { 0, 0 }, { 0, 0 } };

/* The largest weight, to base 2: the top of the range of fp16 is used. */
template <class T> constexpr float softmax_top = is_half<T> ? 15 : 0;

/* Scores become weights, w = 2^(s - m + softmax_top). */
template <class T> static __device__ __forceinline__ void softmax_step(softmax_rows &soft, float (&s)[8][4])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = soft.m[row];
#pragma unroll
        for (int n = 0; n < 8; n++)
            top = fmaxf(top, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
        top = quad_max(top);
        const float base = finite_or_zero(top);
        soft.rescale[row] = exp2_fast(soft.m[row] - base);
        soft.m[row] = top, soft.omega[row] *= soft.rescale[row], soft.rounded[row] *= soft.rescale[row];
#pragma unroll
        for (int n = 0; n < 8; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++) {
                s[n][e] = exp2_fast(s[n][e] - (base - softmax_top<T>));
                soft.omega[row] += s[n][e];
            }
        }
    }
}

/* Adds the weights as rounded, the parts of each pair of columns together (add_weights: lo parts first). */
template <int PARTS, class T>
static __device__ __forceinline__ void add_weights_by_pair(float (&total)[2],
                                                           const weights_operand<PARTS, 4, T> &w)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int part = 0; part < PARTS; part++) {
                const float2 pair = unpack_pair<T>(w.part[part][k][e]);
                total[e % 2] += pair.x + pair.y;
            }
        }
    }
}

/* Rescales sums. */
template <int DIM>
static __device__ __forceinline__ void rescale_sums(float (&sum)[DIM / TILE_SIDE][8][4],
                                                    const float (&rescale)[2])
{
#pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[n / 8][n % 8][e] *= rescale[e / 2];
    }
}

/* A mean goes to the scratch, from its sum. It is divided by the sum of the weights as rounded to their
 * parts: its error is then relative to the spread of the keys, not to their size. */
template <int DIM, class VECTOR>
static __device__ __forceinline__ void put_mean(const VECTOR &mean, const softmax_rows &soft,
                                                const float (&sum)[DIM / TILE_SIDE][8][4])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float rounded = quad_sum(soft.rounded[row]), inverse = rounded > 0 ? 1 / rounded : 0;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
            for (int e = 2 * row; e < 2 * row + 2; e++)
                mean.put(4 * n + e, sum[n / 8][n % 8][e] * inverse);
        }
    }
}

/* part, the softmax of a segment, becomes that of all before it, `total`, and this one; scale: what sums of
 * those before, and of this one, are multiplied by. */
static __device__ __forceinline__ void merge_softmax(softmax_rows &part, const softmax_rows &total,
                                                     float (&scale)[2][2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float top = fmaxf(total.m[row], part.m[row]), base = finite_or_zero(top);
        scale[0][row] = exp2_fast(total.m[row] - base), scale[1][row] = exp2_fast(part.m[row] - base);
        part.m[row] = top;
        part.omega[row] = fmaf(part.omega[row], scale[1][row], __fmul_rn(total.omega[row], scale[0][row]));
        part.rounded[row] = fmaf(part.rounded[row], scale[1][row],
                                 __fmul_rn(total.rounded[row], scale[0][row]));
    }
}

/* The end of the first sweep: the softmax of the rows and their sums from those of all segments. */
template <int DIM, class T>
static __device__ __forceinline__ void finish_means(const segment_sums<true, DIM, T> &segments,
                                                    softmax_rows &soft, const softmax_rows &before,
                                                    float (&k)[DIM / TILE_SIDE][8][4],
                                                    float (&v)[DIM / TILE_SIDE][8][4])
{
    if (segments.sm.segment_tiles == 0) return;
    float scale[2][2];
    merge_softmax(soft, before, scale);
    segments.add_all(k, 0, scale);
    segments.add_all(v, 1, scale);
}

/* A pass of the online softmax: the sums of keys k, where KEYS, and of values v, where VALUES, in their
 * units, times their weights. */
template <int PARTS, bool KEYS, bool VALUES, int OF_KEYS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void sum_means(const block_system<DIM, DECAYED, T> &sys, softmax_rows &soft,
                                                 float (&k)[DIM / TILE_SIDE][8][4],
                                                 float (&v)[DIM / TILE_SIDE][8][4])
{
    float s[8][4];
    weights_operand<PARTS, 4, T> w;
    score_operands<DIM, DECAYED, T, PARTS, true> rows;
    constexpr bool segmented = OF_KEYS == KEY_SEGMENTS;
    segment_sums<segmented, DIM, T> segments(sys.sm, sys.block.first);
    softmax_rows before = no_weights; /* of segments that ended */
    float scale[2][2];
    soft = no_weights;
    rows.load_query(sys);
    if (KEYS) clear_sums<DIM>(k);
    if (VALUES) clear_sums<DIM>(v);
    stream_values<PARTS == 2 || DIM == 64 || !VALUES ? 0 : 2, true, VALUES, OF_KEYS>(
        sys, [&](const auto &t) { rows.query_keys(s, sys, t.keys); },
        [&](const auto &t) {
            wgmma_results(s);
            if (rarely(segments.ends(t.j))) {
                merge_softmax(soft, before, scale);
                before = soft, soft = no_weights;
            }
            masked_scores(s, sys, t.j);
            softmax_step<T>(soft, s);
            wgmma_results(s);
        },
        [&]() {
            if (KEYS) wgmma_results(k);
            if (VALUES) wgmma_results(v);
            if constexpr (segmented) {
                segments.end(k, 0, scale);
                segments.end(v, 1, scale);
                segments.next_segment();
            }
            split_weights(w, s);
            add_weights_by_pair(soft.rounded, w);
            if (__any_sync(0xffffffffu, soft.rescale[0] != 1 || soft.rescale[1] != 1)) {
                if (KEYS) rescale_sums<DIM>(k, soft.rescale);
                if (VALUES) rescale_sums<DIM>(v, soft.rescale);
            }
        },
        [&](const auto &t) {
            if (KEYS && PARTS == 2) multiply_weights<DIM>(k, w.part[PARTS - 1], t.keys);
            if (KEYS) multiply_weights<DIM>(k, w.part[0], t.keys);
            if (VALUES) multiply_weights<DIM>(v, w.part[0], t.values);
        });
    if (KEYS) wgmma_results(k);
    if (VALUES) wgmma_results(v);
    if constexpr (segmented) finish_means(segments, soft, before, k, v);
}

/* lse to base 2, 0 for rows that see no key, and the largest p of a row, 0 for such rows. */
template <class T>
static __device__ __forceinline__ void softmax_results(const softmax_rows &soft, float (&lse2)[2],
                                                       float (&largest)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float omega = quad_sum(soft.omega[row]);
        lse2[row] = omega > 0 ? soft.m[row] + (log2f(omega) - softmax_top<T>) : 0;
        largest[row] = omega > 0 ? power_of_two(softmax_top<T>) / omega : 0;
    }
}

/* The first sweep, an online softmax, with the means of keys and values into the scratch. */
template <int PARTS, int OF_KEYS, class SYSTEM>
static __device__ __forceinline__ void means_sweep(const SYSTEM &stored, float (&lse2)[2],
                                                   float (&largest)[2])
{
    constexpr int DIM = SYSTEM::dim;
    constexpr bool together = DIM <= 128;
    const row_pair r = stored.r;
    const row_ridge ridge = stored.ridge;
    const SYSTEM sys = system_in_registers(stored, r, ridge);
    float k[DIM / TILE_SIDE][8][4], v[DIM / TILE_SIDE][8][4];
    softmax_rows soft;
    sum_means<PARTS, true, together, OF_KEYS>(sys, soft, k, v);
    put_mean<DIM>(sys.vector(VECTOR_KBAR), soft, k);
    if (!together) sum_means<PARTS, false, true, OF_KEYS>(sys, soft, k, v);
    put_mean<DIM>(sys.vector(VECTOR_VBAR), soft, v);
    softmax_results<typename SYSTEM::type>(soft, lse2, largest);
}

/* Steps without a preconditioner; in two parts, as many as the matrices of a block that sees few keys are
 * worth, or as solve most rows where there are no matrices. With `saved`, gradients follow: they need a more
 * exact probe than o does, and one that took many steps in one part does not bear the rounding to bf16. */
template <int PARTS, int DIM> static __device__ __forceinline__ cg_tolerance plain_tolerance(bool saved)
{
    const float stop = saved ? 3e-4f : 1.2e-3f;
    if (PARTS == 2 && !has_row_matrices<DIM>) return { stop, stop, 1e-2f, 128, 0, false, 0 };
    return PARTS == 2 ? cg_tolerance{ stop, stop, 1e-2f, 28, 0.77f, false, 0 }
           : saved    ? cg_tolerance{ 6e-3f, 6e-3f, 1.8e-2f, 8, 0.62f, false, 0 }
                      : cg_tolerance{ 6e-3f, 3e-3f, 1.2e-2f, 24, 0.77f, true, 0 };
}

/* Are steps in PARTS parts not enough for a row? */
template <int PARTS>
static __device__ __forceinline__ bool needs_more(const cg_rows &cg, const cg_tolerance &tolerance)
{
    const float bound = PARTS == 1 ? tolerance.accept * tolerance.accept : 0;
    return (cg.live[0] && cg.rr[0] > bound * cg.bb[0]) || (cg.live[1] && cg.rr[1] > bound * cg.bb[1]);
}

#endif
