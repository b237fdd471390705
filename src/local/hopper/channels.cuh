/* SPDX-License-Identifier: MIT
 * Channels of rows in global memory, of which tiles may have more than the arrays. */
#ifndef LOAM_LOCAL_HOPPER_CHANNELS_CUH
#define LOAM_LOCAL_HOPPER_CHANNELS_CUH

#include "include/loam.h"
#include "src/gpu/tile.cuh"

/* Stores channels c and c + 1 of a row, of those `channels` that it has; in one access where its address is
 * aligned. */
template <class T>
static __device__ __forceinline__ void store_channels(T *row, int c, int channels, uint32_t pair)
{
    if (c + 1 < channels && (uintptr_t)row % 4 == 0) {
        *(uint32_t *)(row + c) = pair;
    } else {
        if (c < channels) ((uint16_t *)row)[c] = (uint16_t)pair;
        if (c + 1 < channels) ((uint16_t *)row)[c + 1] = (uint16_t)(pair >> 16);
    }
}

template <class T>
static __device__ __forceinline__ void store_channels(T *row, int c, int channels, float x, float y)
{
    store_channels(row, c, channels, pack_pair<T>(x, y));
}

/* Whether rows of a view, of so many channels, are whole pieces of 16 bytes at multiples of 16 bytes. */
static __device__ __forceinline__ bool rows_are_pieces(const loam_view &to, int channels)
{
    return ((uintptr_t)to.data % 16 | (to.batch | to.head | to.token | channels) % 8) == 0;
}

/* Of four words of each of the four lanes of a row, word n of lane t becomes word t of lane n. */
static __device__ __forceinline__ void transpose_quad(uint32_t (&word)[4])
{
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n & step) continue;
            const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? word[n] : word[n + step], step);
            word[n] = upper ? got : word[n];
            word[n + step] = upper ? word[n + step] : got;
        }
    }
}

/* Stores the pairs of a row that the thread has, pair(n) for channels column + 8 n and two for each lane of
 * four, in the layout of products. All lanes of the warp call it; rows that are not `stored` are left out.
 * pieces: rows_are_pieces. */
template <class T, int BLOCKS, class F>
static __device__ __forceinline__ void store_row(T *row, bool stored, bool pieces, int column, int channels,
                                                 F pair)
{
    const int lane = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < BLOCKS; n += 4) {
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float2 x = pair(n + k);
            word[k] = pack_pair<T>(x.x, x.y);
        }
        if (pieces) {
            const int c = column + 8 * (n + lane);
            transpose_quad(word);
            if (stored && c < channels) *(uint4 *)(row + c) = make_uint4(word[0], word[1], word[2], word[3]);
        } else if (stored) {
#pragma unroll
            for (int k = 0; k < 4; k++)
                store_channels(row, column + 8 * (n + k) + 2 * lane, channels, word[k]);
        }
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
