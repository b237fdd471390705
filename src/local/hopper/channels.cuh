/* SPDX-License-Identifier: MIT
 * Channels of rows in global memory, of which tiles may have more than the arrays. */
#ifndef LOAM_LOCAL_HOPPER_CHANNELS_CUH
#define LOAM_LOCAL_HOPPER_CHANNELS_CUH

#include "src/gpu/tile.cuh"

/* Stores channels c and c + 1 of a row, of those `channels` that it has; in one access where its address is
 * aligned. */
template <class T>
static __device__ __forceinline__ void store_channels(T *row, int c, int channels, float x, float y)
{
    const uint32_t pair = pack_pair<T>(x, y);
    if (c + 1 < channels && (uintptr_t)row % 4 == 0) {
        *(uint32_t *)(row + c) = pair;
    } else {
        if (c < channels) ((uint16_t *)row)[c] = (uint16_t)pair;
        if (c + 1 < channels) ((uint16_t *)row)[c + 1] = (uint16_t)(pair >> 16);
    }
}

/* The same of float16 where `is_f16`, else of bfloat16. */
static __device__ __forceinline__ void store_channels(uint16_t *row, bool is_f16, int c, int channels,
                                                      float x, float y)
{
    if (is_f16)
        store_channels((__half *)row, c, channels, x, y);
    else
        store_channels((__nv_bfloat16 *)row, c, channels, x, y);
}

#endif
