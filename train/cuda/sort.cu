/* SPDX-License-Identifier: MIT
 * A radix sort, digits from the lowest on. In each pass blocks count the digits of their rows, one block of a
 * model finds where those of each block begin, and the blocks move their rows there: warps one after another,
 * lanes in their order, so that it is stable. Counts are integers: the order in which they are added does not
 * matter. */
#include "train/cuda/sort.cuh"

#include <assert.h>

enum { DIGIT = 7, BINS = 1 << DIGIT, SORT_THREADS = 256, WARPS = SORT_THREADS / 32, ROUNDS = 4 };
enum { CHUNK = SORT_THREADS * ROUNDS, SCAN_THREADS = 1024 };

/* Arrays of a model follow each other at `stride` in `key`, at `rows` in all others. Without `row` it is the
 * place. */
typedef struct sort_pass {
    const int *key, *row;
    int *keys, *sorted, *begin; /* begin [models][BINS][chunks] */
    int64_t stride;
    int rows, chunks, shift;
} sort_pass;

static __device__ int digit_of(const sort_pass &s, int i)
{
    return i < s.rows ? s.key[blockIdx.y * s.stride + i] >> s.shift & (BINS - 1) : -1;
}

static __global__ void __launch_bounds__(SORT_THREADS) count_kernel(sort_pass s)
{
    __shared__ int bins[BINS];
    for (int d = (int)threadIdx.x; d < BINS; d += SORT_THREADS)
        bins[d] = 0;
    __syncthreads();
    for (int n = 0; n < ROUNDS; n++) {
        const int d = digit_of(s, (int)blockIdx.x * CHUNK + n * SORT_THREADS + (int)threadIdx.x);
        if (d >= 0) atomicAdd(&bins[d], 1);
    }
    __syncthreads();
    for (int d = (int)threadIdx.x; d < BINS; d += SORT_THREADS)
        s.begin[((int64_t)blockIdx.y * BINS + d) * s.chunks + blockIdx.x] = bins[d];
}

/* begin becomes, of each digit and chunk, how many rows stand before: one block for each model. */
static __global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(int *begin, int count)
{
    __shared__ int sums[SCAN_THREADS];
    const int each = (count + SCAN_THREADS - 1) / SCAN_THREADS, first = (int)threadIdx.x * each;
    int *mine = begin + (int64_t)blockIdx.x * count;
    int sum = 0;
    for (int n = first; n < min(first + each, count); n++)
        sum += mine[n];
    sums[threadIdx.x] = sum;
    for (int step = 1; step < SCAN_THREADS; step *= 2) {
        __syncthreads();
        const int before = (int)threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
        __syncthreads();
        sums[threadIdx.x] += before;
    }
    int before = sums[threadIdx.x] - sum;
    for (int n = first; n < min(first + each, count); n++) {
        const int here = mine[n];
        mine[n] = before;
        before += here;
    }
}

static __global__ void __launch_bounds__(SORT_THREADS) move_kernel(sort_pass s)
{
    __shared__ int place[WARPS][BINS];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int first = (int)blockIdx.x * CHUNK + warp * 32 * ROUNDS + lane;
    for (int n = (int)threadIdx.x; n < WARPS * BINS; n += SORT_THREADS)
        place[n / BINS][n % BINS] = 0;
    __syncthreads();
    for (int n = 0; n < ROUNDS; n++) {
        const int d = digit_of(s, first + 32 * n);
        const unsigned same = __match_any_sync(0xffffffffu, d);
        if (d >= 0 && lane == __ffs((int)same) - 1) place[warp][d] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    if (threadIdx.x < BINS) {
        int next = s.begin[((int64_t)blockIdx.y * BINS + threadIdx.x) * s.chunks + blockIdx.x];
        for (int w = 0; w < WARPS; w++) {
            const int here = place[w][threadIdx.x];
            place[w][threadIdx.x] = next;
            next += here;
        }
    }
    __syncthreads();
    for (int n = 0; n < ROUNDS; n++) {
        const int i = first + 32 * n, d = digit_of(s, i);
        const unsigned same = __match_any_sync(0xffffffffu, d);
        const int64_t model = (int64_t)blockIdx.y * s.rows;
        if (d >= 0) {
            const int to = place[warp][d] + __popc(same & ((1u << lane) - 1));
            s.keys[model + to] = s.key[blockIdx.y * s.stride + i];
            s.sorted[model + to] = s.row ? s.row[model + i] : i;
        }
        __syncwarp();
        if (d >= 0 && lane == __ffs((int)same) - 1) place[warp][d] += __popc(same);
        __syncwarp();
    }
}

static int64_t chunks_of(int64_t rows) { return (rows + CHUNK - 1) / CHUNK; }

static size_t list_bytes(int64_t models, int64_t rows)
{
    return gpu_aligned((size_t)(models * rows) * sizeof(int));
}

size_t sort_bytes(int64_t models, int64_t rows)
{
    return 4 * list_bytes(models, rows) +
           gpu_aligned((size_t)(models * BINS * chunks_of(rows)) * sizeof(int));
}

const int *sorted_keys(const void *room) { return (const int *)room; }

const int *sorted_rows(const void *room, int64_t models, int64_t rows)
{
    return (const int *)((const char *)room + list_bytes(models, rows));
}

void sort_rows(cudaStream_t stream, numbers list, int64_t models, int64_t rows, int64_t below, void *room)
{
    const size_t bytes = list_bytes(models, rows);
    const dim3 grid((unsigned)chunks_of(rows), (unsigned)models);
    char *base = (char *)room;
    int *at[2][2] = { { (int *)base, (int *)(base + bytes) },
                      { (int *)(base + 2 * bytes), (int *)(base + 3 * bytes) } };
    sort_pass s = { list.data,  NULL,      NULL,        NULL, (int *)(base + 4 * bytes),
                    list.model, (int)rows, (int)grid.x, 0 };
    int passes = 1;
    while ((below - 1) >> passes * DIGIT > 0)
        passes++;
    assert(models * rows < INT32_MAX && models < 65536);
    for (int left = passes - 1; left >= 0; left--) {
        s.keys = at[left % 2][0], s.sorted = at[left % 2][1];
        count_kernel<<<grid, SORT_THREADS, 0, stream>>>(s);
        scan_kernel<<<(unsigned)models, SCAN_THREADS, 0, stream>>>(s.begin, BINS * s.chunks);
        move_kernel<<<grid, SORT_THREADS, 0, stream>>>(s);
        s.key = s.keys, s.row = s.sorted, s.stride = rows;
        s.shift += DIGIT;
    }
}
