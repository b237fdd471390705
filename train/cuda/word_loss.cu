/* SPDX-License-Identifier: MIT
 * Losses of rows over words, and their gradients. Where the kernels for Hopper can take them, logits never
 * lie in memory, and rows without a target cost nothing: those with one are first brought together, in their
 * order. Sums over words, and over rows, are made in parts that depend on the shape of one model alone. */
#include "train/cuda/sum.cuh"
#include "train/cuda/word_loss.h"

extern "C" {
#include "train/word_loss.h"
}

enum { ORDER_THREADS = 1024, PACK_THREADS = 256, CHUNK = 8 }; /* elements of a load or store */
enum { LOSS_THREADS = 256 };

/* Where each row of a model went, -1: it has no target; and what stands where. */
typedef struct order {
    int *place, *row;
} order;

static __device__ __forceinline__ int rounded_up(int rows)
{
    return (rows + WORD_TILE - 1) / WORD_TILE * WORD_TILE;
}

/* One block for each model, whose warps have rows that follow each other. */
static __global__ void __launch_bounds__(ORDER_THREADS)
    order_kernel(order o, int *count, int *packed, float *scale, numbers targets, int rows, int most)
{
    enum { WARPS = ORDER_THREADS / 32 };
    __shared__ int sums[WARPS];
    const int m = (int)blockIdx.x, warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int each = (rows + ORDER_THREADS - 1) / ORDER_THREADS * 32;
    const int first = min(warp * each, rows), end = min(first + each, rows);
    const int *target = targets.data + m * targets.model;
    int sum = 0, next = 0, all = 0;
#pragma unroll 8
    for (int i = first + lane; i < end; i += 32)
        sum += target[i] >= 0;
    sum = __reduce_add_sync(0xffffffffu, sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < WARPS; w++)
        next += w < warp ? sums[w] : 0, all += sums[w];
#pragma unroll 4
    for (int i = first + lane; i - lane < end; i += 32) {
        const int wanted = i < end ? target[i] : -1;
        const unsigned have = __ballot_sync(0xffffffffu, wanted >= 0);
        const int to = next + __popc(have & ((1u << lane) - 1));
        next += __popc(have);
        if (i < end) o.place[(int64_t)m * rows + i] = wanted >= 0 ? to : -1;
        if (wanted < 0) continue;
        o.row[(int64_t)m * rows + to] = i;
        packed[(int64_t)m * most + to] = wanted;
    }
    for (int i = all + (int)threadIdx.x; i < rounded_up(all); i += ORDER_THREADS)
        packed[(int64_t)m * most + i] = -1, scale[(int64_t)m * most + i] = INFINITY;
    if (threadIdx.x == 0) count[m] = all;
}

/* Rows of x as tiles, a chunk for each thread. Without a list all of them; else the first count[m] that it
 * names, and zeros to the end of their tile. */
static __global__ void __launch_bounds__(PACK_THREADS)
    pack_kernel(__nv_bfloat16 *tiles, view x, const int *list, const int *count, int rows, int most)
{
    const int n = (int)(blockIdx.x * PACK_THREADS + threadIdx.x), m = (int)blockIdx.y;
    const int i = n / (WORD_WIDTH / CHUNK), c = n % (WORD_WIDTH / CHUNK);
    const int filled = list ? count[m] : rows;
    if (i >= rounded_up(filled)) return;
    uint4 some = make_uint4(0, 0, 0, 0);
    if (i < filled) {
        const int64_t from = list ? list[(int64_t)m * rows + i] : i;
        some = *(const uint4 *)((const __nv_bfloat16 *)x.data + m * x.model + from * x.row + c * CHUNK);
    }
    __nv_bfloat16 *tile = tiles + ((int64_t)m * most + i / WORD_TILE * WORD_TILE) * WORD_WIDTH;
    const int r = i % WORD_TILE, half = c / 8;
    *(uint4 *)(tile + half * (WORD_ELEMENTS / 2) + r * (WORD_WIDTH / 2) + ((c % 8) ^ (r % 8)) * CHUNK) = some;
}

