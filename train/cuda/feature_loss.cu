/* SPDX-License-Identifier: MIT
 * Losses of positive features of many heads and their gradients, float32. A block takes one sequence of one
 * query head, and then the next, with scratch of its own; sums over sequences follow in their order.
 *
 * Each tile of 64 keys J has features relative to its own largest logarithms, c_Jm, and those of 64 queries
 * are relative to the largest that they can have with it:
 *
 *     fk_jm = e^{a_jm - c_Jm},   t_iJ = max_m (b_im + c_Jm),   fq_im = e^{b_im + c_Jm - t_iJ}
 *     a_jm = z_m . y_j + log alpha_m - |y_j|^2/2,   b_im = z_m . x_i,   M k_ij = e^{t_iJ - |x_i|^2/2} fq . fk
 *
 * What a key of large norm takes from the features of others ends with its tile. Softmax losses take two
 * passes over pairs, log sum_j k_ij and then gradients. Passes are calls: inlined into one another they spill
 * registers. */
#include "train/cuda/feature_tile.cuh"

extern "C" {
#include "train/cuda/feature_loss.h"
}

/* fq . fk below these counts as that, and has no gradient: the weights of gradients are divided by it. */
static const float least_softmax = 1e-35f, least_squares = 1e-20f;
/* The most that log k may be above its unit: its square is divided by the least. */
static const float most_log = 17;

typedef struct job {
    feature_loss_kind kind;
    bool causal;
    int tokens, channels, row, queries, windows, batch;
    int tiles, width;   /* of tokens; features of scratch, in whole tiles */
    int problems, each; /* sequences of all heads, and the floats that each leaves */
    int sinks, window;  /* window 0: none */
    const feature_head *list;
    const float *x, *y, *exact, *largest, *near, *gains;
    const int32_t *chosen;
    float *scratch, *parts, *losses;
} job;

/* A sequence of a query head. */
typedef struct problem {
    feature_head head;
    int features, chunks;
    const float *x, *y, *exact, *near;
    float largest, gain;
    float *a, *b;           /* [tokens in whole tiles][width]: fk, and logarithms of queries */
    float *da, *db;         /* gradients of the logarithms */
    float *c, *tops;        /* [tiles][width], [tiles][tokens in whole tiles] */
    float *half_x, *half_y; /* [tokens in whole tiles]: |x|^2 / 2 */
    float *sum;             /* likewise: log sum of k, less what the row shares */
    float *part;            /* gradients of z and log alpha, and the loss */
} problem;

typedef struct room {
    tile a, b, w;
    float parts[TILE_THREADS / SIDE][SIDE];
    problem p;
} room;

static __host__ __device__ int64_t scratch_of(int64_t tiles, int64_t width)
{
    return (4 * SIDE + 1) * tiles * width + tiles * tiles * SIDE + 3 * tiles * SIDE;
}

static __device__ problem problem_of(const job &j, int n)
{
    const int per = j.batch * j.queries, query = n % per % j.queries;
    const int64_t window = j.chosen[n % per / j.queries], rows = (int64_t)j.tiles * SIDE,
                  features = rows * j.width;
    problem p;
    p.head = j.list[n / per];
    p.features = (int)p.head.features, p.chunks = (p.features + SIDE - 1) / SIDE;
    const int64_t keys = (p.head.place * j.windows + window) * j.tokens,
                  queries = ((p.head.place * j.queries + query) * j.windows + window) * j.tokens;
    p.x = j.x + queries * j.row, p.y = j.y + keys * j.row, p.exact = j.exact + queries;
    p.largest = j.largest[p.head.place];
    if (j.window > 0) p.near = j.near + queries, p.gain = j.gains[p.head.place * j.queries + query];
    p.a = j.scratch + blockIdx.x * scratch_of(j.tiles, j.width);
    p.b = p.a + features, p.da = p.b + features, p.db = p.da + features, p.c = p.db + features;
    p.tops = p.c + (int64_t)j.tiles * j.width;
    p.half_x = p.tops + j.tiles * rows, p.half_y = p.half_x + rows, p.sum = p.half_y + rows;
    p.part = j.parts + (int64_t)n * j.each;
    return p;
}

