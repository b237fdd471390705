/* SPDX-License-Identifier: MIT
 * Forward with a given probe on Hopper: the shapes of its tiles, and the sums over keys that a thread keeps
 * for its two rows. */
#ifndef LOAM_LOCAL_HOPPER_FORWARD_GIVEN_SUMS_CUH
#define LOAM_LOCAL_HOPPER_FORWARD_GIVEN_SUMS_CUH

#include "src/gpu/hopper.cuh"
#include "src/local/cuda/given.cuh"

#include <cfloat>

/* Of a kernel: numbers of type T, tiles of DIM channels, a probe or none, scores that decay or do not, and
 * keys in segments or not. */
template <class T, int DIM, bool PROBED, bool DECAYED, bool SEGMENTED = false> struct given_forward {
    typedef T type;
    static constexpr int dim = DIM;
    static constexpr bool probed = PROBED, decayed = DECAYED;
    /* Columns of the values. With a probe there are two accumulators of the outputs, and 128 columns of each
     * are all that fit registers: wider values take `parts` blocks of the same rows. */
    static constexpr int columns = PROBED && DIM > 128 ? 128 : DIM, parts = DIM / columns;
    static constexpr int consumers = 2; /* warpgroups of 64 rows */
    /* Keys of a tile. */
    static constexpr int keys = DIM > 128 || (PROBED && DIM == 128) ? 64 : 128;
    static constexpr int key_stages = DIM == 64 || (PROBED && DIM == 128) ? 4 : DIM == 192 ? 3 : 2;
    static constexpr int value_stages = PROBED && DIM > 128 ? 1 : key_stages;
    /* Tiles of a warpgroup's rows; with two the next ones are copied during a block. */
    static constexpr int row_stages = DIM == 64 || (DIM == 128 && !PROBED) ? 2 : 1;
    /* Whether there are registers for the scores of two tiles. */
    static constexpr bool ahead = !PROBED && DIM == 64;
    /* Whether there is shared memory for the means that are saved, from where bulk copies take them. */
    static constexpr bool stages_saved = !PROBED && DIM == 64;
    /* Keys of a segment. Each is summed by itself, and the sums are merged in order, so that the thread
     * blocks of a cluster may have some each and bits stay the same; 0: all keys are one. There is shared
     * memory for the total where means are staged, in their place. */
    static constexpr int segment = SEGMENTED ? 2048 : 0;
    /* What a warpgroup hands to the next of the cluster. */
    static constexpr unsigned handed_bytes = ROWS * columns * 4 + THREADS * 16;
    static constexpr int rows = consumers * ROWS;
    static constexpr int threads = (consumers + 1) * THREADS;
};

/* What a thread keeps of its two rows in shared memory: keys lo .. hi - 1 that they see, for the few tiles
 * that need a mask, and omega of its columns. The store of omega with every tile also serves scheduling: the
 * compiler moves arithmetic beyond a wait for products, but no volatile store, so that the arithmetic which
 * leads to the store overlaps with the products. */
struct row_state {
    int lo[2], hi[2];
    volatile float omega[2];
    volatile float fold[2]; /* of given_forward_sums */
};

/* Of a segment or of several: the running maxima of a thread's rows, and omega of its columns. */
struct alignas(16) segment_weights {
    float m[2], omega[2];
};

/* The running maximum of a row moves only where it grows by more than this, to base 2: sums are as exact
 * relative to any number near it, and for most tiles the accumulators then need no rescaling. With a probe
 * the centre moves with the maximum, to the mean of t at that time; it must not stay behind keys that have
 * most of the weight, so that the slack is smaller. */
template <class S> constexpr float maximum_slack = S::probed ? 2.0f : 8.0f;

/* Weights of float16 are raised by so many powers of 2, as far as the slack leaves room: what is smaller than
 * 2^-32 of the largest weight is lost, where without it that would be 2^-25. */
template <class S> constexpr float weight_raise = is_half<typename S::type> ? 7.0f : 0.0f;

/* Sums of a warpgroup's rows, named as in local/cuda/given.cuh: o is A, b is B, tsum is T. m is the running
 * maximum to base 2, that is of scale2 q . k, less weight_raise. omega and tsum are of the thread's columns.
 * With float16, w (t - c) may lie beyond its range, which b shows in the end: blocks where it does are done
 * again, folded. b is then B fold, where the power of two fold[row] <= 1 of row_state falls as they grow. */
template <class S> struct given_forward_sums {
    static constexpr bool folded = S::probed && is_half<typename S::type>;
    float o[S::columns / TILE_SIDE][8][4];
    float b[S::probed ? S::columns / TILE_SIDE : 1][8][4];
    float m[2], omega[2], centre[2], tsum[2];
};

