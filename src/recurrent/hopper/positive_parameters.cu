/* SPDX-License-Identifier: MIT
 * Backward of positive random features on Hopper: the gradients of z and log alpha,
 *
 *     dz_m = sum_t db_tm x_t + da_tm y_t,   dlog alpha_m = sum_t da_tm
 *
 * from sums of db q, da k and da. A thread block has the part of 512 tokens of a batch entry, and 64
 * features of a head; a warp 16 of them, and every fourth 64 tokens. Parts are added up in order. */
#include "src/recurrent/hopper/positive.cuh"

enum {
    PARTS_GROUPS = 4,
    PARTS_THREADS = PARTS_GROUPS * POSITIVE_THREADS,
    PARTS_ROWS = PARTS_GROUPS * POSITIVE_CHUNK, /* of a tile */
    PARTS_SUMS = POSITIVE_DIM / 2 + 2           /* of a thread */
};

/* A part: tokens first .. end - 1 of batch entry b, features m .. m + 15 of head n. */
struct part_place {
    int64_t b, n, first, end, part;
    int m;
};

static __device__ __forceinline__ part_place place_of(const positive_launch &l)
{
    const int64_t tiles = (l.p.features + 63) / 64, item = blockIdx.x / tiles, tokens = l.x.axis / l.x.reads;
    part_place u;
    u.m = (int)(blockIdx.x % tiles * 64 + threadIdx.x % POSITIVE_THREADS / 32 * 16);
    u.n = item % l.x.heads, u.part = item / l.x.heads;
    u.b = u.part / l.slices, u.first = u.part % l.slices * POSITIVE_SLICE;
    u.end = u.first + POSITIVE_SLICE < tokens ? u.first + POSITIVE_SLICE : tokens;
    return u;
}

/* A: the transpose of 16 rows, features m .. m + 15; `count` of the rows are there. */
static __device__ __forceinline__ void load_gradients(operand_a<2> &a, const float *rows, int64_t stride,
                                                      int count, float (&sums)[2])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int row = 2 * t + e / 2 * 8;
        const float *at = rows + row * stride + g + e % 2 * 8;
        const float x = row < count ? at[0] : 0, y = row + 1 < count ? at[stride] : 0;
        uint32_t part[2];
        split_pair(part, x, y);
        a.part[0][e] = part[0], a.part[1][e] = part[1];
        sums[e % 2] += x + y;
    }
}

/* d += the rows of q or k, read r, times gradients of their logarithms. */
static __device__ void add_rows(const positive_launch &l, const part_place &u, bool key, int64_t r,
                                __nv_bfloat16 *tile, float (&d)[POSITIVE_DIM / 8][4], float (&sums)[2])
{
    const loam_const_view &from = key ? l.a.k : l.a.q;
    const int64_t head = key ? positive_key_head(&l.x, u.n) : positive_query_head(&l.x, u.n, r);
    const float *gradients = key ? l.grad_a : l.grad_b;
    const int group = (int)threadIdx.x / POSITIVE_THREADS * POSITIVE_CHUNK;
    for (int64_t token = u.first; token < u.end; token += PARTS_ROWS) {
        const int count = (int)(u.end - token < PARTS_ROWS ? u.end - token : PARTS_ROWS),
                  end = count < group + POSITIVE_CHUNK ? count : group + POSITIVE_CHUNK;
        const rows_view rows = { from.data, LOAM_BF16, RECURRENT_AT(from, u.b, head, token), from.token };
        __syncthreads();
        fill_tile<PARTS_ROWS, POSITIVE_DIM, PARTS_THREADS>(tile, rows, count, 0, (int)l.p.dim_qk, NULL);
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        for (int at = group; at < end && u.m < (int)l.p.features; at += 16) {
            const int64_t row = (u.b * l.x.heads + u.n) * l.x.axis + (token + at) * l.x.reads + r;
            operand_a<2> a;
            load_gradients(a, gradients + row * l.p.features + u.m, l.x.reads * l.p.features, count - at,
                           sums);
#pragma unroll
            for (int c = 0; c < POSITIVE_DIM / 16; c++) {
                operand_b<1> b[2];
                if (16 * c >= (int)l.p.dim_qk) continue;
                load_b<POSITIVE_PITCH>(b, tile, at, 16 * c);
                mma(d[2 * c], a, b[0]);
                mma(d[2 * c + 1], a, b[1]);
            }
        }
    }
}

/* The sums of the first group become those of all, in their order. All threads come here. */
static __device__ void add_groups(float *memory, float (&d)[POSITIVE_DIM / 8][4], float (&sums)[2])
{
    const int group = (int)threadIdx.x / POSITIVE_THREADS, thread = (int)threadIdx.x % POSITIVE_THREADS;
    __syncthreads(); /* the tile is read */
    for (int other = 1; other < PARTS_GROUPS; other++) {
        float *at = memory + (other - 1) * PARTS_SUMS * POSITIVE_THREADS + thread;
        if (group != other) continue;
#pragma unroll
        for (int n = 0; n < PARTS_SUMS; n++)
            at[n * POSITIVE_THREADS] = n < PARTS_SUMS - 2 ? d[n / 4][n % 4] : sums[n % 2];
    }
    __syncthreads();
    for (int other = 1; other < PARTS_GROUPS && group == 0; other++) {
        const float *at = memory + (other - 1) * PARTS_SUMS * POSITIVE_THREADS + thread;
#pragma unroll
        for (int n = 0; n < PARTS_SUMS - 2; n++)
            d[n / 4][n % 4] += at[n * POSITIVE_THREADS];
        sums[0] += at[(PARTS_SUMS - 2) * POSITIVE_THREADS],
            sums[1] += at[(PARTS_SUMS - 1) * POSITIVE_THREADS];
    }
}