/* Tiles of keys that a tile of queries sees. */
static __device__ int tiles_seen(const job &j, int of) { return j.causal ? of + 1 : j.tiles; }

static __device__ __forceinline__ bool sees(const job &j, int i, int key)
{
    return i < j.tokens && key < (j.causal ? i + 1 : j.tokens);
}

/* Is it seen, and by features? BESIDE: a window. */
template <bool BESIDE> static __device__ __forceinline__ bool estimates(const job &j, int i, int key)
{
    return sees(j, i, key) && (!BESIDE || (key >= j.sinks && key <= i - j.window));
}

/* The logarithm of the weight of what is near, in the unit of p.sum. */
static __device__ __forceinline__ float anchor_of(const problem &p, int i)
{
    return p.near[i] - p.gain + p.half_x[i] + logf((float)p.features);
}

/* ---- features */

static __device__ void half_norms(const job &j, const float *x, float *halves)
{
    for (int i = (int)threadIdx.x; i < j.tiles * SIDE; i += TILE_THREADS) {
        float sum = 0;
        for (int c = 0; i < j.tokens && c < j.row; c += 4) {
            const float4 four = four_of(x + i * j.row + c);
            sum += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
        }
        halves[i] = sum / 2;
    }
}

/* z . x of a tile of rows and of features: rows y + 16 r, columns x + 16 c. */
static __device__ void project(patch &sum, const job &j, room &r, const float *x, int first, int feature)
{
    patch_clear(sum);
    for (int k = 0; k < j.channels; k += SIDE) {
        __syncthreads();
        tile_load(r.a, x + first * j.row + k, j.row, j.tokens - first, j.row - k);
        tile_load_any(r.b, r.p.head.z + feature * j.channels + k, j.channels, r.p.features - feature,
                      j.channels - k, 1, NULL);
        __syncthreads();
        add_rows_rows(sum, r.a, r.b);
    }
    __syncthreads();
}

static __device__ void map_queries(const job &j, room &r, int first, int feature)
{
    patch sum;
    project(sum, j, r, r.p.x, first, feature);
    for (int e = 0; e < EACH * EACH; e++) {
        const int i = first + tile_y() + ACROSS * (e / EACH), m = feature + tile_x() + ACROSS * (e % EACH);
        r.p.b[i * j.width + m] = m < r.p.features ? sum[e / EACH][e % EACH] : -INFINITY;
    }
}

/* The largest of each column of w, which is -inf where there is no key or no feature; then 0. */
static __device__ float column_top(room &r)
{
    const int column = (int)threadIdx.x % SIDE, part = (int)threadIdx.x / SIDE;
    float top = -INFINITY;
    for (int i = part * ACROSS; i < (part + 1) * ACROSS; i++)
        top = fmaxf(top, r.w[i][column]);
    r.parts[part][column] = top;
    __syncthreads();
    for (int i = 0; i < TILE_THREADS / SIDE; i++)
        top = fmaxf(top, r.parts[i][column]);
    return top == -INFINITY ? 0 : top;
}

static __device__ void map_keys(const job &j, room &r, int first, int feature)
{
    const int column = (int)threadIdx.x % SIDE;
    patch sum;
    project(sum, j, r, r.p.y, first, feature);
    for (int e = 0; e < EACH * EACH; e++) {
        const int i = tile_y() + ACROSS * (e / EACH), c = tile_x() + ACROSS * (e % EACH);
        const bool is = first + i < j.tokens && feature + c < r.p.features;
        r.w[i][c] = is ? sum[e / EACH][e % EACH] + r.p.head.log_alpha[feature + c] - r.p.half_y[first + i]
                       : -INFINITY;
    }
    __syncthreads();
    const float top = column_top(r);
    if ((int)threadIdx.x < SIDE) r.p.c[first / SIDE * j.width + feature + column] = top;
    for (int i = (int)threadIdx.x / SIDE; i < SIDE; i += TILE_THREADS / SIDE)
        r.p.a[(first + i) * j.width + feature + column] = expf(r.w[i][column] - top);
    __syncthreads();
}

