/* SPDX-License-Identifier: MIT
 *
 * A chunk of MesaNet that forgets nothing. With A = H0 + Lambda its systems are nested, and two factors serve them all
 * (docs/recurrent.md), here in coordinates where A is 1:
 *
 *     N A N^T = 1,   Z = Diag(sqrt(beta)) K N^T,   R R^T = 1 + Z Z^T,   Y = R^-1 Z
 *     x_t = N^T (p_t - sum_{j<=t} (p_t . y_j) y_j),   p = N b_t
 *
 * N is the inverse of the triangular factor of A. Both factors are found by elimination in float32; products take N and Y in two bf16
 * parts, which leaves a residual of some 2^-17 sqrt(cond A), and a second step is taken from there where that is too much. */
#ifndef LOAM_RECURRENT_MESA_NESTED_SM90_CUH
#define LOAM_RECURRENT_MESA_NESTED_SM90_CUH

#include "src/recurrent/recurrent_mesa_system_sm90.cuh"

/* What a thread has of a square while it is eliminated: rows 8 (thread / 16) on, columns 4 (thread % 16) on. */
typedef float mesa_patch[8][4];

/* c <- D^-1/2 L^-1 c, b = L D L^T, which is lost. b is symmetric: its row of the pivot is the column too. A pivot that is not positive
 * makes what follows NaN. */
static __device__ __forceinline__ void mesa_eliminate(mesa_patch &b, mesa_patch &c, mesa_solve_stage &stage)
{
    const int group = threadIdx.x / 16, column = (int)threadIdx.x % 16 * 4;
    float own[8];
#pragma unroll 1
    for (int k0 = 0; k0 < MESA_DIM; k0 += 8) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float(&row)[2][MESA_DIM] = stage.pivots[i % 2];
            if (8 * group == k0) {
                *(float4 *)&row[0][column] = make_float4(b[i][0], b[i][1], b[i][2], b[i][3]);
                *(float4 *)&row[1][column] = make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
            }
            __syncthreads();
            if (k0 + i < 16 * ((int)threadIdx.x / 32 + 1)) { /* rows of the warp are left */
                const float pivot = row[0][k0 + i], over = 1 / pivot;
                const float4 along = *(const float4 *)&row[0][column], side = *(const float4 *)&row[1][column];
                const float4 low = *(const float4 *)&row[0][8 * group],
                             high = *(const float4 *)&row[0][8 * group + 4];
                const float across[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
                if (8 * group == k0) {
                    own[i] = pivot;
                }
#pragma unroll
                for (int r = 0; r < 8; r++) {
                    const float factor = 8 * group + r > k0 + i ? -across[r] * over : 0;
                    b[r][0] = fmaf(factor, along.x, b[r][0]), b[r][1] = fmaf(factor, along.y, b[r][1]);
                    b[r][2] = fmaf(factor, along.z, b[r][2]), b[r][3] = fmaf(factor, along.w, b[r][3]);
                    c[r][0] = fmaf(factor, side.x, c[r][0]), c[r][1] = fmaf(factor, side.y, c[r][1]);
                    c[r][2] = fmaf(factor, side.z, c[r][2]), c[r][3] = fmaf(factor, side.w, c[r][3]);
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const float factor = rsqrtf(own[r]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            c[r][n] *= factor;
        }
    }
}

static __device__ __forceinline__ void mesa_put_patch(mesa_tile (&to)[2], const mesa_patch &c)
{
    const int row = (int)threadIdx.x / 16 * 8, column = (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        uint32_t low[2], high[2];
        split_pair(low, c[r][0], c[r][1]), split_pair(high, c[r][2], c[r][3]);
#pragma unroll
        for (int part = 0; part < 2; part++) {
            *(uint2 *)&to[part][row + r][column] = make_uint2(low[part], high[part]);
        }
    }
}

static __device__ __forceinline__ void mesa_load_patch(mesa_patch &c, const mesa_tile (&from)[2])
{
    const int row = (int)threadIdx.x / 16 * 8, column = (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const uint2 high = *(const uint2 *)&from[0][row + r][column],
                    low = *(const uint2 *)&from[1][row + r][column];
        c[r][0] = __uint_as_float(high.x << 16) + __uint_as_float(low.x << 16);
        c[r][1] = __uint_as_float(high.x & 0xffff0000u) + __uint_as_float(low.x & 0xffff0000u);
        c[r][2] = __uint_as_float(high.y << 16) + __uint_as_float(low.y << 16);
        c[r][3] = __uint_as_float(high.y & 0xffff0000u) + __uint_as_float(low.y & 0xffff0000u);
    }
}

/* N and Y of a chunk whose keys are there; H: [64][64] before it. */
static __device__ __forceinline__ void mesa_factor(mesa_solve_stage &stage, const float *H)
{
    const int lane = threadIdx.x % 32, m = (int)threadIdx.x / 32 * 16, t0 = m + lane / 4, t2 = lane % 4 * 2;
    const int row = (int)threadIdx.x / 16 * 8, column = (int)threadIdx.x % 16 * 4;
    mesa_patch b, c;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const float4 h = *(const float4 *)(H + (row + r) * MESA_DIM + column);
        const float of[4] = { h.x, h.y, h.z, h.w };
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const bool diagonal = row + r == column + n;
            b[r][n] = of[n] + (diagonal ? stage.ridge[column + n] : 0);
            c[r][n] = diagonal;
        }
    }
    mesa_eliminate(b, c, stage);
    mesa_put_patch(stage.whiten, c);
    __syncthreads();
    {
        mesa_rows z = {}, g = {};
        const float write[2] = { sqrtf(stage.write[t0]), sqrtf(stage.write[t0 + 8]) };
        mesa_given<true, 2>(z, stage.k, stage.whiten, m);
        mesa_scale(z, write);
#pragma unroll
        for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
            uint32_t part[2];
            split_pair(part, z[e / 2][e % 2 * 2], z[e / 2][e % 2 * 2 + 1]);
            *(uint32_t *)&stage.past[0][t0 + e % 2 * 8][e / 2 * 8 + t2] = part[0];
            *(uint32_t *)&stage.past[1][t0 + e % 2 * 8][e / 2 * 8 + t2] = part[1];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < MESA_BLOCKS / 2; k++) {
            operand_a<2> a;
            mesa_operand(a, z, k);
#pragma unroll
            for (int n = 0; n < MESA_BLOCKS; n += 2) {
                mesa_product<true>(g, a, stage.past, k, n);
            }
        }
#pragma unroll
        for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
            *(float2 *)&stage.square[t0 + e % 2 * 8][e / 2 * 8 + t2] = make_float2(g[e / 2][e % 2 * 2],
                                                                                   g[e / 2][e % 2 * 2 + 1]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const float4 g = *(const float4 *)&stage.square[row + r][column];
        const float of[4] = { g.x, g.y, g.z, g.w };
#pragma unroll
        for (int n = 0; n < 4; n++) {
            b[r][n] = of[n] + (row + r == column + n ? 1.0f : 0.0f);
        }
    }
    mesa_load_patch(c, stage.past);
    mesa_eliminate(b, c, stage);
    mesa_put_patch(stage.past, c);
    __syncthreads();
}

