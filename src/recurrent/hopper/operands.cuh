/* SPDX-License-Identifier: MIT
 * Operands of matrix products, moved between registers and the tiles of chunks in shared memory (tile
 * and swizzle: hopper.cuh). */
#ifndef LOAM_RECURRENT_HOPPER_OPERANDS_CUH
#define LOAM_RECURRENT_HOPPER_OPERANDS_CUH

#include "src/gpu/hopper.cuh"
#include "src/recurrent/hopper/bf16.cuh"

/* d (+)= A B over 16 rows of B: A by rows, both in shared memory. */
template <class T>
static __device__ __forceinline__ void wgmma_columns(float (&d)[8][4], uint64_t a, uint64_t b, int add)
{
    WGMMA(T, "m64n64k16", "34", "{" WGMMA_REGISTERS_32 "}, %32, %33, p, 1, 1, 0, 1",
          : WGMMA_32(d)
          : "l"(a), "l"(b), "r"(add));
}

/* Sets rows `from` .. 63 of TILES tiles to 0. The work is shared by `threads` threads, of which the
 * caller is number `thread`. */
template <int TILES>
static __device__ __forceinline__ void clear_rows(__nv_bfloat16 *tiles, int from, int thread, int threads)
{
#pragma unroll 1
    for (int e = thread * 8; e < TILES * TILE_ELEMENTS; e += threads * 8)
        if (e % TILE_ELEMENTS >= from * TILE_SIDE) *(uint4 *)(tiles + e) = make_uint4(0, 0, 0, 0);
}

/* Loads the transpose of a 64 x 64 tile as operand A: rows 16 warp .. 16 warp + 15 of the transpose,
 * columns 16 k .. in a[k]. */
static __device__ __forceinline__ void load_transposed(uint32_t (&a)[4][4], const __nv_bfloat16 *tile)
{
    const int lane = threadIdx.x % 32, column = threadIdx.x % 128 / 32 * 16 + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < 4; k++)
        load_matrices_transposed(a[k], tile + swizzled(16 * k + lane / 16 * 8 + lane % 8, column));
}

/* Stores operand A to tiles: the inverse of load_rows. */
template <int STEPS>
static __device__ __forceinline__ void store_operands(__nv_bfloat16 *tiles, const uint32_t (&a)[STEPS][4])
{
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int k = 0; k < STEPS; k++)
        store_matrices(tiles + swizzled(row, 16 * k + lane / 16 * 8), a[k]);
}

/* Stores operand A to a tile: the inverse of load_transposed. `sign` is XORed into each pair:
 * 0x80008000 negates both numbers. */
static __device__ __forceinline__ void store_transposed(__nv_bfloat16 *tile, const uint32_t (&a)[4][4],
                                                        uint32_t sign)
{
    const int lane = threadIdx.x % 32, column = threadIdx.x % 128 / 32 * 16 + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t out[4] = { a[k][0] ^ sign, a[k][1] ^ sign, a[k][2] ^ sign, a[k][3] ^ sign };
        store_matrices_transposed(tile + swizzled(16 * k + lane / 16 * 8 + lane % 8, column), out);
    }
}

/* Rounds an accumulator of 64 TILES columns to bf16, in the layout of operand A. */
template <int TILES>
static __device__ __forceinline__ void round_to_operand(uint32_t (&a)[TILES * 4][4],
                                                        const float (&x)[TILES][8][4])
{
#pragma unroll
    for (int k = 0; k < TILES * 4; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const float *pair = x[k / 4][k % 4 * 2 + e / 2] + e % 2 * 2;
            a[k][e] = pack_bf16(pair[0], pair[1]);
        }
    }
}

/* Calls use(x, row, column) for the elements of the state that a thread has: two columns of every
 * eight, in one row (ELEMENTS = 2) or in two rows that are eight apart (4). Row and column are
 * relative to the thread block's. */
template <int BLOCKS, int ELEMENTS, class F>
static __device__ __forceinline__ void for_each_element(float (&state)[BLOCKS][ELEMENTS], F use)
{
    const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * (ELEMENTS * 4) + lane / 4,
              column = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < BLOCKS; n++) {
#pragma unroll
        for (int e = 0; e < ELEMENTS; e++)
            use(state[n][e], row + e / 2 * 8, 8 * n + column + e % 2);
    }
}

#endif