/* t_iJ of a tile of queries and one of keys; four threads have a row. */
static __device__ void find_tops(const job &j, room &r, int queries, int keys)
{
    const int i = queries * SIDE + (int)threadIdx.x / 4;
    const float *b = r.p.b + i * j.width, *c = r.p.c + keys * j.width;
    float top = -INFINITY;
    for (int m = (int)threadIdx.x % 4 * 4; m < r.p.chunks * SIDE; m += 16) {
        const float4 its = four_of(b + m), most = four_of(c + m);
        top = fmaxf(top, fmaxf(fmaxf(its.x + most.x, its.y + most.y), fmaxf(its.z + most.z, its.w + most.w)));
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    if (threadIdx.x % 4 == 0) r.p.tops[(int64_t)keys * j.tiles * SIDE + i] = top;
}

static __device__ __noinline__ void map_all(const job &j, room &r)
{
    half_norms(j, r.p.x, r.p.half_x);
    half_norms(j, r.p.y, r.p.half_y);
    for (int n = 0; n < j.tiles; n++)
        for (int chunk = 0; chunk < r.p.chunks; chunk++) {
            map_queries(j, r, n * SIDE, chunk * SIDE);
            map_keys(j, r, n * SIDE, chunk * SIDE);
        }
    for (int n = 0; n < j.tiles; n++)
        for (int keys = 0; keys < tiles_seen(j, n); keys++)
            find_tops(j, r, n, keys);
    __syncthreads();
}

/* ---- products of pairs: rows y + 16 r, columns x + 16 c */

/* fq and fk of some features into a and b. */
static __device__ __forceinline__ void load_features(const job &j, room &r, int queries, int keys, int chunk)
{
    const float *b = r.p.b + queries * SIDE * j.width + chunk * SIDE,
                *c = r.p.c + keys * j.width + chunk * SIDE,
                *tops = r.p.tops + ((int64_t)keys * j.tiles + queries) * SIDE;
#pragma unroll
    for (int e = (int)threadIdx.x; e < SIDE * ACROSS; e += TILE_THREADS) {
        const int i = e / ACROSS, m = e % ACROSS * 4;
        const float4 its = four_of(b + i * j.width + m), most = four_of(c + m);
        const float top = tops[i];
        set_four(&r.a[i][m], { expf(its.x + most.x - top), expf(its.y + most.y - top),
                               expf(its.z + most.z - top), expf(its.w + most.w - top) });
    }
    tile_load(r.b, r.p.a + keys * SIDE * j.width + chunk * SIDE, j.width, SIDE, SIDE);
}

static __device__ __forceinline__ void kernels(patch &sum, const job &j, room &r, int queries, int keys)
{
    patch_clear(sum);
    for (int chunk = 0; chunk < r.p.chunks; chunk++) {
        __syncthreads();
        load_features(j, r, queries, keys, chunk);
        __syncthreads();
        add_rows_rows(sum, r.a, r.b);
    }
}

static __device__ __forceinline__ void scores(patch &sum, const job &j, room &r, int queries, int keys)
{
    patch_clear(sum);
    for (int k = 0; k < j.row; k += SIDE) {
        __syncthreads();
        tile_load(r.a, r.p.x + queries * SIDE * j.row + k, j.row, j.tokens - queries * SIDE, j.row - k);
        tile_load(r.b, r.p.y + keys * SIDE * j.row + k, j.row, j.tokens - keys * SIDE, j.row - k);
        __syncthreads();
        add_rows_rows(sum, r.a, r.b);
    }
}

static __device__ float top_of(const job &j, const room &r, int i, int keys)
{
    return r.p.tops[(int64_t)keys * j.tiles * SIDE + i];
}

/* ---- the softmax loss: sums of rows */

template <bool BESIDE>
static __device__ void add_row_sums(log_sum *of, const job &j, const room &r, const patch &pairs, int queries,
                                    int keys)
{
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int i = queries * SIDE + tile_y() + ACROSS * e;
        float sum = 0;
#pragma unroll
        for (int c = 0; c < EACH; c++)
            if (estimates<BESIDE>(j, i, keys * SIDE + tile_x() + ACROSS * c))
                sum += fmaxf(pairs[e][c], least_softmax);
        /* As a logarithm: the features of a tile may all be for keys that come later. */
        sum = across_sum(sum);
        if (sum > 0) log_sum_add(&of[e], top_of(j, r, i, keys) + logf(sum), 1);
    }
}

