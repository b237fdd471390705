/* SPDX-License-Identifier: MIT
 *
 * The systems of a chunk of MesaNet whose gates are all 0. With A = H0 + Lambda they are nested, A_t = A +
 * sum_{j<=t} beta_j k_j k_j^T, and two factors solve all of them (docs/recurrent.md), here in coordinates
 * where A is the unit matrix:
 *
 *     N A N^T = 1,   Z = Diag(sqrt(beta)) K N^T,   R R^T = 1 + Z Z^T,   Y = R^-1 Z
 *     x_t = N^T (p_t - sum_{j<=t} (p_t . y_j) y_j),   p_t = N b_t,   y_j row j of Y
 *
 * N is the inverse of the Cholesky factor of A, R the Cholesky factor of 1 + Z Z^T. N and R^-1 are
 * computed by elimination in float32. In products N and Y are split into hi and lo parts, which
 * leaves a relative residual of about 2^-17 sqrt(cond A). Where that is too large, iterative
 * refinement follows (mesa_refine_nested). */
#ifndef LOAM_RECURRENT_HOPPER_MESA_NESTED_CUH
#define LOAM_RECURRENT_HOPPER_MESA_NESTED_CUH

#include "src/recurrent/hopper/mesa/system.cuh"

/* A thread's patch of a 64 x 64 matrix during elimination: 8 rows from 8 (thread / 16), 4
 * columns from 4 (thread % 16). */
typedef float mesa_patch[8][4];

/* 1 / x, within 1 ulp. */
static __device__ __forceinline__ float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The factors of the 4 x 4 block of four pivots on the diagonal, L D L^T. */
struct mesa_pivots {
    float below[6];           /* L below its unit diagonal: elements 10, 20, 21, 30, 31, 32 */
    float d[4], d_inverse[4]; /* D, 1 / D */
};

/* rows: the pivot rows, of which the first is row k of the matrix. */
static __device__ __forceinline__ mesa_pivots mesa_pivots_of(const float (&rows)[PIVOTS][MESA_DIM], int k)
{
    const float4 s1 = *(const float4 *)&rows[1][k], s2 = *(const float4 *)&rows[2][k],
                 s3 = *(const float4 *)&rows[3][k];
    mesa_pivots p;
    p.d[0] = rows[0][k];
    p.d_inverse[0] = reciprocal(p.d[0]);
    p.below[0] = s1.x * p.d_inverse[0], p.below[1] = s2.x * p.d_inverse[0],
    p.below[3] = s3.x * p.d_inverse[0];
    p.d[1] = fmaf(-p.below[0], s1.x, s1.y);
    p.d_inverse[1] = reciprocal(p.d[1]);
    const float e21 = fmaf(-p.below[0], s2.x, s2.y), e31 = fmaf(-p.below[0], s3.x, s3.y);
    p.below[2] = e21 * p.d_inverse[1], p.below[4] = e31 * p.d_inverse[1];
    p.d[2] = fmaf(-p.below[2], e21, fmaf(-p.below[1], s2.x, s2.z));
    p.d_inverse[2] = reciprocal(p.d[2]);
    const float e32 = fmaf(-p.below[2], e31, fmaf(-p.below[1], s3.x, s3.z));
    p.below[5] = e32 * p.d_inverse[2];
    p.d[3] = fmaf(-p.below[5], e32, fmaf(-p.below[4], e31, fmaf(-p.below[3], s3.x, s3.w)));
    p.d_inverse[3] = reciprocal(p.d[3]);
    return p;
}

/* Updates four rows of the patch: b[first + r] -= sum_p rows[p][column + r] pivot_rows[p], where `column` is
 * the index of row b[first] in the matrix: by symmetry, elements of pivot rows are the elements of pivot
 * columns. fresh: b is 0 before, because the patch has the pivot columns themselves, which are eliminated. */
static __device__ __forceinline__ void mesa_update(mesa_patch &b, int first,
                                                   const float (&rows)[PIVOTS][MESA_DIM], int column,
                                                   const float (&pivot_rows)[4][4], bool fresh)
{
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int n = 0; n < 4; n++)
            b[first + r][n] = fresh ? 0 : b[first + r][n];
    }
