/* SPDX-License-Identifier: MIT
 * Tiles of 64 x 64 numbers in shared memory, and their products in float32 by a block of 256 threads: each
 * makes 4 x 4 sums. */
#ifndef LOAM_TRAIN_CUDA_FEATURE_TILE_CUH
#define LOAM_TRAIN_CUDA_FEATURE_TILE_CUH

#include "train/cuda/gpu.cuh"

enum { SIDE = 64, PITCH = SIDE + 4, TILE_THREADS = 256, EACH = 4, ACROSS = SIDE / EACH };

typedef float tile[SIDE][PITCH];
typedef float patch[EACH][EACH];

static __device__ __forceinline__ int tile_x() { return (int)threadIdx.x % ACROSS; }
static __device__ __forceinline__ int tile_y() { return (int)threadIdx.x / ACROSS; }

static __device__ __forceinline__ float4 four_of(const float *x) { return *(const float4 *)x; }
static __device__ __forceinline__ void set_four(float *to, float4 x) { *(float4 *)to = x; }

static __device__ __forceinline__ void patch_clear(patch &sum)
{
#pragma unroll
    for (int e = 0; e < EACH * EACH; e++)
        sum[e / EACH][e % EACH] = 0;
}

/* Rows of which `rows` and of these `columns`, a multiple of 4, are there; the rest of the tile is 0. */
static __device__ __forceinline__ void tile_load(tile &to, const float *x, int row, int rows, int columns)
{
#pragma unroll
    for (int e = (int)threadIdx.x; e < SIDE * ACROSS; e += TILE_THREADS) {
        const int i = e / ACROSS, c = e % ACROSS * 4;
        const float4 zero = { 0, 0, 0, 0 };
        set_four(&to[i][c], i < rows && c < columns ? four_of(x + i * row + c) : zero);
    }
}

/* factor (x - shift) of rows that need not be aligned; shift NULL: 0. */
static __device__ __forceinline__ void tile_load_any(tile &to, const float *x, int64_t row, int64_t rows,
                                                     int columns, float factor, const float *shift)
{
    for (int e = (int)threadIdx.x; e < SIDE * SIDE; e += TILE_THREADS) {
        const int i = e / SIDE, c = e % SIDE;
        to[i][c] = i < rows && c < columns ? factor * (x[i * row + c] - (shift ? shift[c] : 0)) : 0;
    }
}

/* sum += a b^T: rows y + 16 r, columns x + 16 c. */
static __device__ __forceinline__ void add_rows_rows(patch &sum, const tile &a, const tile &b)
{
#pragma unroll 1
    for (int k = 0; k < SIDE; k += 4) {
        float4 left[EACH], right[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            left[e] = four_of(&a[tile_y() + ACROSS * e][k]);
            right[e] = four_of(&b[tile_x() + ACROSS * e][k]);
        }
#pragma unroll
        for (int r = 0; r < EACH; r++)
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                sum[r][c] = fmaf(left[r].x, right[c].x, sum[r][c]);
                sum[r][c] = fmaf(left[r].y, right[c].y, sum[r][c]);
                sum[r][c] = fmaf(left[r].z, right[c].z, sum[r][c]);
                sum[r][c] = fmaf(left[r].w, right[c].w, sum[r][c]);
            }
    }
}

static __device__ __forceinline__ void add_times(float (&sum)[EACH], float a, float4 b)
{
    sum[0] = fmaf(a, b.x, sum[0]);
    sum[1] = fmaf(a, b.y, sum[1]);
    sum[2] = fmaf(a, b.z, sum[2]);
    sum[3] = fmaf(a, b.w, sum[3]);
}

/* sum += a b: rows y + 16 r, columns 4 x + c. */
static __device__ __forceinline__ void add_rows_columns(patch &sum, const tile &a, const tile &b)
{
#pragma unroll 1
    for (int k = 0; k < SIDE; k += 4) {
        float4 left[EACH], right[EACH];
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            left[e] = four_of(&a[tile_y() + ACROSS * e][k]);
            right[e] = four_of(&b[k + e][EACH * tile_x()]);
        }
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            add_times(sum[r], left[r].x, right[0]);
            add_times(sum[r], left[r].y, right[1]);
            add_times(sum[r], left[r].z, right[2]);
            add_times(sum[r], left[r].w, right[3]);
        }
    }
}

/* sum += a^T b: rows 4 y + r, columns 4 x + c. */
static __device__ __forceinline__ void add_columns_columns(patch &sum, const tile &a, const tile &b)
{
#pragma unroll 4
    for (int k = 0; k < SIDE; k++) {
        const float4 left = four_of(&a[k][EACH * tile_y()]), right = four_of(&b[k][EACH * tile_x()]);
        add_times(sum[0], left.x, right);
        add_times(sum[1], left.y, right);
        add_times(sum[2], left.z, right);
        add_times(sum[3], left.w, right);
    }
}

/* Over the 16 threads that share rows y + 16 r, which all get it. */
static __device__ __forceinline__ float across_sum(float x)
{
#pragma unroll
    for (int step = ACROSS / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ __forceinline__ float across_max(float x)
{
#pragma unroll
    for (int step = ACROSS / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* The logarithm of a sum of numbers that are given as e^top times `part`. */
typedef struct log_sum {
    float top, sum;
} log_sum;

static __device__ __forceinline__ log_sum log_sum_none() { return { -INFINITY, 0 }; }

static __device__ __forceinline__ void log_sum_add(log_sum *s, float top, float part)
{
    const float most = fmaxf(s->top, top);
    if (most == -INFINITY) return;
    s->sum = s->sum * expf(s->top - most) + part * expf(top - most);
    s->top = most;
}

static __device__ __forceinline__ float log_sum_of(log_sum s) { return s.top + logf(s.sum); }

#endif