template <bool BESIDE> static __device__ __noinline__ void sum_rows(const job &j, room &r)
{
    for (int queries = 0; queries < j.tiles; queries++) {
        log_sum of[EACH] = { log_sum_none(), log_sum_none(), log_sum_none(), log_sum_none() };
        for (int keys = 0; keys < tiles_seen(j, queries); keys++) {
            patch pairs;
            kernels(pairs, j, r, queries, keys);
            add_row_sums<BESIDE>(of, j, r, pairs, queries, keys);
        }
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = queries * SIDE + tile_y() + ACROSS * e;
            if (BESIDE && i < j.tokens) log_sum_add(&of[e], anchor_of(r.p, i), 1);
            if (tile_x() == 0) r.p.sum[i] = log_sum_of(of[e]);
        }
    }
    __syncthreads();
}

/* ---- gradients */

/* The loss of a pair; *slope is its derivative by fq . fk, `kernel`, whose logarithm `base` is to be added
 * to. */
static __device__ __forceinline__ float pair_softmax(float kernel, float base, float log_p, float *slope)
{
    const float at = fmaxf(kernel, least_softmax), log_k = base + logf(at), p = expf(log_p);
    *slope = kernel > least_softmax ? (expf(log_k) - p) / at : 0;
    return -p * log_k;
}

static __device__ __forceinline__ float pair_squares(float kernel, float base, float log_p, float *slope)
{
    const float at = fmaxf(kernel, least_squares), k = expf(fminf(base + logf(at), most_log)),
                off = k - expf(log_p);
    *slope = kernel > least_squares ? 2 * off * k / at : 0;
    return off * off;
}

/* The loss of a pair that is near, which no feature changes but by the row's sum. */
static __device__ __forceinline__ float pair_near(const problem &p, int i, float score, float log_p)
{
    return -expf(log_p) * (score - p.near[i] + anchor_of(p, i) - p.sum[i]);
}

/* The slopes of a tile of pairs into w; returns the sum of this thread's losses. */
template <bool BESIDE>
static __device__ __forceinline__ float weigh(const job &j, room &r, const patch &pairs, const patch &exact,
                                              int queries, int keys)
{
    float loss = 0;
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int i = queries * SIDE + tile_y() + ACROSS * e;
        const bool softmax = j.kind == FEATURE_LOSS_SOFTMAX;
        const float unit = j.kind == FEATURE_LOSS_L2 ? r.p.largest : i < j.tokens ? r.p.exact[i] : 0;
        const float base = top_of(j, r, i, keys) -
                           (softmax ? r.p.sum[i] : r.p.half_x[i] + logf((float)r.p.features) + unit);
#pragma unroll
        for (int c = 0; c < EACH; c++) {
            const int column = tile_x() + ACROSS * c;
            const float log_p = exact[e][c] - unit;
            float slope = 0;
            if (BESIDE && sees(j, i, keys * SIDE + column) && !estimates<BESIDE>(j, i, keys * SIDE + column))
                loss += pair_near(r.p, i, exact[e][c], log_p);
            else if (sees(j, i, keys * SIDE + column))
                loss += softmax ? pair_softmax(pairs[e][c], base, log_p, &slope)
                                : pair_squares(pairs[e][c], base, log_p, &slope);
            r.w[tile_y() + ACROSS * e][column] = slope;
        }
    }
    return loss;
}

/* to += (or, the first time, =) f times sum, of four columns. */
static __device__ __forceinline__ void add_four(float *to, bool first, const float *f,
                                                const float (&sum)[EACH])
{
    const float4 by = four_of(f), zero = { 0, 0, 0, 0 }, old = first ? zero : four_of(to);
    set_four(to, { fmaf(by.x, sum[0], old.x), fmaf(by.y, sum[1], old.y), fmaf(by.z, sum[2], old.z),
                   fmaf(by.w, sum[3], old.w) });
}