template <class S> static __device__ __forceinline__ void clear_forward_sums(given_forward_sums<S> &g)
{
#pragma unroll
    for (int n = 0; n < S::columns / TILE_SIDE; n++) {
        clear(g.o[n]);
        if constexpr (S::probed) clear(g.b[n]);
    }
#pragma unroll
    for (int row = 0; row < 2; row++)
        g.m[row] = -INFINITY, g.omega[row] = 0, g.centre[row] = 0, g.tsum[row] = 0;
}

/* The mask: x of the tile from key j on becomes other[row] where the row does not see the key. */
template <int BLOCKS>
static __device__ __forceinline__ void mask_tile(float (&x)[BLOCKS][4], const row_state &state, int j,
                                                 const float (&other)[2])
{
    const int at = j + column_of(0, 0);
    const int from[2] = { state.lo[0] - at, state.lo[1] - at };
    const unsigned count[2] = { (unsigned)(state.hi[0] - state.lo[0]),
                                (unsigned)(state.hi[1] - state.lo[1]) };
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const unsigned back = (unsigned)(8 * n + e % 2 - from[e / 2]);
            x[n][e] = back < count[e / 2] ? x[n][e] : other[e / 2];
        }
    }
}

/* The largest scores to base 2 of the thread's columns; offset[row] is the part of the row's scores that s
 * lacks. */
template <int BLOCKS>
static __device__ __forceinline__ void row_tops(float (&top)[2], const float (&s)[BLOCKS][4], float scale2,
                                                const float (&offset)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
        top[row] = fmaxf(s[0][2 * row], s[0][2 * row + 1]);
#pragma unroll
        for (int n = 1; n < BLOCKS; n++)
            top[row] = fmaxf(top[row], fmaxf(s[n][2 * row], s[n][2 * row + 1]));
        top[row] = top[row] * scale2 + offset[row];
    }
}

/* Returns whether the maximum of any of the warp's rows moves, by their tops in a tile; rescale[row] is then
 * the factor for all that the row has accumulated. Whether a row's maximum moves depends on that row alone,
 * so that other rows do not change its bits. */
template <class S>
static __device__ __forceinline__ bool move_maximum(given_forward_sums<S> &g, const float (&top)[2],
                                                    float (&rescale)[2])
{
    constexpr float raise = weight_raise<S>, slack = maximum_slack<S> + raise;
    const bool moves = __any_sync(0xffffffffu, top[0] > g.m[0] + slack || top[1] > g.m[1] + slack);
    rescale[0] = rescale[1] = 1;
    if (moves) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float m = quad_max(top[row]);
            if (m > g.m[row] + slack) {
                rescale[row] = exp2_fast(g.m[row] - (m - raise));
                g.m[row] = m - raise;
                g.omega[row] *= rescale[row];
            }
        }
    }
    return moves;
}

/* Scores become weights, w = 2^(scale2 s + offset - m), which are added to omega. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void weigh_scores(given_forward_sums<S> &g, row_state &state,
                                                    float (&s)[BLOCKS][4], float scale2,
                                                    const float (&offset)[2])
{
    const float base[2] = { finite_or_zero(g.m[0]) - offset[0], finite_or_zero(g.m[1]) - offset[1] };
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = exp2_fast(fmaf(s[n][e], scale2, -base[e / 2]));
            g.omega[e / 2] += s[n][e];
        }
    }
    state.omega[0] = g.omega[0], state.omega[1] = g.omega[1];
}

/* Scales the accumulators to the maximum that has moved. */
template <class S>
static __device__ __forceinline__ void rescale_sums(given_forward_sums<S> &g, const float (&rescale)[2])
{
#pragma unroll
    for (int n = 0; n < S::columns / TILE_SIDE; n++)
        scale_rows(g.o[n], rescale);
}

