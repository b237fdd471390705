/* SPDX-License-Identifier: MIT
 * Rows of gradients from the layout of products to memory, in pieces of 16 bytes where they have such. */
#ifndef LOAM_LOCAL_HOPPER_ROW_STORE_CUH
#define LOAM_LOCAL_HOPPER_ROW_STORE_CUH

#include "src/local/hopper/channels.cuh"
#include "src/local/local.h"

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

/* Stores the pairs of a row that the thread has, of channels column + 8 n and two for each lane of four, in
 * the layout of products. All lanes of the warp call it; rows that are not `stored` are left out. pieces:
 * rows_are_pieces. */
template <class T, int BLOCKS>
static __device__ __forceinline__ void store_row(T *row, bool stored, bool pieces, int column, int channels,
                                                 const float2 (&x)[BLOCKS])
{
    const int lane = threadIdx.x % 4;
    if (!pieces) {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++)
            if (stored) store_channels(row, column + 8 * n + 2 * lane, channels, x[n].x, x[n].y);
        return;
    }
#pragma unroll
    for (int n = 0; n < BLOCKS; n += 4) {
        uint32_t word[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            word[k] = pack_pair<T>(x[n + k].x, x[n + k].y);
        transpose_quad(word);
        const int c = column + 8 * (n + lane);
        if (stored && c < channels) *(uint4 *)(row + c) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

#endif
