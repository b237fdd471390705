/* SPDX-License-Identifier: MIT
 * Sums over rows, in an order that depends on the shape alone: of chunks of rows by a block each, and then of
 * these. */
#ifndef LOAM_TRAIN_CUDA_SUM_CUH
#define LOAM_TRAIN_CUDA_SUM_CUH

#include "train/cuda/each.cuh"

enum { SUM_THREADS = 256, SUM_ROWS = 128 }; /* of a block; of a chunk */

static inline int64_t sum_chunks(int64_t rows) { return (rows + SUM_ROWS - 1) / SUM_ROWS; }

/* out [1][width] of each model (+)= the sum of partial [models][chunks][width * part] over chunks and, of
 * column h, over columns h part ... */
void sum_finish(const machine *on, matrix out, const float *partial, int64_t chunks, int64_t part, bool add);
/* The same where there are many columns and few chunks: out [rows][width], partial [models][chunks]
 * [rows width]. */
void sum_fold(const machine *on, matrix out, const float *partial, int64_t chunks, bool add);

template <int N, int INS, class F>
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_kernel(float *partial, views<INS> in, int rows, int width, int lanes, F f)
{
    __shared__ float sums[SUM_THREADS * N];
    const int lane = (int)threadIdx.x % lanes, group = (int)threadIdx.x / lanes, groups = SUM_THREADS / lanes;
    const int c = ((int)blockIdx.y * lanes + lane) * N, m = (int)blockIdx.z;
    const int first = (int)blockIdx.x * SUM_ROWS, end = min(first + SUM_ROWS, rows);
    float sum[N] = {};
    for (int i = first + group; i < end && c < width; i += groups) {
        float x[INS][N];
#pragma unroll
        for (int k = 0; k < INS; k++)
            load<N>(x[k], in.at[k], m, i, c);
#pragma unroll
        for (int e = 0; e < N; e++) {
            float from[INS];
#pragma unroll
            for (int k = 0; k < INS; k++)
                from[k] = x[k][e];
            sum[e] += f(from);
        }
    }
#pragma unroll
    for (int e = 0; e < N; e++)
        sums[threadIdx.x * N + e] = sum[e];
    __syncthreads();
    if (group > 0 || c >= width) return;
    for (int e = 0; e < N; e++) {
        for (int other = 1; other < groups; other++)
            sum[e] += sums[(other * lanes + lane) * N + e];
        partial[((int64_t)m * gridDim.x + blockIdx.x) * width + c + e] = sum[e];
    }
}

/* out [1][like.width / part] of each model (+)= the sum over rows, and `part` columns, of f(x). */
template <int INS, class F>
static void sum_rows(const machine *on, const char *name, matrix out, matrix like, const view (&in)[INS],
                     int64_t part, bool add, F f)
{
    const int64_t chunks = sum_chunks(like.rows);
    const bool four = like.width % 4 == 0 && all_aligned(in);
    const int64_t packs = four ? like.width / 4 : like.width;
    int lanes = 1;
    while (lanes < packs && lanes < SUM_THREADS)
        lanes *= 2;
    float *partial = (float *)gpu_scratch(on->gpu,
                                          (size_t)(like.models * chunks * like.width) * sizeof *partial);
    if (!partial || !out.data) return;
    const dim3 grid((unsigned)chunks, (unsigned)((packs + lanes - 1) / lanes), (unsigned)like.models);
    if (four)
        sum_kernel<4><<<grid, SUM_THREADS, 0, on->gpu->stream>>>(partial, all_of(in), (int)like.rows,
                                                                 (int)like.width, lanes, f);
    else
        sum_kernel<1><<<grid, SUM_THREADS, 0, on->gpu->stream>>>(partial, all_of(in), (int)like.rows,
                                                                 (int)like.width, lanes, f);
    gpu_launched(on, name);
    sum_finish(on, out, partial, chunks, part, add);
}

#endif
