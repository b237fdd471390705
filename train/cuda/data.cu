/* SPDX-License-Identifier: MIT
 * Examples on a GPU: the numbers of train/data.h, integers exactly, reals to the rounding of float64
 * functions and then to float32. A block makes an example; of regression one of its segments. */
extern "C" {
#include "train/batch.h"
#include "train/cuda/data.h"
}

#include "train/cuda/gpu.cuh"

#include <assert.h>
#include <math.h>

enum { DATA_THREADS = 128, POINTS = 16 }; /* rows of a segment that are made at a time */

/* As in the files of the tasks. */
enum { OF_KEYS, OF_VALUES, OF_SLOTS, OF_WORDS_BETWEEN };
enum { OF_ITEMS, OF_COUNT, OF_SWAPS, OF_PLACES_ASKED };
enum { OF_POINTS, OF_MAPS, OF_NOISE, OF_ORDER, OF_SEGMENTS, OF_QUERIES };

typedef struct stream {
    uint64_t seed, id;
} stream;

static __device__ stream stream_of(const batch_request &r, train_task task, int purpose, int example)
{
    return { r.seed,
             (uint64_t)task << 56 | (uint64_t)r.split << 52 | (uint64_t)purpose << 48 | (uint64_t)example };
}

/* Philox4x32-10 (Salmon et al. 2011), block `block` of the stream. Random123, which the CPU has, needs the
 * C++ library in CUDA. */
static __device__ void word_pair(stream from, uint64_t block, uint64_t *first, uint64_t *second)
{
    uint32_t x[4] = { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)from.id,
                      (uint32_t)(from.id >> 32) };
    uint32_t key[2] = { (uint32_t)from.seed, (uint32_t)(from.seed >> 32) };
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)x[0] * 0xD2511F53u, b = (uint64_t)x[2] * 0xCD9E8D57u;
        x[0] = (uint32_t)(b >> 32) ^ x[1] ^ key[0], x[1] = (uint32_t)b;
        x[2] = (uint32_t)(a >> 32) ^ x[3] ^ key[1], x[3] = (uint32_t)a;
        key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
    }
    *first = (uint64_t)x[1] << 32 | x[0];
    *second = (uint64_t)x[3] << 32 | x[2];
}

static __device__ uint64_t word_of(stream from, int n)
{
    uint64_t pair[2];
    word_pair(from, (uint64_t)n / 2, &pair[0], &pair[1]);
    return pair[n % 2];
}

/* In (0, 1). */
static __device__ double uniform_of(uint64_t word) { return (0.5 + (double)(word >> 12)) * 0x1p-52; }

static __device__ int below(uint64_t word, int n) { return (int)((word >> 32) * (uint64_t)n >> 32); }

/* out[0 .. count - 1] = normals first .. of the stream, by all threads of the block. */
static __device__ void fill_normals(double *out, stream from, int64_t first, int count)
{
    const double two_pi = 6.283185307179586477;
    for (int64_t pair = first / 2 + threadIdx.x; 2 * pair < first + count; pair += DATA_THREADS) {
        uint64_t words[2];
        double s, c;
        word_pair(from, (uint64_t)pair, &words[0], &words[1]);
        const double radius = sqrt(-2 * log(uniform_of(words[0])));
        sincos(two_pi * uniform_of(words[1]), &s, &c);
        const int64_t at = 2 * pair - first;
        if (at >= 0) out[at] = radius * c;
        if (at + 1 < count) out[at + 1] = radius * s;
    }
}

/* Step i of Fisher-Yates takes what lies at drawn[i] >= i, and lays there what lay at i. */
static __device__ void draw_steps(int *drawn, stream from, int n, int count)
{
    for (int i = (int)threadIdx.x; i < count; i += DATA_THREADS)
        drawn[i] = i + below(word_of(from, i), n - i);
}

/* What step i takes: back through the steps before it, what lies at a place came from where the last step
 * that drew this place stood. */
static __device__ int taken(const int *drawn, int i)
{
    int place = drawn[i];
    for (int k = i - 1; k >= 0; k--)
        if (drawn[k] == place) place = k;
    return place;
}

/* What a block works on. */
typedef struct task {
    train_source from;
    batch_arrays to;
    const batch_request *requests;
    const int32_t *examples;
    int length, answers, size;
} task;

/* ---- recall */

static __device__ int pairs_of(const task &t, int64_t split, int64_t example)
{
    int part = 0;
    for (; part < RECALL_PARTS - 1 && example >= t.from.part[part].examples[split]; part++)
        example -= t.from.part[part].examples[split];
    return (int)t.from.part[part].pairs;
}

