/* SPDX-License-Identifier: MIT
 * Sums over the keys of a block of rows, made of those of segments of the keys, which are added in order. How
 * many segments a block has follows from its keys alone. One thread block may sum all segments, one after
 * another, or the thread blocks of a cluster one each (forward_few.cu): the bits are the same. */
#ifndef LOAM_LOCAL_HOPPER_SEGMENTS_CUH
#define LOAM_LOCAL_HOPPER_SEGMENTS_CUH

#include "src/local/hopper/stream.cuh"

/* What a sweep is over: all keys at once, all of them in segments, or the share that a thread block of a
 * cluster has. */
enum { ALL_KEYS, KEY_SEGMENTS, KEY_SHARE };

template <int DIM, class T> struct solver_shared;

/* Stages of the ring where sums are those of segments. The others, and the direction's lo part, have the sums
 * of the segments that ended: two, each of DIM / 2 floats of a thread. */
enum { SEGMENT_STAGES = 7 };

/* x, a sum of a segment, becomes that of all before it and this one, each times its scale if they have one:
 * scale[0] that of those before. */
static __device__ __forceinline__ void add_segment(float (&x)[4], const float4 &before)
{
    x[0] += before.x, x[1] += before.y, x[2] += before.z, x[3] += before.w;
}
static __device__ __forceinline__ void add_segment(float (&x)[4], const float4 &before,
                                                   const float (&scale)[2][2])
{
    const float total[4] = { before.x, before.y, before.z, before.w };
#pragma unroll
    for (int e = 0; e < 4; e++)
        x[e] = fmaf(x[e], scale[1][e / 2], __fmul_rn(total[e], scale[0][e / 2]));
}

static __device__ __forceinline__ float4 fragment_of(const float (&x)[4])
{
    return make_float4(x[0], x[1], x[2], x[3]);
}

/* The sums of one sweep. Without SEGMENTED, the keys have one segment, whatever their number. */
template <bool SEGMENTED, int DIM, class T> struct segment_sums {
    typedef float sums[DIM / TILE_SIDE][8][4];
    static_assert(!SEGMENTED || DIM == TILE_SIDE, "room for two sums");
    solver_shared<DIM, T> &sm;
    int next, count; /* the key that the next segment begins with; segments that ended */
    bool ended;

    __device__ __forceinline__ segment_sums(solver_shared<DIM, T> &shared, int first)
        : sm(shared), next(-1), count(0), ended(false)
    {
        if (SEGMENTED && sm.segment_tiles > 0) next = first + sm.segment_tiles * TILE_SIDE;
    }
    /* Does a segment end before the tile from key j on? */
    __device__ __forceinline__ bool ends(int j)
    {
        if (!SEGMENTED) return false;
        ended = j == next;
        return ended;
    }
    /* Fragment n of a sum of the segments that ended. */
    __device__ __forceinline__ float4 &before(int which, int n) const
    {
        float4 *const at = (float4 *)(which == 0 ? sm.stage[SEGMENT_STAGES + 1 + n / 4]
                                      : n < 4    ? sm.direction[1]
                                                 : sm.stage[SEGMENT_STAGES]);
        return at[n % 4 * THREADS + threadIdx.x];
    }
    /* Where a segment has ended: its sum is added to those before, and begins again. No product is in
     * flight. */
    template <class... SCALE> __device__ __forceinline__ void end(sums &sum, int which, const SCALE &...scale)
    {
        if (!rarely(ended)) return;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (count > 0) add_segment(sum[0][n], before(which, n), scale...);
            before(which, n) = fragment_of(sum[0][n]);
        }
        clear(sum[0]);
    }
    /* The last segment of a sweep: its sum is added to those before. */
    template <class... SCALE>
    __device__ __forceinline__ void add_all(sums &sum, int which, const SCALE &...scale) const
    {
#pragma unroll
        for (int n = 0; n < 8; n++)
            add_segment(sum[0][n], before(which, n), scale...);
    }
    /* After all sums of a segment that has ended. */
    __device__ __forceinline__ void next_segment()
    {
        if (!rarely(ended)) return;
        count++, next += sm.segment_tiles * TILE_SIDE;
    }
};

/* Sums that are plainly added. */
template <bool SEGMENTED, int DIM, class T> struct plain_sums {
    segment_sums<SEGMENTED, DIM, T> segments;
    float before[2]; /* the total of segments that ended */

    __device__ __forceinline__ plain_sums(solver_shared<DIM, T> &sm, int first)
        : segments(sm, first), before{ 0, 0 }
    {
    }
    /* Before the weights of the tile from key j on are added to total. */
    __device__ __forceinline__ void begin_tile(int j, float (&total)[2])
    {
        if (!rarely(segments.ends(j))) return;
        before[0] += total[0], before[1] += total[1];
        total[0] = total[1] = 0;
    }
    template <class... SUMS> __device__ __forceinline__ void end_segment(SUMS &...sums)
    {
        if constexpr (SEGMENTED) {
            int which = 0;
            (segments.end(sums, which++), ...);
            segments.next_segment();
        }
    }
    /* The end of a sweep: sums and total become those of all segments. */
    template <class... SUMS> __device__ __forceinline__ void finish(float (&total)[2], SUMS &...sums)
    {
        if constexpr (SEGMENTED) {
            if (segments.sm.segment_tiles == 0) return;
            int which = 0;
            total[0] += before[0], total[1] += before[1];
            (segments.add_all(sums, which++), ...);
        }
    }
};

#endif
