/* SPDX-License-Identifier: MIT
 * Scores that decay (FoX) on Hopper. G: the running sums of the log decays of a head, to base 2, as pairs
 * hi + lo (local/decay.h). A score gains G_row - G_key. */
#ifndef LOAM_LOCAL_HOPPER_DECAY_CUH
#define LOAM_LOCAL_HOPPER_DECAY_CUH

#include "src/local/cuda/common.cuh"
#include "src/local/hopper/tile.cuh"

/* G of KEYS consecutive keys in shared memory. Bulk copies start at an even index, for 16 bytes of alignment:
 * where the index of the first key is odd, its G is the second entry. */
template <bool DECAYED, int KEYS> struct decay_tile {
    alignas(16) local_decay_pair pair[KEYS + 2];
    static constexpr unsigned bytes = (KEYS + 2) * sizeof(local_decay_pair);
    static_assert(bytes % 16 == 0, "bulk copies are of multiples of 16 bytes");
};
template <int KEYS> struct decay_tile<false, KEYS> {
    static constexpr unsigned bytes = 0;
};

/* The type of what scores read of a decay_tile; no_decay where scores do not decay. */
struct no_decay {
};
template <int KEYS>
static __device__ __forceinline__ const local_decay_pair *decay_of(const decay_tile<true, KEYS> &tile)
{
    return tile.pair;
}
template <int KEYS>
static __device__ __forceinline__ const no_decay *decay_of(const decay_tile<false, KEYS> &)
{
    return NULL;
}

/* The index in args.log_decay of G of the first key of a sequence. */
static __device__ __forceinline__ int64_t decay_origin(const loam_args &a, const local_seq &s, int64_t h)
{
    return LOCAL_AT(a.log_decay, s.b, h, s.k0);
}

/* Copies G of the keys from index `at` of args.log_decay on; completes on `full`. */
template <int KEYS>
static __device__ __forceinline__ void copy_decay(decay_tile<true, KEYS> &tile, const loam_args &a,
                                                  int64_t at, uint64_t *full)
{
    load_bytes(tile.pair, (const local_decay_pair *)a.log_decay.data + (at & ~(int64_t)1), tile.bytes, full);
}
template <int KEYS>
static __device__ __forceinline__ void copy_decay(decay_tile<false, KEYS> &, const loam_args &, int64_t,
                                                  uint64_t *)
{
}

/* G of the keys of a sequence. */
static __device__ __forceinline__ const local_decay_pair *decay_sums(const loam_args &a, const local_seq &s,
                                                                     int64_t h)
{
    return (const local_decay_pair *)a.log_decay.data + decay_origin(a, s, h);
}

/* G at a row that sees keys below `hi`: that of its last key, or of the first key for rows that see none. */
static __device__ __forceinline__ local_decay_pair row_decay(const local_decay_pair *sums, int hi)
{
    return sums[hi > 0 ? hi - 1 : 0];
}

static __device__ __forceinline__ float decay_log2(const local_decay_pair &query, const local_decay_pair &key)
{
    return (query.hi - key.hi) + (query.lo - key.lo);
}

/* Products s = q . k become scores to base 2: s scale2 + G_row - G_key. */
template <int BLOCKS>
static __device__ __forceinline__ void decay_scores(float (&s)[BLOCKS][4], const local_decay_pair *keys,
                                                    const local_decay_pair (&row)[2],
                                                    const float (&scale2)[2])
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = fmaf(s[n][e], scale2[e / 2], decay_log2(row[e / 2], keys[column_of(n, e)]));
    }
}

/* Keys relative to the last one of their tile: lost[j] = G_last - G_j, and last = G_last. */
template <bool DECAYED, int KEYS> struct relative_decay {
    alignas(16) float to_last[KEYS];
    local_decay_pair last;
};
template <int KEYS> struct relative_decay<false, KEYS> {
};

/* A warp fills a relative_decay, KEYS / 32 keys a lane. Keys from `end` on are replaced by key end - 1. */
template <int KEYS> struct relative_decay_keys {
    static constexpr int per_lane = KEYS / 32;
    local_decay_pair own[per_lane];
    __device__ __forceinline__ relative_decay_keys(const local_decay_pair *sums, int j, int end)
    {
#pragma unroll
        for (int n = 0; n < per_lane; n++)
            own[n] = sums[min(j + (int)(threadIdx.x % 32) * per_lane + n, end - 1)];
    }
    __device__ __forceinline__ void store(relative_decay<true, KEYS> &tile) const
    {
        const local_decay_pair last = { __shfl_sync(0xffffffffu, own[per_lane - 1].hi, 31),
                                        __shfl_sync(0xffffffffu, own[per_lane - 1].lo, 31) };
#pragma unroll
        for (int n = 0; n < per_lane; n++)
            tile.to_last[threadIdx.x % 32 * per_lane + n] = decay_log2(last, own[n]);
        if (threadIdx.x % 32 == 0) tile.last = last;
    }
};

/* decay_scores for a tile of which the rows see every key, as s + from: s = q . k scale2 + G_last - G_key and
 * from = G_row - G_last. */
template <int KEYS, int BLOCKS>
static __device__ __forceinline__ void relative_scores(float (&s)[BLOCKS][4],
                                                       const relative_decay<true, KEYS> &tile,
                                                       const local_decay_pair (&row)[2], float scale2,
                                                       float (&offset)[2])
{
    const local_decay_pair last = tile.last;
    offset[0] = decay_log2(row[0], last), offset[1] = decay_log2(row[1], last);
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
        const float2 to_last = *(const float2 *)(tile.to_last + column_of(n, 0));
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = fmaf(s[n][e], scale2, e % 2 ? to_last.y : to_last.x);
    }
}

#endif