/* Slots for the pairs, one after another with the odds of what is left; one warp, each lane with some of the
 * slots next to each other. */
static __device__ void draw_slots(int *at, int *left, int slots, int pairs, stream from)
{
    const int lane = (int)threadIdx.x, each = (slots + 31) / 32;
    const int first = min(lane * each, slots), end = min(first + each, slots);
    int mine = 0;
    for (int s = first; s < end; s++)
        mine += left[s];
    for (int i = 0; i < pairs; i++) {
        int until = mine;
        for (int step = 1; step < 32; step *= 2) {
            const int before = __shfl_up_sync(0xffffffffu, until, step);
            if (lane >= step) until += before;
        }
        const int drawn = below(word_of(from, i), __shfl_sync(0xffffffffu, until, 31));
        const unsigned beyond = __ballot_sync(0xffffffffu, until > drawn);
        if (lane == __ffs((int)beyond) - 1) {
            int slot = first, sum = until - mine + left[first];
            while (sum <= drawn)
                sum += left[++slot];
            mine -= left[slot];
            left[slot] = 0;
            at[i] = 2 * (pairs + slot);
        }
    }
}

static __global__ void __launch_bounds__(DATA_THREADS) recall_kernel(task t)
{
    extern __shared__ int room[];
    const int b = (int)blockIdx.x, m = (int)blockIdx.y, length = t.length, words = (int)t.from.recall.words;
    const batch_request r = t.requests[m];
    const int example = t.examples[m * t.size + b], pairs = pairs_of(t, r.split, example);
    const int slots = (length - 2 * pairs) / 2, half = words / 2;
    int *keys = room, *values = keys + t.answers, *at = values + t.answers, *left = at + t.answers;
    int32_t *tokens = t.to.tokens + ((int64_t)m * t.size + b) * length;
    const stream between = stream_of(r, TRAIN_RECALL, OF_WORDS_BETWEEN, example);
    draw_steps(keys, stream_of(r, TRAIN_RECALL, OF_KEYS, example), half - 1, pairs);
    draw_steps(values, stream_of(r, TRAIN_RECALL, OF_VALUES, example), half, pairs);
    for (int i = (int)threadIdx.x; i < length; i += DATA_THREADS)
        tokens[i] = t.from.recall.fill ? below(word_of(between, i), words) : 0;
    for (int s = (int)threadIdx.x; s < slots; s += DATA_THREADS)
        left[s] = (int)llrint(0x1p20 * pow((double)(s + 1), 0.01 - 1.0));
    __syncthreads();
    if (threadIdx.x < 32) draw_slots(at, left, slots, pairs, stream_of(r, TRAIN_RECALL, OF_SLOTS, example));
    __syncthreads();
    for (int i = (int)threadIdx.x; i < t.answers; i += DATA_THREADS) {
        const int64_t answer = ((int64_t)m * t.size + b) * t.answers + i;
        t.to.at[answer] = i < pairs ? b * length + at[i] : -1;
        t.to.targets[answer] = i < pairs ? half + taken(values, i) : -1;
        if (i >= pairs) continue;
        tokens[2 * i] = tokens[at[i]] = 1 + taken(keys, i);
        tokens[2 * i + 1] = half + taken(values, i);
    }
}

/* ---- swaps */