/* A warp for each row: with W = the sum of weights over all words, and w that of the target, the loss is
 * log(W / w). The gradient is (the sum of weights times words, of all but the target, - (W - w) word of the
 * target) / W: nothing cancels where w is nearly all of W. */
static __global__ void __launch_bounds__(LOSS_THREADS)
    loss_kernel(view each, view dx, float *scale, word_job job, const int *place, view table, numbers targets,
                int rows)
{
    enum { COLUMNS = WORD_WIDTH / 32 };
    const int i = (int)(blockIdx.x * LOSS_THREADS + threadIdx.x) / 32, m = (int)blockIdx.y;
    const int c = (int)threadIdx.x % 32 * COLUMNS, most = job.row_tiles * WORD_TILE;
    if (i >= rows) return;
    const int at = place[(int64_t)m * rows + i];
    float to[COLUMNS] = {}, results[2] = {};
    if (at >= 0) {
        float top = -INFINITY, rest = 0, wanted = -INFINITY, best = -INFINITY;
        for (int part = 0; part < job.word_parts; part++)
            top = fmaxf(top, job.sums[((int64_t)m * job.word_parts + part) * most + at].top);
        for (int part = 0; part < job.word_parts; part++) {
            const int64_t from = ((int64_t)m * job.word_parts + part) * most + at;
            const word_sums s = job.sums[from];
            const float by = exp2f(s.top - top);
            const float4 mean = *(const float4 *)(job.means + from * WORD_WIDTH + c);
            to[0] += by * mean.x, to[1] += by * mean.y, to[2] += by * mean.z, to[3] += by * mean.w;
            rest += by * s.rest;
            wanted = fmaxf(wanted, s.wanted), best = fmaxf(best, s.most);
        }
        const float log2_e = 1.44269504f, whole = rest + exp2f(fmaf(wanted, log2_e, -top));
        const float share = 1 / (whole * (float)job.counts[m]), log2_whole = top + log2f(whole);
        float word[COLUMNS];
        load<COLUMNS>(word, table, m, targets.data[m * targets.model + i], c);
#pragma unroll
        for (int e = 0; e < COLUMNS; e++)
            to[e] = (to[e] - rest * word[e]) * share;
        results[0] = (log2_whole - wanted * log2_e) / log2_e, results[1] = wanted >= best;
        if (c == 0) scale[(int64_t)m * most + at] = log2_whole;
    }
    store<COLUMNS>(dx, m, i, c, to);
    if (c == 0) store<1>(each, m, i, 0, &results[0]), store<1>(each, m, i, 1, &results[1]);
}

/* ---- the operation */

static bool fits(const machine *on, matrix dx, matrix x, matrix table)
{
    return gpu_is_hopper(on->gpu) && x.dtype == LOAM_BF16 && table.dtype == LOAM_BF16 &&
           x.width == WORD_WIDTH && table.rows % WORD_TILE == 0 && table.row == WORD_WIDTH &&
           (intptr_t)x.data % 16 == 0 && x.row % CHUNK == 0 && (intptr_t)table.data % 16 == 0 &&
           table.model % CHUNK == 0 && x.model % CHUNK == 0 && (!dx.data || view_aligned(view_of(dx)));
}

/* Its arrays one after another; *bytes grows. */
template <class T> static T *take(char *room, size_t *bytes, int64_t count)
{
    T *taken = room ? (T *)(room + *bytes) : NULL;
    *bytes += gpu_aligned((size_t)count * sizeof(T));
    return taken;
}

typedef struct word_room {
    word_job job;
    order o;
    __nv_bfloat16 *rows, *words;
    int *count, *packed;
    float *scale;
    size_t bytes;
} word_room;

/* So many parts that a single model has enough blocks. */
static int parts_of_words(const word_job *job) { return job->row_tiles <= 64 ? 4 : 2; }
static int parts_of_rows(const word_job *job)
{
    return job->row_tiles >= 64 ? 4 : job->row_tiles >= 16 ? 2 : 1;
}

