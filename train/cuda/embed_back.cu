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

/* parts [models][pieces][2][width]: the sums of a first run that began before the piece, and of a last one
 * that goes on behind it; a run through all of the piece is its first. */
static __global__ void __launch_bounds__(WORD_THREADS)
    runs_kernel(view table, float *parts, view g, sorted s, int width)
{
    const int first = (int)blockIdx.x * PIECE, count = min(PIECE, s.count - first);
    const int c = (int)blockIdx.y * WORD_THREADS + (int)threadIdx.x, m = (int)blockIdx.z;
    const int *key = s.key + (int64_t)m * s.count + first, *row = s.row + (int64_t)m * s.count + first;
    __shared__ int keys[PIECE + 1], rows[PIECE];
    for (int n = (int)threadIdx.x; n <= PIECE; n += WORD_THREADS) {
        keys[n] = first + n < s.count ? key[n] : -1;
        if (n < count) rows[n] = row[n];
    }
    __syncthreads();
    if (c >= width) return;
    bool began = first == 0 || key[-1] != keys[0];
    float sum = 0;
    for (int n = 0; n < count; n += AHEAD) {
        float x[AHEAD] = {}, before[AHEAD] = {}; /* what the table has of a word whose run ends here */
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = n + k;
            if (at >= count) continue;
            fetch<1>(&x[k], g, m, rows[at], c);
            if (keys[at + 1] != keys[at]) fetch<1>(&before[k], table, m, keys[at], c);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = n + k;
            if (at >= count) break;
            widen<1>(&x[k], g);
            sum += x[k];
            const bool goes_on = keys[at + 1] == keys[at];
            if (goes_on && at + 1 < count) continue;
            if (!began) {
                part_of(parts, s, (int)blockIdx.x, 0, width)[c] = sum;
            } else if (goes_on) {
                part_of(parts, s, (int)blockIdx.x, 1, width)[c] = sum;
            } else {
                widen<1>(&before[k], table);
                sum += before[k];
                store<1>(table, m, keys[at], c, &sum);
            }
            sum = 0, began = true;
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
static __global__ void __launch_bounds__(WORD_THREADS)
    across_kernel(view table, float *parts, sorted s, int width)
{
    const int piece = (int)blockIdx.x, first = piece * PIECE, next = first + PIECE;
    const int c = (int)blockIdx.y * WORD_THREADS + (int)threadIdx.x;
    const int *keys = s.key + (int64_t)blockIdx.z * s.count;
    if (next >= s.count || c >= width) return;
    const int key = keys[next - 1];
    if (keys[next] != key || (keys[first] == key && first > 0 && keys[first - 1] == key)) return;
    const int end = piece_after(keys, s, piece, key);
    float sum = part_of(parts, s, piece, 1, width)[c], before;
#pragma unroll 8
    for (int other = piece + 1; other < end; other++)
        sum += part_of(parts, s, other, 0, width)[c];
    load<1>(&before, table, blockIdx.z, key, c);
    sum += before;
    store<1>(table, blockIdx.z, key, c, &sum);
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

extern "C" void cuda_embed_back(const machine *on, matrix dtable, matrix g, numbers tokens, const void *order)
{
    const int64_t pieces = (g.rows + PIECE - 1) / PIECE;
    const sorted s = { sorted_keys(order), sorted_rows(order, g.models, g.rows), (int)g.rows, (int)pieces };
    float *part = (float *)gpu_scratch(on->gpu, (size_t)(g.models * pieces * 2 * g.width) * sizeof *part);
    (void)tokens;
    if (!part) return;
    const dim3 grid((unsigned)pieces, (unsigned)((g.width + WORD_THREADS - 1) / WORD_THREADS),
                    (unsigned)g.models);
    view table = view_of(dtable), from = view_of(g);
    table.row = dtable.row, from.row = g.row;
    gpu_check(on->gpu, cudaStreamWaitEvent(on->gpu->stream, on->gpu->joined, 0), "embed_back");
    runs_kernel<<<grid, WORD_THREADS, 0, on->gpu->stream>>>(table, part, from, s, (int)g.width);
    across_kernel<<<grid, WORD_THREADS, 0, on->gpu->stream>>>(table, part, s, (int)g.width);
    gpu_launched(on, "embed_back");
}