#pragma unroll
    for (int p = 0; p < PIVOTS; p++) {
        const float4 x = *(const float4 *)&rows[p][column];
        const float columns[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
        for (int r = 0; r < 4; r++) {
#pragma unroll
            for (int n = 0; n < 4; n++)
                b[first + r][n] = fmaf(-columns[r], pivot_rows[p][n], b[first + r][n]);
        }
    }
}

/* Stores rows first .. first + 3 of the patch as the pivot rows of step n, and arrives at
 * the barrier of that step. */
static __device__ __forceinline__ void mesa_store_pivots(mesa_solve_shared &sm, const mesa_patch &b,
                                                         int first, int n)
{
#pragma unroll
    for (int p = 0; p < PIVOTS; p++) {
        *(float4 *)&sm.pivots[n][p][(int)threadIdx.x % 16 * 4] = make_float4(
            b[first + p][0], b[first + p][1], b[first + p][2], b[first + p][3]);
    }
    barrier_arrive(&sm.eliminated[n]);
}

/* x = L^-1 times the thread's columns of the pivot rows. fresh: the patch has the pivot
 * columns, which from here on are columns of the transformed unit matrix. */
static __device__ __forceinline__ void mesa_forward_pivots(float (&x)[PIVOTS][4],
                                                           const float (&rows)[PIVOTS][MESA_DIM],
                                                           const mesa_pivots &pivots, int column, bool fresh)
{
    const float(&l)[6] = pivots.below;
#pragma unroll
    for (int p = 0; p < PIVOTS; p++) {
        const float4 row = *(const float4 *)&rows[p][column];
        x[p][0] = fresh ? p == 0 : row.x, x[p][1] = fresh ? p == 1 : row.y;
        x[p][2] = fresh ? p == 2 : row.z, x[p][3] = fresh ? p == 3 : row.w;
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        x[1][c] = fmaf(-l[0], x[0][c], x[1][c]);
        x[2][c] = fmaf(-l[2], x[1][c], fmaf(-l[1], x[0][c], x[2][c]));
        x[3][c] = fmaf(-l[5], x[2][c], fmaf(-l[4], x[1][c], fmaf(-l[3], x[0][c], x[3][c])));
    }
}

/* x <- L^-T D^-1 x */
static __device__ __forceinline__ void mesa_backward_pivots(float (&x)[PIVOTS][4], const mesa_pivots &pivots)
{
    const float(&l)[6] = pivots.below;
#pragma unroll
    for (int c = 0; c < 4; c++) {
#pragma unroll
        for (int p = 0; p < PIVOTS; p++)
            x[p][c] *= pivots.d_inverse[p];
        x[2][c] = fmaf(-l[5], x[3][c], x[2][c]);
        x[1][c] = fmaf(-l[4], x[3][c], fmaf(-l[2], x[2][c], x[1][c]));
        x[0][c] = fmaf(-l[3], x[3][c], fmaf(-l[1], x[2][c], fmaf(-l[0], x[1][c], x[0][c])));
    }
}

/* Eliminates pivots k0 + HALF .. k0 + HALF + 3 from the patch, which begins with row `row`. In each step the
 * rows of the next pivots, after half 0 rows 4 .. 7 of the same patches, else rows 0 .. 3 of those below, are
 * updated and published first. */
template <int HALF>
static __device__ __forceinline__ void mesa_eliminate_pivots(mesa_patch &b, mesa_solve_shared &sm, int k0,
                                                             unsigned parity)
{
    constexpr int next = HALF ? 0 : 4;
    const int row = (int)threadIdx.x / 16 * 8, column = (int)threadIdx.x % 16 * 4;
    const int k = k0 + HALF, n = k / PIVOTS;
    const float(&rows)[PIVOTS][MESA_DIM] = sm.pivots[n];
    barrier_wait(&sm.eliminated[n], parity);
    if (row < k0) return;
    const mesa_pivots pivots = mesa_pivots_of(rows, k);
    const bool fresh = column == k;
    float pivot_rows[PIVOTS][4];
    mesa_forward_pivots(pivot_rows, rows, pivots, column, fresh);
    if (row == k0) {
#pragma unroll
        for (int e = 0; e < 16; e++)
            b[HALF + e / 4][e % 4] = pivot_rows[e / 4][e % 4] * rsqrtf(pivots.d[e / 4]);
    }
    mesa_backward_pivots(pivot_rows, pivots);
    if (row > k0 || HALF == 0) mesa_update(b, next, rows, row + next, pivot_rows, fresh);
    if (row == k + (HALF ? 4 : 0)) mesa_store_pivots(sm, b, next, n + 1);
    if (row > k0) mesa_update(b, HALF, rows, row + HALF, pivot_rows, fresh);
}

