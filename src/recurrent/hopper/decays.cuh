/* SPDX-License-Identifier: MIT
 * Cumulative log decays of a chunk, and other sums over its tokens, by one warp: lane l has tokens 2 l and
 * 2 l + 1.
 *
 * Log decays are clamped to at least LOG_DECAY_MIN: e^LOG_DECAY_MIN is 0 in float32, and the rounding of
 * their sums in float64 is below 1e-10, so that a difference of two sums is as exact as the sum over the
 * tokens between. */
#ifndef LOAM_RECURRENT_HOPPER_DECAYS_CUH
#define LOAM_RECURRENT_HOPPER_DECAYS_CUH

#include "src/recurrent/hopper/chunks.cuh"

static constexpr float LOG_DECAY_MIN = -1e4f;
static constexpr double LOG2_E = 1.4426950408889634;

/* e^x */
static __device__ __forceinline__ float exp_fast(float x) { return exp2_fast(x * (float)LOG2_E); }

/* Inclusive sums over the lanes up to this one, and over the lanes from this one on. */
template <class REAL> static __device__ __forceinline__ REAL prefix_sum(REAL x)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const REAL before = __shfl_up_sync(~0u, x, step);
        x += lane >= step ? before : 0;
    }
    return x;
}

template <class REAL> static __device__ __forceinline__ REAL suffix_sum(REAL x)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const REAL after = __shfl_down_sync(~0u, x, step);
        x += lane + step < 32 ? after : 0;
    }
    return x;
}

/* x of the lane before, and of the lane after; 0 where there is none. */
static __device__ __forceinline__ float previous_lane(float x)
{
    const float before = __shfl_up_sync(~0u, x, 1);
    return threadIdx.x % 32 > 0 ? before : 0;
}
static __device__ __forceinline__ float next_lane(float x)
{
    const float after = __shfl_down_sync(~0u, x, 1);
    return threadIdx.x % 32 < 31 ? after : 0;
}

/* pre: the inclusive prefix sums of the log decays of the lane's two tokens, times `unit`. */
static __device__ __forceinline__ void cumulative_log_decay(double (&pre)[2], const float (&log_decay)[2],
                                                            double unit)
{
    const double first = (double)fmaxf(log_decay[0], LOG_DECAY_MIN) * unit,
                 second = (double)fmaxf(log_decay[1], LOG_DECAY_MIN) * unit;
    pre[1] = prefix_sum(first + second);
    pre[0] = pre[1] - second;
}

/* x as hi and lo part. */
static __device__ __forceinline__ float2 split_double(double x)
{
    const float hi = (float)x;
    return make_float2(hi, (float)(x - hi));
}

/* e^(a - b) of sums in the log2 domain, hi and lo. The error of a - b is small relative to the
 * difference, not only to a and b. */
static __device__ __forceinline__ float decay_between(const float2 &a, const float2 &b)
{
    return exp2_fast((a.x - b.x) + (a.y - b.y));
}

/* Of the lane's two tokens: pre in the log2 domain, hi and lo part; e^pre; e^suf. */
struct lane_decays {
    float2 pre_log2[2];
    float pre[2], suf[2];
};

/* From the log decays of a chunk's tokens. A decay of the head is a view whose batch and token strides are
 * 0. */
static __device__ __forceinline__ lane_decays lane_decays_of(const loam_const_view &gates,
                                                             const chunk_place &chunk)
{
    float gate[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int t = threadIdx.x % 32 * 2 + n;
        const int64_t at = RECURRENT_AT(gates, chunk.b, chunk.h, chunk.first + t);
        gate[n] = t < chunk.tokens ? ((const float *)gates.data)[at] : 0;
    }
    double pre[2];
    cumulative_log_decay(pre, gate, LOG2_E);
    const double all = __shfl_sync(0xffffffffu, pre[1], 31);
    lane_decays x;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        x.pre_log2[n] = split_double(pre[n]);
        x.pre[n] = exp2_fast((float)pre[n]);
        x.suf[n] = exp2_fast((float)(all - pre[n]));
    }
    return x;
}

#endif
