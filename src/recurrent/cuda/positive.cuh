/* SPDX-License-Identifier: MIT
 * Positive random features on GPUs (src/recurrent/positive.h): what the kernels of the map and of its
 * gradient share. A thread block has 64 tokens of a head of z, GROUP at a time, and a thread the features (or
 * channels) threadIdx.x and threadIdx.x + THREADS. Logarithms are float64. */
#ifndef LOAM_RECURRENT_CUDA_POSITIVE_CUH
#define LOAM_RECURRENT_CUDA_POSITIVE_CUH

#include "src/gpu/block_sum.cuh"
#include "src/gpu/launch.cuh"
#include "src/recurrent/positive.h"

enum { THREADS = 256, GROUP = THREADS / 32, EACH = LOAM_MAX_DIM / THREADS, BLOCK = 64, SLICE = 512 };

/* Arguments of a kernel. x points to the caller's problem and arguments; positive_here's to these copies. */
typedef struct launch {
    loam_problem p;
    loam_args a;
    positive x;
    int64_t blocks, slices; /* of the longest sequence; of all tokens */
    float *before;          /* c before each block [batch, heads, blocks, features] */
    double *parts;          /* gradients of z and log alpha [slices, heads, features, dim_qk + 1] */
} launch;

static __device__ __forceinline__ positive positive_here(const launch &l)
{
    positive x = l.x;
    x.p = &l.p, x.a = &l.a;
    return x;
}

/* Tokens first .. first + count - 1 of a sequence. */
struct group {
    recurrent_seq seq;
    int64_t first;
    int count;
};

static __device__ __forceinline__ float parameter_at(const loam_const_view &view, int64_t n, int64_t row,
                                                     int64_t c)
{
    return ((const float *)view.data)[n * view.head + row * view.token + c];
}

/* Channel c of a row of q or of k less its shift, times sqrt(scale). */
static __device__ __forceinline__ double given_at(const positive &x, bool key, int64_t n, int64_t h,
                                                  int64_t b, int64_t token, int c)
{
    const loam_const_view &from = key ? x.a->k : x.a->q;
    const double shift = key && x.a->shift.data ? (double)parameter_at(x.a->shift, n, 0, c) : 0;
    return sqrt(x.p->scale) *
           (element_load(from.data, x.p->dtype, RECURRENT_AT(from, b, h, token) + c) - shift);
}

/* x of the rows of a group, in shared memory: [GROUP][d], and scratch of that size after it; 0 where there is
 * no token. */
static __device__ void load_rows(const positive &x, const group &g, bool key, int64_t n, int64_t h,
                                 double *rows)
{
    const int d = (int)x.p->dim_qk;
    const loam_const_view &A = key ? x.a->balance_keys : x.a->balance;
    double *given = A.data ? rows + GROUP * d : rows;
    __syncthreads();
    for (int e = (int)threadIdx.x; e < GROUP * d; e += THREADS) {
        given[e] = e / d < g.count ? given_at(x, key, n, h, g.seq.b, g.seq.first + g.first + e / d, e % d)
                                   : 0;
    }
    __syncthreads();
    if (!A.data) return;
    for (int e = (int)threadIdx.x; e < GROUP * d; e += THREADS) {
        double sum = 0;
        for (int j = 0; j < d; j++)
            sum += (double)parameter_at(A, n, e % d, j) * given[e / d * d + j];
        rows[e] = sum;
    }
    __syncthreads();
}

/* The logarithms of feature m of the rows of a group, before they are held. `half`: |y|^2 / 2 of keys, in
 * shared memory. */
static __device__ void logarithms(const positive &x, bool key, int64_t n, int m, const double *rows,
                                  const double *half, double (&out)[GROUP])
{
    const int d = (int)x.p->dim_qk;
    const double alpha = key && x.a->log_alpha.data ? (double)parameter_at(x.a->log_alpha, n, 0, m) : 0;
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        out[i] = 0;
    for (int c = 0; c < d; c++) {
        const double z = (double)parameter_at(x.a->z, n, m, c);
#pragma unroll
        for (int i = 0; i < GROUP; i++)
            out[i] = fma(z, rows[i * d + c], out[i]);
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        out[i] += key ? alpha - half[i] : 0;
}

/* half[i] <- |row i|^2 / 2, a warp to each row. */
static __device__ void half_norms(const double *rows, int d, double *half)
{
    const int i = (int)threadIdx.x / 32;
    double sum = 0;
    for (int c = (int)threadIdx.x % 32; c < d; c += 32)
        sum = fma(rows[i * d + c], rows[i * d + c], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) half[i] = sum / 2;
    __syncthreads();
}

static __device__ __forceinline__ float *features_at(const positive &x, void *array, const group &g,
                                                     int64_t n, int i, int64_t r)
{
    return (float *)array + positive_row(&x, &g.seq, n, g.first + i, r) * x.p->features;
}

/* Group number `step` of a block of 64 tokens. */
static __device__ __forceinline__ group group_at(const recurrent_seq &seq, int64_t block, int step)
{
    const int64_t first = block * BLOCK + step * GROUP, left = seq.len - first;
    return { seq, first, (int)(left < 0 ? 0 : left < GROUP ? left : GROUP) };
}

static inline size_t rows_bytes(const loam_problem *p)
{
    return 2 * GROUP * (size_t)p->dim_qk * sizeof(double);
}

loam_status positive_map_cuda(const launch *l, loam_error *error);
loam_status positive_gradient_cuda(const launch *l, loam_error *error);
/* Decode of one token, with nothing before or after it. */
loam_status positive_step_cuda(const launch *l, loam_error *error);

#endif
