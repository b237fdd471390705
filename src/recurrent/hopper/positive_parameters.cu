/* SPDX-License-Identifier: MIT
 * Backward of positive random features on Hopper: the gradients of z and log alpha,
 *
 *     dz_m = sum_t db_tm x_t + da_tm y_t,   dlog alpha_m = sum_t da_tm
 *
 * by parts of 512 tokens of a batch entry, which are added up in order. A thread block has a part of 64
 * features of a head, a warp 16 of them. */
#include "src/recurrent/hopper/positive.cuh"

/* A part: tokens first .. end - 1 of batch entry b, features m .. m + 15 of head n. */
struct part_place {
    int64_t b, n, first, end, part;
    int m;
};

static __device__ __forceinline__ part_place place_of(const positive_launch &l)
{
    const int64_t tiles = (l.p.features + 63) / 64, item = blockIdx.x / tiles, tokens = l.x.axis / l.x.reads;
    part_place u;
    u.m = (int)(blockIdx.x % tiles * 64 + threadIdx.x / 32 * 16);
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
    for (int64_t token = u.first; token < u.end; token += POSITIVE_CHUNK) {
        const int count = (int)(u.end - token < POSITIVE_CHUNK ? u.end - token : POSITIVE_CHUNK);
        const rows_view rows = { from.data, LOAM_BF16, RECURRENT_AT(from, u.b, head, token), from.token };
        __syncthreads();
        fill_tile<POSITIVE_CHUNK, POSITIVE_DIM, POSITIVE_THREADS>(tile, rows, count, 0, (int)l.p.dim_qk,
                                                                  NULL);
        copy_async_commit();
        copy_async_wait<0>();
        __syncthreads();
        for (int at = 0; at < count && u.m < (int)l.p.features; at += 16) {
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

__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_parts_kernel(const __grid_constant__ positive_launch l)
{
    extern __shared__ __align__(16) char positive_memory[];
    __nv_bfloat16 *tile = (__nv_bfloat16 *)positive_memory; /* [64][POSITIVE_PITCH] */
    const part_place u = place_of(l);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, width = (int)l.p.dim_qk + 1;
    const float root = sqrtf((float)l.p.scale);
    float d[POSITIVE_DIM / 8][4], alpha[2] = { 0, 0 }, unused[2] = { 0, 0 };
    clear(d);
    add_rows(l, u, true, 0, tile, d, alpha);
    for (int64_t r = 0; r < l.x.reads; r++)
        add_rows(l, u, false, r, tile, d, unused);
    if (u.m >= (int)l.p.features) return;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float *to = l.parts + ((u.part * l.x.heads + u.n) * l.p.features + u.m + g + 8 * e) * width;
        const float sum = quad_sum(alpha[e]);
#pragma unroll
        for (int c = 0; c < POSITIVE_DIM / 8; c++) {
            if (8 * c >= (int)l.p.dim_qk) continue;
            to[8 * c + 2 * t] = root * d[c][2 * e], to[8 * c + 2 * t + 1] = root * d[c][2 * e + 1];
        }
        if (t == 0) to[width - 1] = sum;
    }
}

__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_sum_kernel(const __grid_constant__ positive_launch l)
{
    const int64_t width = l.p.dim_qk + 1, all = l.x.heads * l.p.features * width,
                  e = (int64_t)blockIdx.x * POSITIVE_THREADS + threadIdx.x, n = e / width / l.p.features,
                  m = e / width % l.p.features, c = e % width;
    const loam_view &z = l.a.grad_z, &alpha = l.a.grad_log_alpha;
    if (e >= all) return;
    double sum = 0;
    for (int64_t part = 0; part < positive_entries(l) * l.slices; part++)
        sum += (double)l.parts[part * all + e];
    if (c < l.p.dim_qk && z.data) ((float *)z.data)[n * z.head + m * z.token + c] = (float)sum;
    if (c == l.p.dim_qk && alpha.data) ((float *)alpha.data)[n * alpha.head + m] = (float)sum;
}

loam_status positive_parameters_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t parts = positive_entries(*l) * l->slices * l->x.heads * ((l->p.features + 63) / 64),
                  sums = (l->x.heads * l->p.features * (l->p.dim_qk + 1) + POSITIVE_THREADS - 1) /
                         POSITIVE_THREADS;
    REQUIRE(parts <= INT32_MAX && sums <= INT32_MAX, error, LOAM_EMEMORY,
            "batch x heads x len_q: too large for one launch");
    if (!l->a.grad_z.data && !l->a.grad_log_alpha.data) return LOAM_OK;
    if (parts > 0) {
        TRY(cuda_launch("positive_parts_kernel", positive_parts_kernel, parts, POSITIVE_THREADS,
                        POSITIVE_CHUNK * POSITIVE_PITCH * sizeof(__nv_bfloat16), l->a.stream, false, error,
                        *l));
    }
    return cuda_launch("positive_sum_kernel", positive_sum_kernel, sums, POSITIVE_THREADS, 0, l->a.stream,
                       false, error, *l);
}
