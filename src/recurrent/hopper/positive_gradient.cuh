/* SPDX-License-Identifier: MIT
 * Gradients of positive random features on Hopper. With g = grad_o, inverse = 1 / den and shift = -(g . o)
 * / den,
 *
 *     dw_tj = inverse_t g_t . v_j + shift_t,   E_tjm = e^{a_jm + b_tm - top_t}
 *     db_tm = e^{b_tm + c_0m - top_t} (inverse_t S_m g_t + shift_t s_m) + sum_{j<=t} E_tjm dw_tj
 *     da_jm = e^{a_jm - c_1m} (R_m v_j + r_m) + sum_{t>=j} E_tjm dw_tj
 *     dv_j = sum_m e^{a_jm - c_1m} R_m + sum_{t>=j} w_tj inverse_t g_t
 *     R_m <- e^{c_0m - c_1m} R_m + sum_t e^{b_tm + c_0m - top_t} inverse_t g_t,   r likewise with shift_t
 *
 * where the sums over j and t are of a step, S and s have the keys before it, and R and r the queries
 * after it; steps go forward for db, and back for da. States are in shared memory. */
#ifndef LOAM_RECURRENT_HOPPER_POSITIVE_GRADIENT_CUH
#define LOAM_RECURRENT_HOPPER_POSITIVE_GRADIENT_CUH

#include "src/recurrent/hopper/positive_weigh.cuh"

static __device__ __forceinline__ void positive_load_item_rows(const positive_chunk &u,
                                                               const positive_shared &s, int item)
{
    if (positive_has_item(u, item)) positive_load_item(u, u.x.a->grad_o, (int)u.x.p->dim_v, item, s.grad_o);
    positive_load_queries(u, s, item);
}

/* A: the transpose of 16 rows of 16 pairs. */
static __device__ __forceinline__ void positive_load_pairs_transposed(operand_a<2> &a, const float *pairs)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float *x = pairs + (2 * t + e / 2 * 8) * POSITIVE_PAIRS_PITCH + g + e % 2 * 8;
        uint32_t part[2];
        split_pair(part, x[0], x[POSITIVE_PAIRS_PITCH]);
        a.part[0][e] = part[0], a.part[1][e] = part[1];
    }
}

/* s.state <- decay s.state + the transpose of a tile's 16 rows times `factors` [16][pitch]; decay NULL: 1.
 * A warp has 16 channels. */
static __device__ void positive_accumulate(const positive_chunk &u, const positive_shared &s,
                                           const __nv_bfloat16 *rows, const float *factors,
                                           const float *decay)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, channel = (int)threadIdx.x / 32 * 16;
    operand_a<1> a;
    positive_load_transposed(a, rows, channel);
    for (int n = 0; n < u.features; n += 8) {
        float2 *low = (float2 *)(s.state + (channel + g) * u.pitch + n + 2 * t), *high = low + 4 * u.pitch;
        const float2 f = decay ? *(const float2 *)(decay + n + 2 * t) : make_float2(1, 1);
        float d[4] = { low->x * f.x, low->y * f.y, high->x * f.x, high->y * f.y };
        operand_b<2> b;
        positive_load_b(b, factors, u.pitch, n);
        mma(d, a, b);
        *low = make_float2(d[0], d[1]), *high = make_float2(d[2], d[3]);
    }
}

/* s.sums <- the tile's 16 rows times s.state; a warp has every fourth group of eight features. */
static __device__ void positive_read_state(const positive_chunk &u, const positive_shared &s,
                                           const __nv_bfloat16 *rows)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, dim = (int)u.x.p->dim_v;
    for (int n = (int)threadIdx.x / 32 * 8; n < u.features; n += POSITIVE_WARPS * 8) {
        float d[4] = { 0, 0, 0, 0 };
        for (int k = 0; k < dim; k += 16) {
            operand_a<1> a;
            operand_b<2> b;
            load_a<POSITIVE_PITCH>(a, rows, 0, k);
            positive_load_b(b, s.state + k * u.pitch, u.pitch, n);
            mma(d, a, b);
        }
        float2 *low = (float2 *)(s.sums + g * u.pitch + n + 2 * t);
        low[0] = make_float2(d[0], d[1]), low[4 * u.pitch] = make_float2(d[2], d[3]);
    }
}