static __global__ void __launch_bounds__(DATA_THREADS) swaps_kernel(task t)
{
    __shared__ int items[SWAPS_MOST], asked[SWAPS_QUERIES], held[SWAPS_MOST], pair[SWAPS_MOST][2];
    const int b = (int)blockIdx.x, m = (int)blockIdx.y, length = t.length, places = (int)t.from.swaps.places;
    const batch_request r = t.requests[m];
    const int example = t.examples[m * t.size + b], least = (places + 5) / 6, most = places / 3;
    const int count = least +
                      below(word_of(stream_of(r, TRAIN_SWAPS, OF_COUNT, example), 0), most - least + 1);
    const stream from = stream_of(r, TRAIN_SWAPS, OF_SWAPS, example);
    int32_t *tokens = t.to.tokens + ((int64_t)m * t.size + b) * length;
    draw_steps(items, stream_of(r, TRAIN_SWAPS, OF_ITEMS, example), (int)t.from.swaps.items, places);
    draw_steps(asked, stream_of(r, TRAIN_SWAPS, OF_PLACES_ASKED, example), places, SWAPS_QUERIES);
    for (int n = (int)threadIdx.x; n < count; n += DATA_THREADS) {
        const int i = below(word_of(from, 2 * n), places),
                  drawn = below(word_of(from, 2 * n + 1), places - 1);
        pair[n][0] = i, pair[n][1] = drawn + (drawn >= i);
    }
    __syncthreads();
    for (int p = (int)threadIdx.x; p < places; p += DATA_THREADS)
        held[p] = taken(items, p);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 4 * places; i += DATA_THREADS) {
        const int p = i / 4, row[4] = { SWAPS_PLACE + p, SWAPS_EQUALS, SWAPS_ITEM + held[p],
                                        p + 1 < places ? SWAPS_COMMA : SWAPS_HASH };
        tokens[i] = row[i % 4];
    }
    for (int i = (int)threadIdx.x; i < 3 * count; i += DATA_THREADS)
        tokens[4 * places + i] = i % 3 < 2 ? SWAPS_PLACE + pair[i / 3][i % 3]
                                           : (i == 3 * count - 1 ? SWAPS_HASH : SWAPS_COMMA);
    __syncthreads();
    if (threadIdx.x == 0)
        for (int n = 0; n < count; n++) {
            const int kept = held[pair[n][0]];
            held[pair[n][0]] = held[pair[n][1]];
            held[pair[n][1]] = kept;
        }
    __syncthreads();
    const int begin = 4 * places + 3 * count;
    for (int i = begin + (int)threadIdx.x; i < length; i += DATA_THREADS) {
        const int q = (i - begin) / 4;
        if (i - begin >= 4 * SWAPS_QUERIES - 1) {
            tokens[i] = SWAPS_PAD;
            continue;
        }
        const int place = taken(asked, q),
                  row[4] = { SWAPS_PLACE + place, SWAPS_EQUALS, SWAPS_ITEM + held[place], SWAPS_COMMA };
        tokens[i] = row[(i - begin) % 4];
    }
    for (int q = (int)threadIdx.x; q < SWAPS_QUERIES; q += DATA_THREADS) {
        const int64_t answer = ((int64_t)m * t.size + b) * SWAPS_QUERIES + q;
        t.to.at[answer] = b * length + begin + 4 * q + 1;
        t.to.targets[answer] = SWAPS_ITEM + held[taken(asked, q)];
    }
}

/* ---- regression */

/* Channel a of a point of segment c, whose first channels have the signs of the bits of c. */
static __device__ double signed_point(double x, int a, int cone, int c)
{
    return a < cone ? (c >> a & 1 ? fabs(x) : -fabs(x)) : x;
}

/* Sum of x_a A_ab over a. */
static __device__ double image(const double *point, const double *map, int cone, int c, int dim_x, int dim_y,
                               int b, double sum)
{
    for (int a = 0; a < dim_x; a++)
        sum += signed_point(point[a], a, cone, c) * map[a * dim_y + b];
    return sum;
}

/* Arrays of a block, of doubles and then of integers. */
typedef struct scene {
    double *map, *point, *noise;
    int *drawn, *place;
} scene;

static __device__ void fill_context(const task &t, const batch_request &r, const scene &s, int example, int c,
                                    int cone, float *x)
{
    const int dim_x = (int)t.from.regression.dim_x, dim_y = (int)t.from.regression.dim_y,
              width = dim_x + dim_y;
    const int segment = (int)r.segment;
    const stream points = stream_of(r, TRAIN_REGRESSION, OF_POINTS, example),
                 noise = stream_of(r, TRAIN_REGRESSION, OF_NOISE, example);
    for (int first = (c - 1) * segment; first < c * segment; first += POINTS) {
        const int rows = min(POINTS, c * segment - first);
        __syncthreads();
        fill_normals(s.point, points, (int64_t)first * dim_x, rows * dim_x);
        fill_normals(s.noise, noise, (int64_t)first * dim_y, rows * dim_y);
        __syncthreads();
        for (int n = (int)threadIdx.x; n < rows * width; n += DATA_THREADS) {
            const int row = n / width, k = n % width;
            const double *point = s.point + row * dim_x;
            x[(int64_t)s.place[first + row] * width + k] =
                k < dim_x ? (float)signed_point(point[k], k, cone, c)
                          : (float)image(point, s.map, cone, c, dim_x, dim_y, k - dim_x,
                                         r.noise * s.noise[row * dim_y + k - dim_x]);
        }
    }
}

