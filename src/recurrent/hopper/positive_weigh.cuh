/* SPDX-License-Identifier: MIT
 * Queries of positive random features on Hopper: a step's rows, and their weights on the state and the step's
 * keys. */
#ifndef LOAM_RECURRENT_HOPPER_POSITIVE_WEIGH_CUH
#define LOAM_RECURRENT_HOPPER_POSITIVE_WEIGH_CUH

#include "src/recurrent/hopper/positive.cuh"

/* Rows of the step and read that `item` counts, steps of all reads in order, into their half of a tile. */
static __device__ __forceinline__ void positive_load_item(const positive_chunk &u,
                                                          const loam_const_view &from, int columns, int item,
                                                          __nv_bfloat16 *tile)
{
    const int step = item / (int)u.x.reads, r = item % (int)u.x.reads, left = u.count - step * POSITIVE_STEP;
    const int64_t head = positive_query_head(&u.x, u.n, r);
    fill_tile<POSITIVE_STEP, POSITIVE_DIM, POSITIVE_THREADS>(
        tile + item % 2 * POSITIVE_STEP * POSITIVE_PITCH,
        positive_rows(u, from, head, u.first + step * POSITIVE_STEP), left, 0, columns, NULL);
}

/* Is there such an item? */
static __device__ __forceinline__ bool positive_has_item(const positive_chunk &u, int item)
{
    return item >= 0 && item / (int)u.x.reads * POSITIVE_STEP < u.count;
}

static __device__ __forceinline__ void positive_load_queries(const positive_chunk &u,
                                                             const positive_shared &s, int item)
{
    if (positive_has_item(u, item)) positive_load_item(u, u.x.a->q, (int)u.x.p->dim_qk, item, s.q);
    copy_async_commit();
}

/* The sum, and the largest, over the eight threads of a row. */
static __device__ __forceinline__ float positive_row_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    x += __shfl_xor_sync(~0u, x, 2);
    return x + __shfl_xor_sync(~0u, x, 4);
}

static __device__ __forceinline__ float positive_row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 4));
}

/* w of query i and key j, both rows less c_1. */
static __device__ __forceinline__ float positive_pair(const float *a, const float *b, int features)
{
    float sum = 0;
    for (int m = 0; m < features; m += 4) {
        const float4 x = *(const float4 *)(a + m), y = *(const float4 *)(b + m);
        sum += (exp2_fast(x.x + y.x) + exp2_fast(x.y + y.y)) + (exp2_fast(x.z + y.z) + exp2_fast(x.w + y.w));
    }
    return sum;
}

/* From the logarithms of the queries: queries, b; weights where pairs are weighed one by one (`apart`); top
 * and divisor, unless these are KNOWN. Eight threads of a warp have a row. */
template <bool KNOWN>
static __device__ void positive_weigh(const positive_chunk &u, const positive_shared &s, bool apart)
{
    const int i = (int)threadIdx.x / 8, lane = (int)threadIdx.x % 8;
    float *b = s.b + i * u.pitch, *queries = s.queries + i * u.pitch, top = KNOWN ? s.top[i] : -INFINITY;
    const float *c = s.c + i * u.pitch;
    float divisor = 0;
    for (int m = lane; m < u.features; m += 8) {
        b[m] = positive_hold_float(b[m]);
        if (!KNOWN) top = fmaxf(top, b[m] + c[m]);
    }
    if (!KNOWN) top = positive_row_max(top);
    for (int m = lane; m < u.features; m += 8) {
        const float query = exp2_fast((float)LOG2E * (b[m] + s.c_0[m] - top));
        queries[m] = query;
        divisor = fmaf(query, s.s_0[m], divisor);
        const float weight = (float)LOG2E * (b[m] + s.c_1[m] - top);
        b[m] = apart ? weight : exp2_fast(weight);
    }
    if (apart) {
        __syncwarp();
#pragma unroll
        for (int j = lane; j < POSITIVE_STEP; j += 8) {
            s.weights[i * POSITIVE_PAIRS_PITCH + j] = j <= i ? positive_pair(s.a + j * u.pitch, b, u.features)
                                                             : 0;
        }
    }
    if (KNOWN) return;
    divisor = positive_row_sum(divisor);
    if (lane == 0) s.top[i] = top, s.divisor[i] = divisor;
}

/* w as accumulators of a product of the step's queries with its keys. */
static __device__ __forceinline__ void positive_pair_weights(const positive_chunk &u,
                                                             const positive_shared &s, bool apart,
                                                             float (&w)[2][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    clear(w);
    for (int k = 0; k < u.features && !apart; k += 16) {
        operand_a<2> queries;
        positive_load_a(queries, s.b, u.pitch, k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            operand_b<2> keys;
            positive_load_b_rows(keys, s.keys, u.pitch, 8 * n, k);
            mma(w[n], queries, keys);
        }
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const int i = g + e / 2 % 2 * 8, j = e / 4 * 8 + 2 * t + e % 2;
        float &weight = w[e / 4][e % 4];
        if (apart)
            weight = s.weights[i * POSITIVE_PAIRS_PITCH + j];
        else if (j > i)
            weight = 0;
    }
}

#endif