/* s.pairs <- g_t . v_j, by one warp. */
static __device__ void positive_pair_products(const positive_chunk &u, const positive_shared &s,
                                              const __nv_bfloat16 *grad_o, const __nv_bfloat16 *values)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float d[2][4];
    if (threadIdx.x / 32 != POSITIVE_WARPS - 1) return;
    clear(d);
    for (int k = 0; k < (int)u.x.p->dim_v; k += 16) {
        operand_a<1> a;
        operand_b<1> b[2];
        load_a<POSITIVE_PITCH>(a, grad_o, 0, k);
        load_b_rows<POSITIVE_PITCH>(b, values, 0, k);
        mma(d[0], a, b[0]);
        mma(d[1], a, b[1]);
    }
#pragma unroll
    for (int e = 0; e < 8; e++)
        s.pairs[(g + e / 2 % 2 * 8) * POSITIVE_PAIRS_PITCH + e / 4 * 8 + 2 * t + e % 2] = d[e / 4][e % 4];
}

/* s.weights <- w, by one warp; where pairs are weighed one by one they are there. */
static __device__ __forceinline__ void positive_store_weights(const positive_chunk &u,
                                                              const positive_shared &s, bool apart)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float w[2][4];
    if (apart || threadIdx.x / 32 != POSITIVE_WARPS - 2) return;
    positive_pair_weights(u, s, false, w);
#pragma unroll
    for (int e = 0; e < 8; e++)
        s.weights[(g + e / 2 % 2 * 8) * POSITIVE_PAIRS_PITCH + e / 4 * 8 + 2 * t + e % 2] = w[e / 4][e % 4];
}

/* held[m]: which of a step's 16 rows of logarithms will be held. The threads of positive_scan. */
static __device__ void positive_mark_held(const positive_chunk &u, const float *rows, unsigned *held)
{
    positive_for_features(u, [&](int m, int row) {
        unsigned bits = 0;
#pragma unroll
        for (int i = 0; i < HALF_STEP; i++)
            bits |= (unsigned)!(fabsf(rows[(row + i) * u.pitch + m]) < (float)POSITIVE_BOUND) << (row + i);
        bits |= positive_other_half(bits);
        if (row == 0) held[m] = bits;
    });
}

/* s.state and s.normaliser <- S and s of the chunk in `from`, an array of states. */
static __device__ void positive_fetch_state(const positive_chunk &u, const positive_shared &s,
                                            const float *from)
{
    const float *at = from + positive_state_at(u);
    const int rows = (int)u.x.p->dim_v;
    for (int e = (int)threadIdx.x; e < POSITIVE_DIM * u.features; e += POSITIVE_THREADS)
        s.state[e / u.features * u.pitch + e % u.features] = e / u.features < rows ? at[e] : 0;
    for (int m = (int)threadIdx.x; m < u.features; m += POSITIVE_THREADS)
        s.normaliser[m] = at[rows * u.features + m];
}

/* The row of the arrays of the backward pass that query `i` of the step has. */
static __device__ __forceinline__ int64_t positive_query_row(const positive_chunk &u, int at, int i, int r)
{
    return positive_row(&u.x, &u.seq, u.n, u.first + at + i, r);
}

/* top, inverse and shift of the queries of an item. Those that are not there weigh nothing. */
static __device__ void positive_load_records(const positive_launch &l, const positive_chunk &u,
                                             const positive_shared &s, int at, int r)
{
    const int i = (int)threadIdx.x;
    if (i >= POSITIVE_STEP) return;
    const float4 record = at + i < u.count ? l.records[positive_query_row(u, at, i, r)]
                                           : make_float4(4 * (float)POSITIVE_BOUND, 0, 0, 0);
    s.top[i] = record.x, s.inverse[i] = record.y, s.shift[i] = record.z;
}

#endif
