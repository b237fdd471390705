/* SPDX-License-Identifier: MIT
 * The gradient of a table of words. The tokens of each model are sorted by word, those of a word in their
 * order, and cut into pieces of PIECE; a block sums the runs of equal words in its piece. A run that lies
 * within the piece is added to the table; the parts of one that crosses into others wait for a second kernel,
 * in which the block where it begins adds them up. So the order of a sum depends on the tokens of its model
 * alone. */
#include "train/cuda/each.cuh"
#include "train/cuda/sort.cuh"

enum { PIECE = 64, AHEAD = 8, WORD_THREADS = 128 }; /* rows that are read ahead */

typedef struct sorted {
    const int *key, *row; /* a word; its row in the model */
    int count, pieces;    /* of a model */
} sorted;

static __device__ float *part_of(float *parts, const sorted &s, int piece, int which, int width)
{
    return parts + (((int64_t)blockIdx.z * s.pieces + piece) * 2 + which) * width;
}

template <int N> static __device__ __forceinline__ void add_to(float *sum, const float *x)
{
#pragma unroll
    for (int e = 0; e < N; e++)
        sum[e] += x[e];
}

/* A part, as an array of float32 that has no other row. */
static __device__ view view_of_part(float *part) { return { (char *)part, 0, 0, 1, false }; }

/* The columns of a thread: N from here on. */
template <int N> static __device__ __forceinline__ int first_column()
{
    return ((int)blockIdx.y * (int)blockDim.x + (int)threadIdx.x) * N;
}

/* parts [models][pieces][2][width]: the sums of a first run that began before the piece, and of a last one
 * that goes on behind it; a run through all of the piece is its first. */
template <int N>
static __global__ void __launch_bounds__(WORD_THREADS)
    runs_kernel(view table, float *parts, view g, sorted s, int width)
{
    const int first = (int)blockIdx.x * PIECE, count = min(PIECE, s.count - first);
    const int c = first_column<N>(), m = (int)blockIdx.z;
    const int *key = s.key + (int64_t)m * s.count + first, *row = s.row + (int64_t)m * s.count + first;
    __shared__ int keys[PIECE + 1], rows[PIECE];
    for (int n = (int)threadIdx.x; n <= PIECE; n += (int)blockDim.x) {
        keys[n] = first + n < s.count ? key[n] : -1;
        if (n < count) rows[n] = row[n];
    }
    __syncthreads();
    if (c >= width) return;
    bool began = first == 0 || key[-1] != keys[0];
    float sum[N] = {};
    for (int n = 0; n < count; n += AHEAD) {
        float x[AHEAD][N] = {}, before[AHEAD][N] = {}; /* what the table has of a word whose run ends here */
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = n + k;
            if (at >= count) continue;
            fetch<N>(x[k], g, m, rows[at], c);
            if (keys[at + 1] != keys[at]) fetch<N>(before[k], table, m, keys[at], c);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = n + k;
            if (at >= count) break;
            widen<N>(x[k], g);
            add_to<N>(sum, x[k]);
            const bool goes_on = keys[at + 1] == keys[at];
            if (goes_on && at + 1 < count) continue;
            if (!began) {
                store<N>(view_of_part(part_of(parts, s, (int)blockIdx.x, 0, width)), 0, 0, c, sum);
            } else if (goes_on) {
                store<N>(view_of_part(part_of(parts, s, (int)blockIdx.x, 1, width)), 0, 0, c, sum);
            } else {
                widen<N>(before[k], table);
                add_to<N>(sum, before[k]);
                store<N>(table, m, keys[at], c, sum);
            }
#pragma unroll
            for (int e = 0; e < N; e++)
                sum[e] = 0;
            began = true;
        }
    }
}

/* The first piece after `piece` that does not begin with this key. */
static __device__ int piece_after(const int *keys, const sorted &s, int piece, int key)
{
    int low = piece + 1, high = s.pieces;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (keys[(int64_t)middle * PIECE] == key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The runs that begin in a piece and end in a later one. */
template <int N>
static __global__ void __launch_bounds__(WORD_THREADS)
    across_kernel(view table, float *parts, sorted s, int width)
{
    const int piece = (int)blockIdx.x, first = piece * PIECE, next = first + PIECE, c = first_column<N>();
    const int *keys = s.key + (int64_t)blockIdx.z * s.count;
    if (next >= s.count || c >= width) return;
    const int key = keys[next - 1];
    if (keys[next] != key || (keys[first] == key && first > 0 && keys[first - 1] == key)) return;
    const int end = piece_after(keys, s, piece, key);
    float sum[N], x[N];
    load<N>(sum, view_of_part(part_of(parts, s, piece, 1, width)), 0, 0, c);
#pragma unroll 8
    for (int other = piece + 1; other < end; other++) {
        load<N>(x, view_of_part(part_of(parts, s, other, 0, width)), 0, 0, c);
        add_to<N>(sum, x);
    }
    load<N>(x, table, blockIdx.z, key, c);
    add_to<N>(sum, x);
    store<N>(table, blockIdx.z, key, c, sum);
}

extern "C" size_t gpu_order_bytes(int64_t models, int64_t rows) { return sort_bytes(models, rows); }

/* On the side stream, from here on. */
extern "C" void cuda_order_tokens(const machine *on, void *order, numbers tokens, int64_t models,
                                  int64_t rows, int64_t words)
{
    machine_gpu *gpu = on->gpu;
    gpu_check(gpu, cudaEventRecord(gpu->forked, gpu->stream), "order_tokens");
    gpu_check(gpu, cudaStreamWaitEvent(gpu->side, gpu->forked, 0), "order_tokens");
    sort_rows(gpu->side, tokens, models, rows, words, order);
    gpu_launched(on, "order_tokens");
    gpu_check(gpu, cudaEventRecord(gpu->joined, gpu->side), "order_tokens");
}

template <int N>
static void sum_words(const machine *on, const view &table, float *parts, const view &g, const sorted &s,
                      int64_t width, int64_t models)
{
    const int64_t columns = (width + N - 1) / N;
    const unsigned whole = (unsigned)(columns + 31) / 32 * 32, most = WORD_THREADS;
    const unsigned threads = whole < most ? whole : most;
    const dim3 grid((unsigned)s.pieces, (unsigned)(columns + threads - 1) / threads, (unsigned)models);
    runs_kernel<N><<<grid, threads, 0, on->gpu->stream>>>(table, parts, g, s, (int)width);
    across_kernel<N><<<grid, threads, 0, on->gpu->stream>>>(table, parts, s, (int)width);
    gpu_launched(on, "embed_back");
}

extern "C" void cuda_embed_back(const machine *on, matrix dtable, matrix g, numbers tokens, const void *order)
{
    const int64_t pieces = (g.rows + PIECE - 1) / PIECE;
    const sorted s = { sorted_keys(order), sorted_rows(order, g.models, g.rows), (int)g.rows, (int)pieces };
    float *parts = (float *)gpu_scratch(on->gpu, (size_t)(g.models * pieces * 2 * g.width) * sizeof *parts);
    (void)tokens;
    if (!parts) return;
    view table = view_of(dtable), from = view_of(g);
    table.row = dtable.row, from.row = g.row;
    gpu_check(on->gpu, cudaStreamWaitEvent(on->gpu->stream, on->gpu->joined, 0), "embed_back");
    if (g.width % 4 == 0 && view_aligned(table) && view_aligned(from))
        sum_words<4>(on, table, parts, from, s, g.width, g.models);
    else
        sum_words<1>(on, table, parts, from, s, g.width, g.models);
}
