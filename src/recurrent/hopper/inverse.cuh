/* SPDX-License-Identifier: MIT
 *
 * The inverse Linv of L = I + Diag(beta) A of a chunk, 64 x 64, and products with it. A
 * (recurrent/hopper/prepare.cuh) is strictly lower triangular. L is split into blocks of 16 x 16,
 * L[I,J] in block row I and block column J. Diagonal blocks are inverted by forward
 * substitution, the others follow from
 *
 *     Linv[I,J] = -Linv[I,I] sum_{J<=M<I} L[I,M] Linv[M,J]
 *
 * by products of three bf16 parts, which are as exact as float32. A series of powers of the whole matrix
 * Diag(beta) A would lose accuracy: the powers grow before they vanish.
 */
#ifndef LOAM_RECURRENT_HOPPER_INVERSE_CUH
#define LOAM_RECURRENT_HOPPER_INVERSE_CUH

#include "src/recurrent/hopper/chunks.cuh"

/* The square is a 64 x 64 matrix of floats in shared memory, with rows SQUARE_PITCH apart. */
enum { SQUARE_PITCH = TILE_SIDE + PAD, SQUARE_ELEMENTS = TILE_SIDE * SQUARE_PITCH };

/* Inverts the diagonal block of the warp in place by forward substitution; lanes 0 ..
 * 15 have one column each. */
static __device__ __forceinline__ void invert_diagonal_block(float *square)
{
    float *block = square + threadIdx.x / 32 * BLOCK_TOKENS * (SQUARE_PITCH + 1);
    const int column = threadIdx.x % BLOCK_TOKENS;
    float x[BLOCK_TOKENS];
#pragma unroll
    for (int i = 0; i < BLOCK_TOKENS; i++) {
        x[i] = i == column ? 1 : 0;
#pragma unroll
        for (int m = 0; m < i; m += 4) {
            const float4 l = *(const float4 *)(block + i * SQUARE_PITCH + m);
            const float part[4] = { l.x, l.y, l.z, l.w };
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (m + n < i) x[i] -= part[n] * x[m + n];
        }
    }
    __syncwarp();
    if (threadIdx.x % 32 < BLOCK_TOKENS) {
#pragma unroll
        for (int i = 0; i < BLOCK_TOKENS; i++)
            block[i * SQUARE_PITCH + column] = x[i];
    }
}

/* Splits an accumulator of a warp, 16 x 16, into operand A of three bf16 parts. */
static __device__ __forceinline__ void split_operand(operand_a<3> &a, const float (&x)[2][4])
{
#pragma unroll
    for (int e = 0; e < 4; e++) {
        uint32_t part[3];
        split_pair(part, x[e / 2][e % 2 * 2], x[e / 2][e % 2 * 2 + 1]);
        a.part[0][e] = part[0], a.part[1][e] = part[1], a.part[2][e] = part[2];
    }
}

/* d += a B^T, B the block (row, column) of the square. */
static __device__ __forceinline__ void multiply_block(float (&d)[2][4], const operand_a<3> &a,
                                                      const float *square, int row, int column)
{
    operand_b<3> b[2];
    load_b_rows<SQUARE_PITCH>(b, square, row * BLOCK_TOKENS, column * BLOCK_TOKENS);
    mma(d[0], a, b[0]);
    mma(d[1], a, b[1]);
}

/* Replaces L by Linv. square: L below the diagonal, 0 above it; the unit diagonal is implied. 128 threads.
 * Warp J computes block column J of Linv, from the diagonal down. It computes the blocks transposed, because
 * an accumulator then is an operand A of later products. */
static __device__ __forceinline__ void invert(float *square)
{
    const int J = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    __syncwarp();
    invert_diagonal_block(square);
    __syncthreads();
    operand_a<3> y[3];
    float below[3][2][4], linv[2][4];
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            linv[n][e] = square[(J * BLOCK_TOKENS + 8 * n + 2 * t + e % 2) * SQUARE_PITCH + J * BLOCK_TOKENS +
                                g + e / 2 * 8];
        }
    }
    split_operand(y[0], linv);
#pragma unroll
    for (int s = 0; s < 3; s++) {
        const int I = J + 1 + s;
        clear(below[s]);
        if (I < TILE_SIDE / BLOCK_TOKENS) {
            float sum[2][4];
            clear(sum);
#pragma unroll
            for (int r = 0; r <= s; r++)
                multiply_block(sum, y[r], square, I, J + r);
            operand_a<3> negative;
#pragma unroll
            for (int n = 0; n < 2; n++) {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[n][e] = -sum[n][e];
            }
            split_operand(negative, sum);
            multiply_block(below[s], negative, square, I, I);
            if (s < 2) split_operand(y[s + 1], below[s]);
        }
    }
    __syncthreads();
#pragma unroll
    for (int s = 0; s < 3; s++) {
        const int I = J + 1 + s;
#pragma unroll
        for (int n = 0; n < 2 && I < TILE_SIDE / BLOCK_TOKENS; n++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                square[(I * BLOCK_TOKENS + 8 * n + 2 * t + e % 2) * SQUARE_PITCH + J * BLOCK_TOKENS + g +
                       e / 2 * 8] = below[s][n][e];
            }
        }
    }
    __syncthreads();
}

/* m = square Diag(factor), the 16 rows of the warp as operand A in hi and lo part: one part alone would add
 * its rounding to the products. */
static __device__ __forceinline__ void scale_square(weights_operand<2> &m, const float *square,
                                                    const float *factor)
{
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int column = 16 * k + threadIdx.x % 4 * 2 + e / 2 * 8;
            const float2 x = *(const float2 *)(square + (row + e % 2 * 8) * SQUARE_PITCH + column),
                         f = *(const float2 *)(factor + column);
            uint32_t part[2];
            split_pair(part, x.x * f.x, x.y * f.y);
            m.part[0][k][e] = part[0], m.part[1][k][e] = part[1];
        }
    }
}

/* out = m tile, or m (tile + lo) without the product of lo parts; 64 columns. Waits for the result. */
template <bool LO>
static __device__ __forceinline__ void multiply_linv(float (&out)[1][8][4], const weights_operand<2> &m,
                                                     const __nv_bfloat16 *tile, const __nv_bfloat16 *lo)
{
    clear(out[0]);
    wgmma_fence();
    if (LO) more_weights<TILE_SIDE>(out, m.part[0], lo);
    more_weights<TILE_SIDE>(out, m.part[1], tile);
    more_weights<TILE_SIDE>(out, m.part[0], tile);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_results(out[0]);
}

#endif