/* Replaces b = L D L^T by D^-1/2 L^-1, the inverse of its Cholesky factor, on and below the diagonal. This is
 * Gaussian elimination of b, applied to the unit matrix too: once a column of b is eliminated, its memory
 * holds that column of the transformed unit matrix. A step eliminates four pivots; b is symmetric, so that
 * the pivot rows are the pivot columns too. A pivot that is not positive makes its row NaN. Threads wait for
 * pivot rows only, at one mbarrier for each step, and never for all threads. parity: the phase of these
 * barriers. */
static __device__ __forceinline__ void mesa_eliminate(mesa_patch &b, mesa_solve_shared &sm, unsigned parity)
{
    if (threadIdx.x < 16) mesa_store_pivots(sm, b, 0, 0);
#pragma unroll 1
    for (int k0 = 0; k0 <= ((int)threadIdx.x / 32 * 16 + 8); k0 += 8) {
        mesa_eliminate_pivots<0>(b, sm, k0, parity);
        mesa_eliminate_pivots<PIVOTS>(b, sm, k0, parity);
    }
}

/* Stores a patch of a lower triangular matrix in hi and lo part, with 0 above the diagonal. */
static __device__ __forceinline__ void mesa_store_patch(mesa_tile (&to)[2], const mesa_patch &b)
{
    const int row = (int)threadIdx.x / 16 * 8, column = (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        float x[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            x[n] = column + n <= row + r ? b[r][n] : 0;
        uint32_t low[2], high[2];
        split_pair(low, x[0], x[1]), split_pair(high, x[2], x[3]);
#pragma unroll
        for (int part = 0; part < 2; part++)
            *(uint2 *)&to[part][row + r][column] = make_uint2(low[part], high[part]);
    }
}

/* Stores the warp's 16 rows, from row m, in hi and lo part. */
static __device__ __forceinline__ void mesa_store_tile(mesa_tile (&to)[2], const mesa_rows &x, int m)
{
    const int row = m + (int)threadIdx.x % 32 / 4, t2 = (int)threadIdx.x % 4 * 2;
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        uint32_t part[2];
        split_pair(part, x[e / 2][e % 2 * 2], x[e / 2][e % 2 * 2 + 1]);
        *(uint32_t *)&to[0][row + e % 2 * 8][e / 2 * 8 + t2] = part[0];
        *(uint32_t *)&to[1][row + e % 2 * 8][e / 2 * 8 + t2] = part[1];
    }
}

/* Loads the patch of a matrix with rows `pitch` apart, and adds diagonal(c) to element (c, c). */
template <class DIAGONAL>
static __device__ __forceinline__ void mesa_load_patch(mesa_patch &b, const float *from, int pitch,
                                                       DIAGONAL diagonal)
{
    const int row = (int)threadIdx.x / 16 * 8, column = (int)threadIdx.x % 16 * 4;
#pragma unroll
    for (int r = 0; r < 8; r++) {
        const float4 four = *(const float4 *)(from + (row + r) * pitch + column);
        const float x[4] = { four.x, four.y, four.z, four.w };
#pragma unroll
        for (int n = 0; n < 4; n++)
            b[r][n] = x[n] + (row + r == column + n ? diagonal(column + n) : 0);
    }
}