/* The products t = probe . k become w (t - c), which are added to tsum. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void probe_weights(given_forward_sums<S> &g, float (&t)[BLOCKS][4],
                                                     const float (&w)[BLOCKS][4], const float (&rescale)[2])
{
    g.tsum[0] *= rescale[0], g.tsum[1] *= rescale[1];
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            t[n][e] = w[n][e] * (t[n][e] - g.centre[e / 2]);
            g.tsum[e / 2] += t[n][e];
        }
    }
}

/* Scales the accumulators to the maximum that has moved. Where a row's maximum moved, its centre moves to the
 * mean of t so far, and with it B and w (t - c) of this tile. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void recentre_sums(given_forward_sums<S> &g, const row_state &state,
                                                     float (&t)[BLOCKS][4], const float (&w)[BLOCKS][4],
                                                     const float (&rescale)[2])
{
    float shift[2];
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float mass = quad_sum(g.omega[row]), sum = quad_sum(g.tsum[row]);
        shift[row] = rescale[row] != 1 && mass > 0 ? sum / mass : 0;
        g.centre[row] += shift[row];
        g.tsum[row] -= shift[row] * g.omega[row];
    }
    float lost[2] = { shift[0], shift[1] };
    if constexpr (given_forward_sums<S>::folded) lost[0] *= state.fold[0], lost[1] *= state.fold[1];
#pragma unroll
    for (int n = 0; n < S::columns / TILE_SIDE; n++) {
        scale_rows(g.o[n], rescale);
        scale_rows(g.b[n], rescale);
#pragma unroll
        for (int c = 0; c < 8; c++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                g.b[n][c][e] -= lost[e / 2] * g.o[n][c][e];
        }
    }
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            t[n][e] -= shift[e / 2] * w[n][e];
    }
}

/* Whether no number of b is infinite or NaN. */
template <int TILES> static __device__ __forceinline__ bool all_finite(const float (&b)[TILES][8][4])
{
    float zero = 0;
#pragma unroll
    for (int n = 0; n < TILES * 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            zero = fmaf(b[n / 8][n % 8][e], 0.0f, zero);
    }
    return zero == 0;
}

/* Brings t = w (t - c), which becomes a float16 operand, into its range: t becomes t fold, and fold falls
 * where the operand would be infinite, and only there: rows that need no fold have the same bits whether
 * their block is folded or not. Squares find tiles where there may be such rows. */
template <class S, int BLOCKS>
static __device__ __forceinline__ void fold_weights(given_forward_sums<S> &g, row_state &state,
                                                    float (&t)[BLOCKS][4])
{
    constexpr float near_most = 32768, most = 65520; /* which rounds to infinity */
    const float fold[2] = { state.fold[0], state.fold[1] };
    float square[4] = { 0, 0, 0, 0 }, factor[2], both[2];
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            square[e] = fmaf(t[n][e], t[n][e], square[e]);
    }
    const float sum = square[0] + square[1] + square[2] + square[3];
    if (!__any_sync(0xffffffffu, fold[0] != 1 || fold[1] != 1 || !(sum < near_most * near_most))) return;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        float top = 0;
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
            top = fmaxf(top, fmaxf(fabsf(t[n][2 * row]), fabsf(t[n][2 * row + 1])));
        top = fminf(quad_max(top) * fold[row], FLT_MAX);
        /* The largest becomes 2^10 to 2^11. */
        factor[row] = top >= most ? __uint_as_float((264u << 23) - (__float_as_uint(top) & 0x7f800000u)) : 1;
        state.fold[row] = both[row] = fold[row] * factor[row];
    }
    scale_rows(t, both);
#pragma unroll
    for (int n = 0; n < S::columns / TILE_SIDE; n++)
        scale_rows(g.b[n], factor);
}

/* Adds the segments before, `before` and `part`, which is their o of a lane, to the sums o of the segments
 * after, whose weights are `own`. All rows of a warp may have seen no key before: nothing changes then. */
template <int TILES>
static __device__ __forceinline__ void merge_segments(float (&o)[TILES][8][4], segment_weights &own,
                                                      const segment_weights &before, const float4 (*part)[32])
{
    const bool any = before.m[0] != -INFINITY || before.m[1] != -INFINITY || before.omega[0] != 0 ||
                     before.omega[1] != 0;
    float keep[2], add[2];
    if (!__any_sync(0xffffffffu, any)) return;
#pragma unroll
    for (int row = 0; row < 2; row++) {
        const float m = fmaxf(before.m[row], own.m[row]), base = finite_or_zero(m);
        keep[row] = exp2_fast(before.m[row] - base), add[row] = exp2_fast(own.m[row] - base);
        own.m[row] = m;
        own.omega[row] = fmaf(before.omega[row], keep[row], own.omega[row] * add[row]);
    }
#pragma unroll
    for (int n = 0; n < TILES * 8; n++) {
        const float4 x = part[n][threadIdx.x % 32];
        float(&y)[4] = o[n / 8][n % 8];
        y[0] = fmaf(x.x, keep[0], y[0] * add[0]), y[1] = fmaf(x.y, keep[0], y[1] * add[0]);
        y[2] = fmaf(x.z, keep[1], y[2] * add[1]), y[3] = fmaf(x.w, keep[1], y[3] * add[1]);
    }
}

template <int TILES>
static __device__ __forceinline__ void put_segments(float4 (*part)[32], const float (&o)[TILES][8][4])
{
#pragma unroll
    for (int n = 0; n < TILES * 8; n++) {
        const float(&x)[4] = o[n / 8][n % 8];
        part[n][threadIdx.x % 32] = { x[0], x[1], x[2], x[3] };
    }
}

#endif
