/* SPDX-License-Identifier: MIT
 * Queries and keys as features are fitted to them, and the logarithms of their softmax sums. */
#include "train/cuda/feature_tile.cuh"

extern "C" {
#include "train/cuda/feature_loss.h"
}

/* ---- factor (rows - shift) m^T */

/* A block has 64 rows. */
static __global__ void __launch_bounds__(TILE_THREADS)
    rows_kernel(float *out, const __grid_constant__ feature_rows from, int channels, int width)
{
    __shared__ tile a, b;
    const int64_t first = (int64_t)blockIdx.x * SIDE;
    for (int column = 0; column < width; column += SIDE) {
        patch sum;
        patch_clear(sum);
        for (int k = 0; k < channels; k += SIDE) {
            __syncthreads();
            tile_load_any(a, from.x + first * from.row + k, from.row, from.count - first, channels - k,
                          (float)from.factor, from.shift ? from.shift + k : NULL);
            tile_load_any(b, from.matrix + (int64_t)column * channels + k, channels, channels - column,
                          channels - k, 1, NULL);
            __syncthreads();
            add_rows_rows(sum, a, b);
        }
        for (int e = 0; e < EACH * EACH; e++) {
            const int64_t i = first + tile_y() + ACROSS * (e / EACH);
            const int c = column + tile_x() + ACROSS * (e % EACH);
            if (i < from.count && c < width) out[i * width + c] = sum[e / EACH][e % EACH];
        }
    }
}

extern "C" void gpu_feature_rows(const feature_losses *l, float *out, const feature_rows *from)
{
    const unsigned blocks = (unsigned)((from->count + SIDE - 1) / SIDE);
    rows_kernel<<<blocks, TILE_THREADS, 0, l->on->gpu->stream>>>(out, *from, (int)l->channels, (int)l->row);
    gpu_launched(l->on, "rows of features");
}

/* ---- sums of e^{x . y} */

typedef struct exact_job {
    const float *x, *y;
    float *exact;
    int tokens, row, queries, windows;
    bool causal, largest;
    int sinks, window; /* window 0: all keys, else those that are near */
} exact_job;

static __device__ __forceinline__ bool counts(const exact_job &j, int i, int key)
{
    const bool seen = key < (j.causal ? min(i + 1, j.tokens) : j.tokens);
    return seen && (j.window == 0 || key < j.sinks || key > i - j.window);
}

/* Of 64 queries over 64 keys, to the logarithms of the rows' sums. */
static __device__ __forceinline__ void add_pairs(log_sum *of, const exact_job &j, const patch &pairs,
                                                 int first_query, int first_key)
{
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int i = first_query + tile_y() + ACROSS * r, key = first_key + tile_x();
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int c = 0; c < EACH; c++)
            if (counts(j, i, key + ACROSS * c)) top = fmaxf(top, pairs[r][c]);
        top = across_max(top);
#pragma unroll
        for (int c = 0; c < EACH; c++)
            if (counts(j, i, key + ACROSS * c)) sum += expf(pairs[r][c] - top);
        sum = across_sum(sum);
        if (sum > 0) log_sum_add(&of[r], top, sum);
    }
}

/* A block has 64 queries of a window (x) of a query head (y). */
static __global__ void __launch_bounds__(TILE_THREADS) exact_kernel(const __grid_constant__ exact_job j)
{
    __shared__ tile a, b;
    const unsigned tiles = (unsigned)((j.tokens + SIDE - 1) / SIDE), window = blockIdx.x / tiles;
    const int first = (int)(blockIdx.x % tiles) * SIDE,
              end = j.causal ? min(first + SIDE, j.tokens) : j.tokens;
    const int64_t at = ((int64_t)blockIdx.y * j.windows + window) * j.tokens,
                  keys = ((int64_t)(blockIdx.y / (unsigned)j.queries) * j.windows + window) * j.tokens;
    log_sum of[EACH] = { log_sum_none(), log_sum_none(), log_sum_none(), log_sum_none() };
    for (int key = 0; key < end; key += SIDE) {
        patch pairs;
        patch_clear(pairs);
        for (int k = 0; k < j.row; k += SIDE) {
            __syncthreads();
            tile_load(a, j.x + (at + first) * j.row + k, j.row, j.tokens - first, j.row - k);
            tile_load(b, j.y + (keys + key) * j.row + k, j.row, j.tokens - key, j.row - k);
            __syncthreads();
            add_rows_rows(pairs, a, b);
        }
        add_pairs(of, j, pairs, first, key);
    }
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        const int i = first + tile_y() + ACROSS * r;
        if (tile_x() == 0 && i < j.tokens) j.exact[at + i] = j.largest ? of[r].top : log_sum_of(of[r]);
    }
}

/* largest [head] = the largest of its `count` numbers. */
static __global__ void __launch_bounds__(TILE_THREADS)
    largest_kernel(float *largest, const float *exact, int64_t count)
{
    __shared__ float tops[TILE_THREADS];
    float top = -INFINITY;
    for (int64_t i = threadIdx.x; i < count; i += TILE_THREADS)
        top = fmaxf(top, exact[blockIdx.x * count + i]);
    tops[threadIdx.x] = top;
    for (int step = TILE_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) tops[threadIdx.x] = fmaxf(tops[threadIdx.x], tops[threadIdx.x + step]);
    }
    if (threadIdx.x == 0) largest[blockIdx.x] = tops[0];
}

extern "C" void gpu_feature_exact(const feature_losses *l)
{
    exact_job j = { l->x,
                    l->y,
                    l->exact,
                    (int)l->tokens,
                    (int)l->row,
                    (int)l->queries,
                    (int)l->windows,
                    l->causal,
                    l->kind == FEATURE_LOSS_L2,
                    0,
                    0 };
    const dim3 grid((unsigned)((l->tokens + SIDE - 1) / SIDE * l->windows),
                    (unsigned)(l->heads * l->queries));
    exact_kernel<<<grid, TILE_THREADS, 0, l->on->gpu->stream>>>(j);
    gpu_launched(l->on, "sums of softmax");
    if (l->window > 0) {
        j.exact = l->near, j.sinks = (int)l->sinks, j.window = (int)l->window;
        exact_kernel<<<grid, TILE_THREADS, 0, l->on->gpu->stream>>>(j);
        gpu_launched(l->on, "sums of what is near");
    }
    if (!j.largest) return;
    largest_kernel<<<(unsigned)l->heads, TILE_THREADS, 0, l->on->gpu->stream>>>(
        l->largest, l->exact, l->queries * l->windows * l->tokens);
    gpu_launched(l->on, "largest products");
}