/* Z = Diag(sqrt(beta)) K N^T, to sm.past, and Z Z^T, to sm.square. All of it is complete at the end. */
static __device__ __forceinline__ void mesa_gram(mesa_solve_shared &sm)
{
    const int lane = threadIdx.x % 32, m = (int)threadIdx.x / 32 * 16, t0 = m + lane / 4, t2 = lane % 4 * 2;
    const float weight[2] = { sqrtf(sm.key_weight[t0]), sqrtf(sm.key_weight[t0 + 8]) };
    mesa_rows z = {}, g = {};
    mesa_multiply_rows<true, 2>(z, sm.k, sm.whiten, m);
    mesa_scale(z, weight);
    mesa_store_tile(sm.past, z, m);
    __syncthreads();
    mesa_multiply<true, 2>(g, z, sm.past);
#pragma unroll
    for (int e = 0; e < 2 * MESA_BLOCKS; e++) {
        *(float2 *)&sm.square[t0 + e % 2 * 8][e / 2 * 8 + t2] = make_float2(g[e / 2][e % 2 * 2],
                                                                            g[e / 2][e % 2 * 2 + 1]);
    }
    __syncthreads();
}

/* The warp's rows of Y = R^-1 Z. R^-1 is lower triangular: blocks of 16 above its diagonal are skipped. */
static __device__ __forceinline__ void mesa_past_rows(mesa_rows &y, const mesa_solve_shared &sm)
{
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        if (k <= warp) {
            operand_a<2> a;
#pragma unroll
            for (int part = 0; part < 2; part++) {
                operand_a<1> one;
                load_a<MESA_PITCH>(one, &sm.root[part][0][0], 16 * warp, 16 * k);
                memcpy(a.part[part], one.part[0], sizeof a.part[part]);
            }
#pragma unroll
            for (int n = 0; n < MESA_BLOCKS; n += 2)
                mesa_product<false, 2>(y, a, sm.past, k, n);
        }
    }
}

/* Computes N (sm.whiten) and Y (sm.past) of a chunk that mesa_solve_load has loaded. H: H0 in float32,
 * [64][64]. */
static __device__ __forceinline__ void mesa_factor(mesa_solve_shared &sm, const float *H)
{
    mesa_patch b;
    if (threadIdx.x < ELIMINATIONS) barrier_init(&sm.eliminated[threadIdx.x], MESA_DIM / 4);
    __syncthreads();
    mesa_load_patch(b, H, MESA_DIM, [&](int c) { return sm.ridge[c]; });
    mesa_eliminate(b, sm, 0);
    mesa_store_patch(sm.whiten, b);
    __syncthreads();
    mesa_gram(sm);
    mesa_load_patch(b, &sm.square[0][0], MESA_DIM + 4, [](int) { return 1.0f; });
    __syncthreads();
    mesa_eliminate(b, sm, 1);
    __syncthreads();
    mesa_store_patch(sm.root, b);
    __syncthreads();
    mesa_rows y = {};
    mesa_past_rows(y, sm);
    __syncthreads();
    mesa_store_tile(sm.past, y, (int)threadIdx.x / 32 * 16);
    __syncthreads();
}

/* x_t = A_t^-1 b_t for each row. N is lower triangular: blocks of 16 above its diagonal are skipped. */
static __device__ __forceinline__ void mesa_solve_nested(mesa_rows &x, const mesa_rows &b,
                                                         const mesa_solve_shared &sm)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t2 = lane % 4 * 2, t0 = 16 * warp + lane / 4;
    mesa_rows p = {}, pairs = {};
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, b, k);
#pragma unroll
        for (int n = 2 * k; n < MESA_BLOCKS; n += 2)
            mesa_product<true, 2>(p, a, sm.whiten, k, n);
    }
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, p, k);
#pragma unroll
        for (int n = 0; n < MESA_BLOCKS; n += 2)
            if (n <= 2 * warp) mesa_product<true, 2>(pairs, a, sm.past, k, n);
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
            for (int n = 0; n < MESA_BLOCKS; n += 2)
                mesa_product<false, 2>(p, a, sm.past, k, n);
        }
    }
    clear(x);
#pragma unroll
    for (int k = 0; k < MESA_BLOCKS / 2; k++) {
        operand_a<2> a;
        mesa_operand(a, p, k);
#pragma unroll
        for (int n = 0; n <= 2 * k; n += 2)
            mesa_product<false, 2>(x, a, sm.whiten, k, n);
    }
}

#endif
