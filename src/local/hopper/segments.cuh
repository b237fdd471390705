/* SPDX-License-Identifier: MIT
 * Sums over the keys of a block of rows, made of those of segments of the keys, which are added in order. How
 * many segments a block has follows from its keys alone. One thread block may sum all segments, one after
 * another, or the thread blocks of a cluster one each: the bits are the same. */
#ifndef LOAM_LOCAL_HOPPER_SEGMENTS_CUH
#define LOAM_LOCAL_HOPPER_SEGMENTS_CUH

#include "src/gpu/cluster.cuh"
#include "src/local/hopper/stream.cuh"

/* Keys of blocks with fewer tiles are one segment. */
enum { SEGMENTED_TILES = 24 };

/* The keys of a block. */
struct key_segments {
    int tiles;     /* of each segment but the last; 0: there is one segment */
    int own;       /* the segment of this thread block, where a cluster has them */
    bool shared;   /* a cluster has the segments, one each */
    unsigned turn; /* from a slot to the part in use */
    /* Of the thread blocks of a cluster: what they have summed, in three parts of a sweep each. */
    float4 *slot[SEGMENTS];

    /* Does this thread block write results? */
    __device__ __forceinline__ bool writes() const { return !shared || own == 0; }
};

template <int DIM, class T> struct solver_shared;

/* Stages of the ring where sums are those of segments. The others, and the direction's lo part, have the sums
 * of the segments that ended: two, each of DIM / 2 floats of a thread. */
enum { SEGMENT_STAGES = 7 };

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
        if (SEGMENTED && sm.segments.tiles > 0 && !sm.segments.shared)
            next = first + sm.segments.tiles * TILE_SIDE;
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
    static __device__ __forceinline__ float4 fragment(const float (&x)[4])
    {
        return make_float4(x[0], x[1], x[2], x[3]);
    }
    /* x, the sum of a segment, becomes that of all before it and this one, each times its scale if they have
     * one. */
    static __device__ __forceinline__ void add(float (&x)[4], const float4 &sum)
    {
        x[0] += sum.x, x[1] += sum.y, x[2] += sum.z, x[3] += sum.w;
    }
    static __device__ __forceinline__ void add(float (&x)[4], const float4 &sum, const float (&scale)[2][2])
    {
        const float total[4] = { sum.x, sum.y, sum.z, sum.w };
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[e] = fmaf(x[e], scale[1][e / 2], __fmul_rn(total[e], scale[0][e / 2]));
    }
    /* Where a segment has ended: its sum is added to those before, and begins again. No product is in
     * flight. */
    template <class... SCALE> __device__ __forceinline__ void end(sums &sum, int which, const SCALE &...scale)
    {
        if (!rarely(ended)) return;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            if (count > 0) add(sum[0][n], before(which, n), scale...);
            before(which, n) = fragment(sum[0][n]);
        }
        clear(sum[0]);
    }
    /* The last segment of a sweep: its sum is added to those before. */
    template <class... SCALE>
    __device__ __forceinline__ void add_all(sums &sum, int which, const SCALE &...scale) const
    {
#pragma unroll
        for (int n = 0; n < 8; n++)
            add(sum[0][n], before(which, n), scale...);
    }
    /* After all sums of a segment that has ended. */
    __device__ __forceinline__ void next_segment()
    {
        if (!rarely(ended)) return;
        count++, next += sm.segments.tiles * TILE_SIDE;
    }
    /* Fragment n of what a segment of the cluster has to tell; 16 and 17: numbers. */
    __device__ __forceinline__ float4 *part(int segment, int n) const
    {
        float4 *const at = sm.segments.slot[segment] + sm.segments.turn + n * THREADS + threadIdx.x;
        __builtin_assume(__isGlobal(at));
        return at;
    }
    __device__ __forceinline__ void tell(const sums &sum, int which) const
    {
#pragma unroll
        for (int n = 0; n < 8; n++)
            *part(sm.segments.own, 8 * which + n) = fragment(sum[0][n]);
    }
    /* A sum of all segments, from those of the cluster; scale, where it is given: of the sum of those before
     * each, and of each. */
    template <class... SCALE>
    __device__ __forceinline__ void gather(sums &sum, int which, unsigned turn, const SCALE &...scale) const
    {
        const float4 *at[SEGMENTS];
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++)
            at[s] = sm.segments.slot[s] + turn + threadIdx.x + 8 * which * THREADS;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            float4 x[SEGMENTS];
#pragma unroll
            for (int s = 0; s < SEGMENTS; s++)
                x[s] = __ldcg(at[s] + n * THREADS);
            float4 total = x[0];
#pragma unroll
            for (int s = 1; s < SEGMENTS; s++) {
                float own[4] = { x[s].x, x[s].y, x[s].z, x[s].w };
                add(own, total, scale[s]...);
                total = fragment(own);
            }
            sum[0][n][0] = total.x, sum[0][n][1] = total.y, sum[0][n][2] = total.z, sum[0][n][3] = total.w;
        }
    }
    /* The segments of all thread blocks of a cluster are complete; where they lie. A part is written again
     * two sweeps later: all have read it by then. */
    __device__ __forceinline__ unsigned meet() const
    {
        const unsigned turn = sm.segments.turn;
        cluster_sync();
        if (threadIdx.x == 0) sm.segments.turn = turn < 2 * SEGMENT_SLOT ? turn + SEGMENT_SLOT : 0;
        return turn;
    }
    __device__ __forceinline__ float4 numbers(int segment, int n, unsigned turn) const
    {
        return __ldcg(sm.segments.slot[segment] + turn + (16 + n) * THREADS + threadIdx.x);
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
            if (segments.sm.segments.tiles == 0) return;
            if (segments.sm.segments.shared)
                gather(total, sums...);
            else
                add_last(total, sums...);
        }
    }
    template <class... SUMS> __device__ __forceinline__ void gather(float (&total)[2], SUMS &...sums)
    {
        int which = 0;
        (segments.tell(sums, which++), ...);
        *segments.part(segments.sm.segments.own, 16) = make_float4(total[0], total[1], 0, 0);
        const unsigned turn = segments.meet();
        total[0] = total[1] = 0;
#pragma unroll
        for (int s = 0; s < SEGMENTS; s++) {
            const float4 x = segments.numbers(s, 0, turn);
            total[0] += x.x, total[1] += x.y;
        }
        which = 0;
        (segments.gather(sums, which++, turn), ...);
    }
    template <class... SUMS> __device__ __forceinline__ void add_last(float (&total)[2], SUMS &...sums)
    {
        int which = 0;
        total[0] += before[0], total[1] += before[1];
        (segments.add_all(sums, which++), ...);
    }
};

#endif
