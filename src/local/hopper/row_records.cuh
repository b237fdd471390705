/* SPDX-License-Identifier: MIT
 * What rows have once in the backward of Local Linear Attention on Hopper: records, and gradients of ridges.
 * ROWS is a block of 64 rows as its kernel has it. */
#ifndef LOAM_LOCAL_HOPPER_ROW_RECORDS_CUH
#define LOAM_LOCAL_HOPPER_ROW_RECORDS_CUH

#include "src/local/cuda/backward.h"
#include "src/local/hopper/row_vectors.cuh"

/* A dense array of vectors of keys over rows. */
template <class ROWS>
static __device__ __forceinline__ row_vectors key_rows(const ROWS &rs, const void *array)
{
    return row_vectors(rs, array, rs.sys.p.dim_qk);
}

/* Where dq has the row; NULL where it is not wanted. */
template <class ROWS> static __device__ __forceinline__ uint16_t *query_gradient(const ROWS &rs, int row)
{
    const loam_view &to = rs.sys.a.grad_q;
    const row_block &block = rs.sys.block;
    const int64_t token = block.s.q0 + block.i0 + rs.r.at[row];
    return to.data ? (uint16_t *)to.data + LOCAL_AT(to, block.s.b, block.h, token) : NULL;
}

/* Products of vectors of the thread's rows with each other, of its columns. */
struct row_products {
    float e[2], ridge[2], rho_kbar[2], y_kbar[2];

    __device__ __forceinline__ void add(int row, const float2 &rho, const float2 &y, const float2 &mean,
                                        const float2 &lambda)
    {
        ridge[row] -= y.x * rho.x + y.y * rho.y;
        rho_kbar[row] += rho.x * mean.x + rho.y * mean.y;
        y_kbar[row] += y.x * mean.x + y.y * mean.y;
        e[row] -= y.x * rho.x * lambda.x + y.y * rho.y * lambda.y;
    }
};

/* Where the gradient of the ridge has the row, in elements. */
template <class ROWS> static __device__ __forceinline__ int64_t grad_ridge_at(const ROWS &rs, int row)
{
    const row_block &block = rs.sys.block;
    return LOCAL_AT(rs.sys.a.grad_ridge, block.s.b, block.h, block.s.q0 + block.i0 + rs.r.at[row]);
}

/* Begins the record of a row, and writes its gradient of a ridge of the row. All lanes of the row call it. */
template <class ROWS>
static __device__ __forceinline__ row_scalars begin_record(const ROWS &rs, const row_products &sum, int row,
                                                           float lse2)
{
    const loam_args &a = rs.sys.a;
    const float ridge = rs.ridge.unit[row] * quad_sum(sum.ridge[row]);
    row_scalars rec = {};
    rec.lse = lse2 * 0.693147181f;
    rec.rho_kbar = quad_sum(sum.rho_kbar[row]), rec.y_kbar = quad_sum(sum.y_kbar[row]);
    rec.e = quad_sum(sum.e[row]), rec.unit = rs.ridge.unit[row];
    rec.lo = rs.r.lo[row], rec.hi = rs.r.hi[row];
    if (rs.r.real[row] && threadIdx.x % 4 == 0) {
        rs.all.arrays.sums.ridge[rs.line(row)] = (double)ridge;
        if (rs.sys.p.ridge_axes == LOAM_RIDGE_TOKEN && a.grad_ridge.data)
            ((float *)a.grad_ridge.data)[grad_ridge_at(rs, row)] = ridge;
    }
    return rec;
}

/* The same of a ridge of each channel, from what y and rho are in memory. */
template <class ROWS> static __device__ __forceinline__ void put_channel_ridges(const ROWS &rs)
{
    const loam_args &a = rs.sys.a;
    if (rs.sys.p.ridge_axes != LOAM_RIDGE_CHANNEL || !a.grad_ridge.data) return;
    const row_vectors rhos = key_rows(rs, rs.all.saved.rho), ys = key_rows(rs, rs.all.arrays.y);
    const int64_t to[2] = { grad_ridge_at(rs, 0), grad_ridge_at(rs, 1) };
#pragma unroll 1
    for (int n = 0; n < ROWS::dim / 8; n += TOGETHER) {
        row_fragments rho, y;
        rhos.load(rho, n), ys.load(y, n);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const float unit = -rs.ridge.unit[row];
                if (rs.r.real[row])
                    store_pair(a.grad_ridge.data, LOAM_F32, to[row], column_of(n + k, 0), rs.sys.p.dim_qk,
                               unit * (y[k][row].x * rho[k][row].x), unit * (y[k][row].y * rho[k][row].y));
            }
        }
    }
}

template <class ROWS>
static __device__ __forceinline__ void put_records(const ROWS &rs, const row_scalars (&rec)[2])
{
#pragma unroll
    for (int row = 0; row < 2; row++)
        if (rs.r.real[row] && threadIdx.x % 4 == 0) rs.all.arrays.record[rs.line(row)] = rec[row];
}

#endif