/* x = A_t^-1 b of each row. N is lower triangular. */
static __device__ __forceinline__ void mesa_solve_nested(mesa_rows &x, const mesa_rows &b,
                                                         const mesa_solve_stage &stage)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t2 = lane % 4 * 2, t0 = 16 * warp + lane / 4;
    mesa_rows p = {}, pairs = {};
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, b, k);
#pragma unroll
        for (int n = 2 * k; n < MESA_BLOCKS; n += 2) {
            mesa_product<true>(p, a, stage.whiten, k, n);
        }
    }
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, p, k);
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n += 2) {
            if (n <= 2 * warp) {
                mesa_product<true>(pairs, a, stage.past, k, n);
            }
        }
    }
#pragma unroll
    for (int e = 0; e < 4 * MESA_BLOCKS; e++) {
        const bool before = e / 4 * 8 + t2 + e % 2 <= t0 + e % 4 / 2 * 8;
        pairs[e / 4][e % 4] = before ? -pairs[e / 4][e % 4] : 0;
    }
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        if (k <= warp) {
            operand_a<2> a;
            mesa_operand(a, pairs, k);
#pragma unroll
            for (int n = 0; n < MESA_BLOCKS; n += 2) {
                mesa_product<false>(p, a, stage.past, k, n);
            }
        }
    }
    clear(x);
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, p, k);
#pragma unroll
        for (int n = 0; n <= 2 * k; n += 2) {
            mesa_product<false>(x, a, stage.whiten, k, n);
        }
    }
}

#endif
