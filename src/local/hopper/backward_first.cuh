/* SPDX-License-Identifier: MIT
 * The first sweep of the rows in the backward of Local Linear Attention on Hopper: the gradient of the probe,
 * and the key with the highest score. */
#ifndef LOAM_LOCAL_HOPPER_BACKWARD_FIRST_CUH
#define LOAM_LOCAL_HOPPER_BACKWARD_FIRST_CUH

#include "src/local/hopper/backward_pairs.cuh"

/* Finds the highest score of each row, and its first key, in the tile that begins at key j. */
template <int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void find_peak(rows_sums &sum, const float (&products)[8][4],
                                                 const pairs_system<DIM, DECAYED, T> &sys, int j)
{
    float s[8][4];
    memcpy(s, products, sizeof s);
    add_decay(s, sys, j);
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = e / 2, at = j + column_of(n, e);
            const float score = DECAYED ? s[n][e] : s[n][e] * sys.scale2[row];
            if (sys.seen(row, at) && score > sum.best[row]) sum.best[row] = score, sum.peak[row] = at;
        }
    }
}

/* Combines the four lanes of a row. The peak is the first key with the highest score; -1 where none is
 * seen. */
static __device__ __forceinline__ void finish_peak(rows_sums &sum)
{
#pragma unroll
    for (int row = 0; row < 2; row++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            const float best = __shfl_xor_sync(0xffffffffu, sum.best[row], step);
            const int peak = __shfl_xor_sync(0xffffffffu, sum.peak[row], step);
            if (best > sum.best[row] || (best == sum.best[row] && peak < sum.peak[row]))
                sum.best[row] = best, sum.peak[row] = peak;
        }
        sum.peak[row] = sum.best[row] > -INFINITY ? sum.peak[row] : -1;
    }
}

static __device__ __forceinline__ void largest_weights(rows_sums &sum, const float (&p)[8][4])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum.best[e / 2] = fmaxf(sum.best[e / 2], p[n][e]);
}

/* The products g = do . v become p (g - gbar). */
static __device__ __forceinline__ void weigh_values(float (&g)[8][4], const float (&p)[8][4],
                                                    const float (&gbar)[2])
{
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            g[n][e] = p[n][e] * (g[n][e] - gbar[e / 2]);
}

/* The first sweep: f = sum p (g - gbar) k of the thread's rows, and sum.rest. do lies where the direction
 * will be. peak: whether the highest scores are wanted. In fp16, all are in units: gbar in that of the
 * products of do and values, f, rest and the largest weight in that of the weights. */
template <int PARTS, int DIM, bool DECAYED, class T>
static __device__ __forceinline__ void probe_gradient_sweep(float (&f)[DIM / TILE_SIDE][8][4],
                                                            const rows_system<DIM, DECAYED, T> &rs,
                                                            rows_sums &sum, bool peak)
{
    constexpr bool values_later = DIM > 128; /* sums leave no registers to find the peak beside products */
    const pairs_system<DIM, DECAYED, T> &sys = rs.sys;
    float s[8][4], g[8][4], total[2] = { 0, 0 };
    weights_operand<PARTS, 4, T> w;
    sum.best[0] = sum.best[1] = is_half<T> && !peak ? 0 : -INFINITY;
    sum.peak[0] = sum.peak[1] = INT32_MAX;
    clear_sums<DIM>(f);
    stream_pipelined<DIM, true, PARTS == 1, true>(
        sys.ring(), rs.count.ring, sys.maps, sys.block,
        [&](const auto &t) {
            multiply_rows<DIM>(s, rs.queries(), t.keys, false);
            if (!values_later) more_rows<DIM>(g, sys.sm.direction[0], t.values, false);
        },
        [&](const auto &t) {
            wgmma_results(s);
            if constexpr (!values_later) wgmma_results(g);
            if (peak) find_peak(sum, s, sys, t.j);
            if constexpr (values_later) {
                multiply_rows<DIM>(g, rs.direction(0), t.values, false);
                wgmma_commit();
            }
            score_weights(s, sys, t.j);
            if (is_half<T> && !peak) largest_weights(sum, s);
            if constexpr (values_later)
                wgmma_results(s); /* else the compiler computes s beyond the next wait */
            else
                weigh_values(g, s, sum.gbar);
        },
        [&]() {
            if constexpr (values_later) {
                wgmma_wait<0>();
                wgmma_results(g);
                weigh_values(g, s, sum.gbar);
            }
            wgmma_results(f);
            split_weights(w, g);
            add_weights(total, w);
        },
        [&](const auto &t) {
            multiply_weights<DIM>(f, w.part[0], t.keys);
            if (PARTS == 2) more_weights<DIM>(f, w.part[PARTS - 1], t.keys);
        });
    wgmma_results(f);
    if (is_half<T> && !peak) {
        sum.best[0] = quad_max(sum.best[0]), sum.best[1] = quad_max(sum.best[1]);
        sum.peak[0] = sum.peak[1] = -1;
    } else {
        finish_peak(sum);
    }
    sum.rest[0] = quad_sum(total[0]), sum.rest[1] = quad_sum(total[1]);
}

#endif