/* Of the logarithms of queries and keys, by the slopes in w. */
static __device__ __forceinline__ void add_gradients(const job &j, room &r, int queries, int keys)
{
    const bool first = queries == (j.causal ? keys : 0);
    for (int chunk = 0; chunk < r.p.chunks; chunk++) {
        const int column = chunk * SIDE + EACH * tile_x();
        /* Those of the last chunk are still there. */
        if (r.p.chunks > 1) {
            __syncthreads();
            load_features(j, r, queries, keys, chunk);
        }
        __syncthreads();
        patch sum;
        patch_clear(sum);
        add_rows_columns(sum, r.w, r.b);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = tile_y() + ACROSS * e;
            add_four(r.p.db + (queries * SIDE + i) * j.width + column, keys == 0, &r.a[i][EACH * tile_x()],
                     sum[e]);
        }
        patch_clear(sum);
        add_columns_columns(sum, r.w, r.a);
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int i = EACH * tile_y() + e;
            add_four(r.p.da + (keys * SIDE + i) * j.width + column, first, &r.b[i][EACH * tile_x()], sum[e]);
        }
    }
}

/* The sum of this thread's losses. */
template <bool BESIDE> static __device__ __noinline__ float gradients(const job &j, room &r)
{
    float loss = 0;
    for (int queries = 0; queries < j.tiles; queries++)
        for (int keys = 0; keys < tiles_seen(j, queries); keys++) {
            patch exact, pairs;
            scores(exact, j, r, queries, keys);
            kernels(pairs, j, r, queries, keys);
            loss += weigh<BESIDE>(j, r, pairs, exact, queries, keys);
            add_gradients(j, r, queries, keys);
        }
    __syncthreads();
    return loss;
}

/* ---- of z and log alpha */

/* db^T x + da^T y of a tile of features and of channels, and with the first channels the sums of da. */
static __device__ __noinline__ void finish_tile(const job &j, room &r, int feature, int channel)
{
    const int column = (int)threadIdx.x % SIDE, part = (int)threadIdx.x / SIDE;
    float *const grad_log_alpha = r.p.part + r.p.features * j.channels;
    float total = 0;
    patch sum;
    patch_clear(sum);
    for (int n = 0; n < 2 * j.tiles; n++) {
        const bool of_keys = n >= j.tiles;
        const int first = n % j.tiles * SIDE;
        __syncthreads();
        tile_load(r.a, (of_keys ? r.p.da : r.p.db) + first * j.width + feature, j.width, SIDE, SIDE);
        tile_load(r.b, (of_keys ? r.p.y : r.p.x) + first * j.row + channel, j.row, j.tokens - first,
                  j.row - channel);
        __syncthreads();
        add_columns_columns(sum, r.a, r.b);
        for (int i = part * ACROSS; of_keys && i < (part + 1) * ACROSS; i++)
            total += r.a[i][column];
    }
    for (int e = 0; e < EACH * EACH; e++) {
        const int m = feature + EACH * tile_y() + e / EACH, c = channel + EACH * tile_x() + e % EACH;
        if (m < r.p.features && c < j.channels) r.p.part[m * j.channels + c] = sum[e / EACH][e % EACH];
    }
    r.parts[part][column] = total;
    __syncthreads();
    if (channel == 0 && part == 0 && feature + column < r.p.features)
        grad_log_alpha[feature + column] = r.parts[0][column] + r.parts[1][column] + r.parts[2][column] +
                                           r.parts[3][column];
}

static __device__ void finish_loss(const job &j, room &r, float loss)
{
    float *const sums = r.parts[0];
    __syncthreads();
    sums[threadIdx.x] = loss;
    for (int step = TILE_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
    }
    if (threadIdx.x == 0) r.p.part[r.p.features * (j.channels + 1)] = sums[0];
}

