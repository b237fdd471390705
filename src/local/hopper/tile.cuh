/* SPDX-License-Identifier: MIT
 * What the kernels for Hopper share beside arithmetic: bulk copies of tiles, pairs of numbers in memory,
 * and indices that are the same in all lanes of a warp. */
#ifndef LOAM_LOCAL_HOPPER_TILE_CUH
#define LOAM_LOCAL_HOPPER_TILE_CUH

#include "src/gpu/hopper.cuh"

/* Issues the copies of DIM / 64 boxes of the map, each of TOKENS rows by 64 channels from `column` on, side
 * by side into a tile; they complete on `full`. */
template <int DIM, int TOKENS = TILE_SIDE, class T>
static __device__ __forceinline__ void load_tile(T *tile, const CUtensorMap &map, uint64_t *full, int token,
                                                 int h, int b, int column = 0)
{
#pragma unroll
    for (int c = 0; c < DIM; c += TILE_SIDE)
        load_box(tile + c * TOKENS, &map, full, column + c, token, h, b);
}

/* A pair of numbers of a problem: of float16 where `is_f16`, else of bfloat16. */
static __device__ __forceinline__ float2 unpack_16_bits(uint32_t pair, bool is_f16)
{
    return is_f16 ? unpack_pair<__half>(pair) : unpack_pair<__nv_bfloat16>(pair);
}

/* Stores x and y as columns c and c + 1 of row `line` of `data`, whose rows are dense and have `columns`. */
static __device__ __forceinline__ void save_pair(void *data, int64_t line, int c, int64_t columns, float x,
                                                 float y)
{
    float *to = (float *)data + line * columns + c;
    if (columns % 2 == 0) {
        if (c < columns) *(float2 *)to = { x, y };
    } else {
        if (c < columns) to[0] = x;
        if (c + 1 < columns) to[1] = y;
    }
}

/* The two again; zeros beyond the columns. */
static __device__ __forceinline__ float2 load_pair(const void *data, int64_t line, int c, int64_t columns)
{
    const float *const from = (const float *)data + line * columns + c;
    if (columns % 2 == 0) return c < columns ? *(const float2 *)from : make_float2(0, 0);
    return { c < columns ? from[0] : 0, c + 1 < columns ? from[1] : 0 };
}

/* Tells the compiler that x is the same in all lanes: descriptors made from x then cost the lanes nothing. */
static __device__ __forceinline__ unsigned warp_uniform(unsigned x)
{
    return __reduce_max_sync(0xffffffffu, x);
}

/* The same of where a tile in shared memory lies, with more than 128 channels: there a scheduler has one
 * warp, which waits for each descriptor. All lanes call it. */
template <int DIM, class T> static __device__ __forceinline__ T *operand_tile(T *tile)
{
    return DIM <= 128 ? tile : (T *)__cvta_shared_to_generic(warp_uniform((unsigned)shared_address(tile)));
}

#endif
