/* SPDX-License-Identifier: MIT
 * Scores that decay on Hopper: G (local_decay.h, to base 2) of a tile of keys in shared memory. */
#ifndef LOAM_LOCAL_LOCAL_DECAY_SM90_CUH
#define LOAM_LOCAL_LOCAL_DECAY_SM90_CUH

#include "src/gpu/hopper.cuh"
#include "src/local/local_cuda.cuh"

/* G of KEYS keys from any key on. Copies begin at pairs of them: where the first is odd it comes second. */
template <bool DECAYED, int KEYS> struct decay_tile {
    alignas(16) local_decay_pair pair[KEYS + 2];
    static constexpr unsigned bytes = (KEYS + 2) * sizeof(local_decay_pair);
    static_assert(bytes % 16 == 0, "what copies take");
};
template <int KEYS> struct decay_tile<false, KEYS> {
    static constexpr unsigned bytes = 0;
};

/* What scores read of a tile. */
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

/* Where G of the first key of a sequence lies among the sums of all. */
static __device__ __forceinline__ int64_t decay_origin(const loam_args &a, const local_seq &s, int64_t h)
{
    return LOCAL_AT(a.log_decay, s.b, h, s.k0);
}

/* G of the keys from `at` on, counted over all heads, as part of what `full` waits for. */
template <int KEYS>
static __device__ __forceinline__ void copy_decay(decay_tile<true, KEYS> &tile, const loam_args &a,
                                                  int64_t at, uint64_t *full)
{
    copy_row(tile.pair, (const local_decay_pair *)a.log_decay.data + (at & ~(int64_t)1), tile.bytes, full);
}
template <int KEYS>
static __device__ __forceinline__ void copy_decay(decay_tile<false, KEYS> &, const loam_args &, int64_t,
                                                  uint64_t *)
{
}

/* G at the row's place; that of the first key for rows that see none. */
static __device__ __forceinline__ local_decay_pair row_decay(const loam_args &a, int64_t origin, int hi)
{
    return ((const local_decay_pair *)a.log_decay.data)[origin + (hi > 0 ? hi - 1 : 0)];
}

/* Products q . k become scores to base 2. odd: of the tile's first key. */
template <int KEYS, int BLOCKS>
static __device__ __forceinline__ void decay_scores(float (&s)[BLOCKS][4], const decay_tile<true, KEYS> &tile,
                                                    int odd, const local_decay_pair (&row)[2], float scale2)
{
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const local_decay_pair key = tile.pair[odd + column_of(n, e)];
            s[n][e] = fmaf(s[n][e], scale2, (row[e / 2].hi - key.hi) + (row[e / 2].lo - key.lo));
        }
    }
}

#endif
