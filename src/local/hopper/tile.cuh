/* SPDX-License-Identifier: MIT
 * What the kernels for Hopper share beside arithmetic: bulk copies of tiles, stores of bf16 pairs, and
 * indices that are the same in all lanes of a warp. */
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

/* Stores two neighbours of a row of bf16, in one access where the address is aligned. */
static __device__ __forceinline__ void store_bf16_pair(__nv_bfloat16 *to, float x, float y)
{
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    if ((uintptr_t)to % 4 == 0)
        *(__nv_bfloat162 *)to = pair;
    else
        to[0] = pair.x, to[1] = pair.y;
}

/* The same of columns c and c + 1 of a row, which has `columns`. */
static __device__ __forceinline__ void store_bf16_columns(__nv_bfloat16 *row, int c, int64_t columns, float x,
                                                          float y)
{
    if (c + 1 < columns)
        store_bf16_pair(row + c, x, y);
    else if (c < columns)
        row[c] = __float2bfloat16_rn(x);
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

/* Tells the compiler that x is the same in all lanes: descriptors made from x then cost the lanes nothing. */
static __device__ __forceinline__ unsigned warp_uniform(unsigned x)
{
    return __reduce_max_sync(0xffffffffu, x);
}

#endif