template <bool BESIDE>
static __global__ void __launch_bounds__(TILE_THREADS, 3) losses_kernel(const __grid_constant__ job j)
{
    extern __shared__ room rooms[];
    room &r = rooms[0];
    for (int n = (int)blockIdx.x; n < j.problems; n += (int)gridDim.x) {
        __syncthreads();
        if (threadIdx.x == 0) r.p = problem_of(j, n);
        __syncthreads();
        map_all(j, r);
        if (j.kind == FEATURE_LOSS_SOFTMAX) sum_rows<BESIDE>(j, r);
        const float loss = gradients<BESIDE>(j, r);
        for (int chunk = 0; chunk < r.p.chunks; chunk++)
            for (int channel = 0; channel < j.channels; channel += SIDE)
                finish_tile(j, r, chunk * SIDE, channel);
        finish_loss(j, r, loss);
    }
}

/* Means over the sequences of a head, which is the block's y. */
static __global__ void __launch_bounds__(TILE_THREADS) means_kernel(const __grid_constant__ job j, float part)
{
    const feature_head head = j.list[blockIdx.y];
    const int per = j.batch * j.queries, e = (int)(blockIdx.x * TILE_THREADS + threadIdx.x),
              of_z = (int)head.features * j.channels, all = of_z + (int)head.features;
    const float *from = j.parts + (int64_t)blockIdx.y * per * j.each;
    float sum = 0;
    if (e > all) return;
    for (int n = 0; n < per; n++)
        sum += from[(int64_t)n * j.each + e];
    float *const to = e < of_z  ? head.grad_z + e
                      : e < all ? head.grad_log_alpha + (e - of_z)
                                : j.losses + head.place;
    *to = part * sum;
}

/* ---- launches */

static int64_t tiles_of(int64_t n) { return (n + SIDE - 1) / SIDE; }
static int64_t problems_of(const feature_losses *l) { return l->heads * l->batch * l->queries; }

extern "C" int64_t gpu_feature_blocks(const feature_losses *l)
{
    int device = 0, processors = 1;
    (void)cudaGetDevice(&device);
    (void)cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    return problems_of(l) < 3 * processors ? problems_of(l) : 3 * processors;
}

extern "C" int64_t gpu_feature_scratch(const feature_losses *l)
{
    return scratch_of(tiles_of(l->tokens), tiles_of(l->most) * SIDE);
}

static job job_of(const feature_losses *l)
{
    job j = {};
    j.kind = l->kind, j.causal = l->causal;
    j.tokens = (int)l->tokens, j.channels = (int)l->channels, j.row = (int)l->row;
    j.queries = (int)l->queries, j.windows = (int)l->windows, j.batch = (int)l->batch;
    j.tiles = (int)tiles_of(l->tokens), j.width = (int)tiles_of(l->most) * SIDE;
    j.problems = (int)problems_of(l), j.each = (int)(l->most * (l->channels + 1) + 1);
    j.sinks = (int)l->sinks, j.window = (int)l->window, j.near = l->near, j.gains = l->gains;
    j.list = l->list, j.x = l->x, j.y = l->y, j.exact = l->exact, j.largest = l->largest;
    j.chosen = l->chosen, j.scratch = l->scratch, j.parts = l->parts, j.losses = l->losses;
    return j;
}

extern "C" void gpu_feature_losses(const feature_losses *l)
{
    const job j = job_of(l);
    const double tokens = (double)l->tokens, terms = l->kind != FEATURE_LOSS_L2 ? tokens
                                                     : l->causal                ? tokens * (tokens + 1) / 2
                                                                                : tokens * tokens;
    const float part = (float)(1 / (terms * (double)(l->batch * l->queries)));
    const unsigned blocks = (unsigned)gpu_feature_blocks(l);
    const dim3 elements((unsigned)((j.each + TILE_THREADS - 1) / TILE_THREADS), (unsigned)l->heads);
    cudaStream_t queue = l->on->gpu->stream;
    void (*const kernel)(job) = j.window > 0 ? losses_kernel<true> : losses_kernel<false>;
    gpu_check(l->on->gpu,
              cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(room)),
              "losses of features");
    kernel<<<blocks, TILE_THREADS, sizeof(room), queue>>>(j);
    gpu_launched(l->on, "losses of features");
    means_kernel<<<elements, TILE_THREADS, 0, queue>>>(j, part);
    gpu_launched(l->on, "means of losses");
}