/* Those queries that are of segment c. */
static __device__ void fill_queries(const task &t, const batch_request &r, const scene &s, int example, int c,
                                    int cone, float *x, float *y)
{
    const int dim_x = (int)t.from.regression.dim_x, dim_y = (int)t.from.regression.dim_y,
              width = dim_x + dim_y;
    const int length = (int)t.from.regression.length;
    const stream segments = stream_of(r, TRAIN_REGRESSION, OF_SEGMENTS, example),
                 queries = stream_of(r, TRAIN_REGRESSION, OF_QUERIES, example);
    for (int i = 0; i < (int)t.from.regression.queries; i++) {
        if (1 + below(word_of(segments, i), length / (int)r.segment) != c) continue;
        __syncthreads();
        fill_normals(s.point, queries, (int64_t)i * dim_x, dim_x);
        __syncthreads();
        for (int k = (int)threadIdx.x; k < width; k += DATA_THREADS) {
            x[(int64_t)(length + i) * width + k] = k < dim_x ? (float)signed_point(s.point[k], k, cone, c)
                                                             : 0;
            if (k >= dim_x)
                y[i * dim_y + k - dim_x] = (float)image(s.point, s.map, cone, c, dim_x, dim_y, k - dim_x, 0);
        }
    }
}

/* Blocks beyond a model's segments have nothing to do. */
static __global__ void __launch_bounds__(DATA_THREADS) regression_kernel(task t)
{
    extern __shared__ double doubles[];
    const int b = (int)blockIdx.x, m = (int)blockIdx.y, c = 1 + (int)blockIdx.z;
    const regression_shape &shape = t.from.regression;
    const int dim_x = (int)shape.dim_x, dim_y = (int)shape.dim_y, length = (int)shape.length;
    const batch_request r = t.requests[m];
    const int example = t.examples[m * t.size + b];
    if (c > length / (int)r.segment) return;
    int cone = 0;
    while ((int)r.segment << cone < length)
        cone++;
    scene s = { doubles, doubles + dim_x * dim_y, NULL, NULL, NULL };
    s.noise = s.point + POINTS * dim_x;
    s.drawn = (int *)(s.noise + POINTS * dim_y), s.place = s.drawn + length;
    draw_steps(s.drawn, stream_of(r, TRAIN_REGRESSION, OF_ORDER, example), length, length);
    fill_normals(s.map, stream_of(r, TRAIN_REGRESSION, OF_MAPS, example), (int64_t)(c - 1) * dim_x * dim_y,
                 dim_x * dim_y);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < dim_x * dim_y; i += DATA_THREADS)
        s.map[i] /= sqrt((double)dim_x);
    for (int i = (int)threadIdx.x; i < length; i += DATA_THREADS)
        s.place[taken(s.drawn, i)] = i;
    const int64_t at = (int64_t)m * t.size + b;
    float *x = (float *)t.to.x.data + at * t.length * (dim_x + dim_y);
    float *y = (float *)t.to.y.data + at * t.answers * dim_y;
    fill_context(t, r, s, example, c, cone, x);
    fill_queries(t, r, s, example, c, cone, x, y);
    if (c == 1)
        for (int i = (int)threadIdx.x; i < t.answers; i += DATA_THREADS)
            t.to.at[at * t.answers + i] = b * t.length + length + i;
}

/* ---- launches */

extern "C" void gpu_fill(const machine *on, const train_source *from, const batch_size *size,
                         const batch_arrays *to)
{
    const regression_shape *r = &from->regression;
    const task t = { *from,          *to, to->requests, to->examples, (int)size->length, (int)size->answers,
                     (int)size->size };
    const dim3 grid((unsigned)size->size, (unsigned)size->models);
    cudaStream_t queue = on->gpu->stream;
    assert(size->models < 65536 && size->segments < 65536);
    if (from->task == TRAIN_REGRESSION) {
        const size_t doubles = (size_t)(r->dim_x * r->dim_y + POINTS * (r->dim_x + r->dim_y)) *
                               sizeof(double),
                     shared = doubles + 2 * (size_t)r->length * sizeof(int);
        gpu_check(
            on->gpu,
            cudaFuncSetAttribute(regression_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
            "data");
        regression_kernel<<<dim3(grid.x, grid.y, (unsigned)size->segments), DATA_THREADS, shared, queue>>>(t);
    } else if (from->task == TRAIN_SWAPS) {
        swaps_kernel<<<grid, DATA_THREADS, 0, queue>>>(t);
    } else {
        const size_t shared = (size_t)(3 * size->answers + size->length / 2) * sizeof(int);
        recall_kernel<<<grid, DATA_THREADS, shared, queue>>>(t);
    }
    gpu_launched(on, "data");
}
