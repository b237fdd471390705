/* SPDX-License-Identifier: MIT
 * The thread's two rows of dense arrays over rows, in the layout of products. Where a row lies is found once,
 * and the loads of several fragments are under way together: one after another, with the address of each
 * found anew, they took a third of the time of a block. */
#ifndef LOAM_LOCAL_HOPPER_ROW_VECTORS_CUH
#define LOAM_LOCAL_HOPPER_ROW_VECTORS_CUH

#include "src/local/cuda/solve.cuh"

/* Of so many fragments, the two columns that a thread has of each of its rows. */
enum { TOGETHER = 4 };
struct row_fragments {
    float2 of[TOGETHER][2];

    __device__ __forceinline__ float2 *operator[](int k) { return of[k]; }
    __device__ __forceinline__ const float2 *operator[](int k) const { return of[k]; }
};

/* Those of a vector that has the elements of each thread apart, from fragment n on. */
template <class VECTOR>
static __device__ __forceinline__ void load_lanes(row_fragments &x, const VECTOR &from, int n)
{
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int at = 4 * (n + k) + 2 * row;
            x[k][row] = { from.get(at), from.get(at + 1) };
        }
    }
}
static __device__ __forceinline__ void store_lanes(const lane_vector &to, const row_fragments &x, int n)
{
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int at = 4 * (n + k) + 2 * row;
            to.put(at, x[k][row].x), to.put(at + 1, x[k][row].y);
        }
    }
}
static __device__ __forceinline__ void fill_fragments(row_fragments &x, const float (&number)[2])
{
#pragma unroll
    for (int k = 0; k < TOGETHER; k++)
        x[k][0] = { number[0], number[0] }, x[k][1] = { number[1], number[1] };
}

/* The queries of the thread's rows in shared memory. This and what follows are copies for loops: what a
 * kernel knows of its rows lies in memory, and behind a store each use of it would be a load. */
template <class T> struct row_targets {
    const T *query;
    int at[2];
    float unit[2];

    __device__ __forceinline__ float get(int row, int c) const
    {
        return tile_value(query[swizzled(at[row], c)]) * (is_half<T> ? unit[row] : 1);
    }
};

/* Lambda of the thread's rows: of each channel a number in the scratch, or one of the row. */
struct row_lambdas {
    lane_vector channels;
    bool by_channel;
    float number[2];

    __device__ __forceinline__ void load(row_fragments &x, int n) const
    {
        if (by_channel)
            load_lanes(x, channels, n);
        else
            fill_fragments(x, number);
    }
};

static __device__ __forceinline__ void scale_fragments(row_fragments &x, const float (&factor)[2])
{
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
        for (int row = 0; row < 2; row++)
            x[k][row] = { factor[row] * x[k][row].x, factor[row] * x[k][row].y };
    }
}

/* An array of float. ROWS knows the rows: line() is the index of one in the array. */
struct row_vectors {
    float *at[2];
    int columns[2]; /* from there on; none of a row beyond the sequence */
    bool pairs;     /* are two columns aligned to be read at once? */

    template <class ROWS>
    __device__ __forceinline__ row_vectors(const ROWS &rs, const void *array, int64_t dim)
        : pairs(dim % 2 == 0)
    {
        const int first = column_of(0, 0);
#pragma unroll
        for (int row = 0; row < 2; row++) {
            at[row] = (float *)array + rs.line(row) * dim + first;
            columns[row] = rs.r.real[row] ? (int)dim - first : 0;
        }
    }
    /* Fragments n .. n + TOGETHER - 1; zeros beyond the columns. */
    __device__ __forceinline__ void load(row_fragments &x, int n) const
    {
        if (pairs)
            load_in<true>(x, n);
        else
            load_in<false>(x, n);
    }
    template <bool PAIRS> __device__ __forceinline__ void load_in(row_fragments &x, int n) const
    {
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const int c = 8 * (n + k);
                const float *const from = at[row] + c;
                if (PAIRS)
                    x[k][row] = c < columns[row] ? *(const float2 *)from : make_float2(0, 0);
                else
                    x[k][row] = { c < columns[row] ? from[0] : 0, c + 1 < columns[row] ? from[1] : 0 };
            }
        }
    }
    __device__ __forceinline__ void store(const row_fragments &x, int n) const
    {
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const int c = 8 * (n + k);
                float *const to = at[row] + c;
                if (pairs) {
                    if (c < columns[row]) *(float2 *)to = x[k][row];
                } else {
                    if (c < columns[row]) to[0] = x[k][row].x;
                    if (c + 1 < columns[row]) to[1] = x[k][row].y;
                }
            }
        }
    }
};

#endif