static word_room lay_out(char *room, matrix x, matrix table)
{
    word_room r = {};
    word_job *job = &r.job;
    job->models = (int)x.models;
    job->row_tiles = (int)((x.rows + WORD_TILE - 1) / WORD_TILE),
    job->word_tiles = (int)(table.rows / WORD_TILE);
    job->word_parts = parts_of_words(job), job->row_parts = parts_of_rows(job);
    const int64_t rows = x.models * job->row_tiles * WORD_TILE, words = x.models * table.rows;
    r.o.place = take<int>(room, &r.bytes, x.models * x.rows),
    r.o.row = take<int>(room, &r.bytes, x.models * x.rows);
    r.count = take<int>(room, &r.bytes, x.models);
    r.packed = take<int>(room, &r.bytes, rows), r.scale = take<float>(room, &r.bytes, rows);
    r.rows = take<__nv_bfloat16>(room, &r.bytes, rows * WORD_WIDTH);
    r.words = take<__nv_bfloat16>(room, &r.bytes, words * WORD_WIDTH);
    job->sums = take<word_sums>(room, &r.bytes, job->word_parts * rows);
    job->means = take<float>(room, &r.bytes, job->word_parts * rows * WORD_WIDTH);
    job->parts = take<float>(room, &r.bytes, job->row_parts * words * WORD_WIDTH);
    job->rows = r.rows, job->words = r.words, job->count = r.count, job->targets = r.packed,
    job->scale = r.scale;
    return r;
}

static void pack(const machine *on, __nv_bfloat16 *tiles, matrix x, const int *list, const int *count,
                 int most)
{
    const int64_t chunks = (int64_t)most * (WORD_WIDTH / CHUNK);
    const dim3 grid((unsigned)((chunks + PACK_THREADS - 1) / PACK_THREADS), (unsigned)x.models);
    assert(chunks < INT32_MAX - PACK_THREADS);
    pack_kernel<<<grid, PACK_THREADS, 0, on->gpu->stream>>>(tiles, view_of(x), list, count, (int)x.rows,
                                                            most);
    gpu_launched(on, "word_loss");
}

static void by_tiles(const machine *on, matrix each, matrix dx, matrix dtable, matrix x, matrix table,
                     numbers targets, const int64_t *counts)
{
    char *room = gpu_scratch(on->gpu, lay_out(NULL, x, table).bytes);
    word_room r = lay_out(room, x, table);
    const int most = r.job.row_tiles * WORD_TILE, rows = (int)x.rows;
    const dim3 grid((unsigned)((x.rows * 32 + LOSS_THREADS - 1) / LOSS_THREADS), (unsigned)x.models);
    if (!room) return;
    r.job.counts = counts;
    order_kernel<<<(unsigned)x.models, ORDER_THREADS, 0, on->gpu->stream>>>(r.o, r.count, r.packed, r.scale,
                                                                            targets, rows, most);
    pack(on, r.rows, x, r.o.row, r.count, most);
    pack(on, r.words, table, NULL, NULL, (int)table.rows);
    gpu_check(on->gpu, word_rows_launch(&r.job, on->gpu->stream), "word_loss");
    loss_kernel<<<grid, LOSS_THREADS, 0, on->gpu->stream>>>(view_of(each), view_of(dx), r.scale, r.job,
                                                            r.o.place, view_of(table), targets, rows);
    gpu_launched(on, "word_loss");
    if (!dtable.data) return;
    gpu_check(on->gpu, word_words_launch(&r.job, on->gpu->stream), "word_loss");
    sum_fold(on, dtable, r.job.parts, r.job.row_parts, false);
}

extern "C" void cuda_word_loss(const machine *on, matrix each, matrix dx, matrix dtable, matrix x,
                               matrix table, numbers targets, const int64_t *counts, matrix logits, matrix g)
{
    if (fits(on, dx, x, table))
        by_tiles(on, each, dx, dtable, x, table, targets, counts);
    else
        word_loss_in_blocks(on, each, dx, dtable, x, table, targets, counts, logits, g);
}
