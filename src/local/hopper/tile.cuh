/* SPDX-License-Identifier: MIT
 * What the kernels for Hopper share beside arithmetic: bulk copies of tiles, stores of bf16 pairs, and
 * indices that are the same in all lanes of a warp. */
#ifndef LOAM_LOCAL_HOPPER_TILE_CUH
#define LOAM_LOCAL_HOPPER_TILE_CUH

#include "src/gpu/hopper.cuh"

/* Issues the copies of DIM / 64 boxes of the map, each of TOKENS rows by 64 channels from `column` on, side by
 * side into a tile; they complete on `full`. */
template <int DIM, int TOKENS = TILE_SIDE, class T>
static __device__ __forceinline__ void load_tile(T *tile, const CUtensorMap &map, uint64_t *full, int token,
                                                 int h, int b, int column = 0)
{
#pragma unroll
    for (int c = 0; c < DIM; c += TILE_SIDE)
        load_box(tile + c * TOKENS, &map, full, column + c, token, h, b);
}

/* Stores two neighbours of a row of bf16, in one access where the address is aligned. */
static __device__ __forceinline__ void store_bf16_pair(__nv_bfloat16 *to, float x, float y)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    if ((uintptr_t)to % 4 == 0)
        *(__nv_bfloat162 *)to = pair;
    else
        to[0] = pair.x, to[1] = pair.y;
}

/* Tells the compiler that x is the same in all lanes: descriptors made from x then cost the lanes nothing. */
static __device__ __forceinline__ unsigned warp_uniform(unsigned x)
{
    return __reduce_max_sync(0xffffffffu, x);
}

#endif