/* Columns first .. of rows g and g + 8 of a part. */
static __device__ __forceinline__ void store_part(const positive_launch &l, const part_place &u, int first,
                                                  const float (&d)[POSITIVE_DIM / 8][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, width = 2 * (int)l.p.dim_qk + 1;
    float *to = l.parts + ((u.part * l.x.heads + u.n) * l.p.features + u.m + g) * width + first + 2 * t;
#pragma unroll
    for (int c = 0; c < POSITIVE_DIM / 8; c++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (8 * c < (int)l.p.dim_qk) to[e / 2 * 8 * width + 8 * c + e % 2] = d[c][e];
    }
}

__global__ void __launch_bounds__(PARTS_THREADS)
    positive_parts_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    extern __shared__ __align__(16) char positive_memory[];
    __nv_bfloat16 *tile = (__nv_bfloat16 *)positive_memory; /* [PARTS_ROWS][POSITIVE_PITCH], then sums */
    const part_place u = place_of(l);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, dim = (int)l.p.dim_qk, width = 2 * dim + 1;
    const bool works = u.m < (int)l.p.features && threadIdx.x < POSITIVE_THREADS;
    float d[POSITIVE_DIM / 8][4], alpha[2] = { 0, 0 }, unused[2] = { 0, 0 };
    clear(d);
    add_rows(l, u, true, 0, tile, d, alpha);
    add_groups((float *)positive_memory, d, alpha);
    if (works) store_part(l, u, dim, d);
    clear(d);
    for (int64_t r = 0; r < l.x.reads; r++)
        add_rows(l, u, false, r, tile, d, unused);
    add_groups((float *)positive_memory, d, unused);
    if (!works) return;
    store_part(l, u, 0, d);
    float *to = l.parts + ((u.part * l.x.heads + u.n) * l.p.features + u.m + g) * width + 2 * dim;
    alpha[0] = quad_sum(alpha[0]), alpha[1] = quad_sum(alpha[1]);
    if (t == 0) to[0] = alpha[0], to[8 * width] = alpha[1];
}

__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_total_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    const int64_t all = l.x.heads * l.p.features * (2 * l.p.dim_qk + 1),
                  e = (int64_t)blockIdx.x * POSITIVE_THREADS + threadIdx.x;
    if (e >= all) return;
    double sum = 0;
    for (int64_t part = 0; part < positive_entries(l) * l.slices; part++)
        sum += (double)l.parts[part * all + e];
    l.totals[e] = sum;
}

/* Row c of A or B times a row of sums; its element c without a matrix. */
static __device__ double turned(const loam_const_view &A, int64_t n, const double *sums, int64_t dim,
                                int64_t c)
{
    double x = A.data ? 0 : sums[c];
    for (int64_t j = 0; A.data && j < dim; j++)
        x += (double)((const float *)A.data)[n * A.head + c * A.token + j] * sums[j];
    return x;
}

/* A thread has a number of the gradient of z, or, in column dim_qk, of log alpha. */
__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_parameters_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    const int64_t dim = l.p.dim_qk, width = dim + 1, e = (int64_t)blockIdx.x * POSITIVE_THREADS + threadIdx.x,
                  n = e / width / l.p.features, m = e / width % l.p.features, c = e % width;
    const loam_view &z = l.a.grad_z, &alpha = l.a.grad_log_alpha;
    if (n >= l.x.heads) return;
    const double *sums = l.totals + (n * l.p.features + m) * (2 * dim + 1), total = sums[2 * dim];
    if (c == dim) {
        if (alpha.data) ((float *)alpha.data)[n * alpha.head + m] = (float)total;
    } else if (z.data) {
        const double shift = l.turned ? total * (double)l.turned[n * dim + c] : 0,
                     x = turned(l.a.balance, n, sums, dim, c) +
                         turned(l.a.balance_keys, n, sums + dim, dim, c) - shift;
        ((float *)z.data)[n * z.head + m * z.token + c] = (float)(sqrt(l.p.scale) * x);
    }
}

loam_status positive_parameters_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t parts = positive_entries(*l) * l->slices * l->x.heads * ((l->p.features + 63) / 64),
                  rows = l->x.heads * l->p.features,
                  totals = (rows * (2 * l->p.dim_qk + 1) + POSITIVE_THREADS - 1) / POSITIVE_THREADS,
                  sums = (rows * (l->p.dim_qk + 1) + POSITIVE_THREADS - 1) / POSITIVE_THREADS;
    const size_t tile = PARTS_ROWS * POSITIVE_PITCH * sizeof(__nv_bfloat16),
                 groups = (PARTS_GROUPS - 1) * PARTS_SUMS * POSITIVE_THREADS * sizeof(float),
                 shared = tile > groups ? tile : groups;
    REQUIRE(parts <= INT32_MAX && totals <= INT32_MAX, error, LOAM_EMEMORY,
            "batch x heads x len_q: too large for one launch");
    if (!l->a.grad_z.data && !l->a.grad_log_alpha.data) return LOAM_OK;
    if (parts > 0) {
        TRY(cuda_launch("positive_parts_kernel", positive_parts_kernel, parts, PARTS_THREADS, shared,
                        l->a.stream, true, error, *l));
    }
    TRY(cuda_launch("positive_total_kernel", positive_total_kernel, totals, POSITIVE_THREADS, 0, l->a.stream,
                    true, error, *l));
    return cuda_launch("positive_parameters_kernel", positive_parameters_kernel, sums, POSITIVE_THREADS, 0,
                       l->a.stream, true, error, *l);
}
