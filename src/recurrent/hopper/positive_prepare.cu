/* SPDX-License-Identifier: MIT
 * Positive random features on Hopper: what A, B and the shift r make of the parameters, so that products
 * are those of q and k as they are given,
 *
 *     b_m = sqrt(scale) (A^T z_m) . q
 *     a_m = sqrt(scale) (B^T z_m) . k + (log alpha_m - sqrt(scale) z_m . B r) - |y|^2 / 2
 *
 * and |y|^2 / 2 of all keys. */
#include "src/recurrent/hopper/positive.cuh"

static __device__ __forceinline__ double number_at(const loam_const_view &view, int64_t n, int64_t row,
                                                   int64_t c)
{
    return (double)((const float *)view.data)[n * view.head + row * view.token + c];
}

/* A thread has a channel of B r. */
__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_turn_kernel(const __grid_constant__ positive_launch l)
{
    const loam_const_view &B = l.a.balance_keys, &shift = l.a.shift;
    const int64_t e = (int64_t)blockIdx.x * POSITIVE_THREADS + threadIdx.x, dim = l.p.dim_qk, n = e / dim,
                  c = e % dim;
    if (n >= l.x.heads) return;
    double x = B.data || !shift.data ? 0 : number_at(shift, n, 0, c);
    for (int64_t j = 0; B.data && shift.data && j < dim; j++)
        x += number_at(B, n, c, j) * number_at(shift, n, 0, j);
    l.turned[e] = (float)x;
}

/* Columns c of A and B times row `row` of x, or of B itself: sum_i M_ic x_i. */
static __device__ double column_product(const loam_const_view &M, int64_t n, int64_t c,
                                        const loam_const_view &x, int64_t row, int64_t dim)
{
    double sum = 0;
    for (int64_t i = 0; i < dim; i++)
        sum += number_at(M, n, i, c) * number_at(x, n, row, i);
    return sum;
}

/* Row m of A^T z and B^T z, and log alpha less z . B r: column c of dim_qk, and one more. */
static __device__ void prepare_features(const positive_launch &l, int64_t n, int64_t m, int64_t c)
{
    const int64_t dim = l.p.dim_qk, at = (n * l.p.features + m) * dim + c;
    if (c < dim && l.gram) {
        ((float *)l.z_q.data)[at] = (float)column_product(l.a.balance, n, c, l.a.z, m, dim);
        ((float *)l.z_k.data)[at] = (float)column_product(l.a.balance_keys, n, c, l.a.z, m, dim);
    }
    if (c < dim) return;
    const loam_const_view turned = { l.turned, 0, dim, 0 };
    double sum = 0;
    for (int64_t i = 0; i < dim; i++)
        sum += number_at(l.a.z, n, m, i) * number_at(turned, n, 0, i);
    const double alpha = l.a.log_alpha.data ? number_at(l.a.log_alpha, n, 0, m) : 0;
    ((float *)l.alpha.data)[n * l.p.features + m] = (float)(alpha - sqrt(l.p.scale) * sum);
}

/* Row i of B^T B and B^T B r: column c of dim_qk, and one more. */
static __device__ void prepare_keys(const positive_launch &l, int64_t n, int64_t i, int64_t c)
{
    const loam_const_view &B = l.a.balance_keys;
    const int64_t dim = l.p.dim_qk;
    double sum = 0;
    for (int64_t j = 0; l.gram && j < dim; j++)
        sum += number_at(B, n, j, i) * (c < dim ? number_at(B, n, j, c) : (double)l.turned[n * dim + j]);
    if (c == dim)
        l.centre[n * dim + i] = l.gram ? (float)sum : l.turned[n * dim + i];
    else if (l.gram)
        l.gram[(n * dim + i) * dim + c] = (float)sum;
}

__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_parameter_kernel(const __grid_constant__ positive_launch l)
{
    const int64_t e = (int64_t)blockIdx.x * POSITIVE_THREADS + threadIdx.x, width = l.p.dim_qk + 1,
                  rows = l.p.features + l.p.dim_qk, c = e % width, row = e / width % rows,
                  n = e / width / rows;
    if (n >= l.x.heads) return;
    if (row < l.p.features)
        prepare_features(l, n, row, c);
    else
        prepare_keys(l, n, row - l.p.features, c);
}

/* d += B k of the tile's rows 16 w .. 16 w + 15 for warp w, k itself without a matrix. */
static __device__ __forceinline__ void turn_tile(const positive_launch &l, int64_t n,
                                                 const __nv_bfloat16 *tile, float (&d)[POSITIVE_DIM / 8][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, first = (int)threadIdx.x / 32 * 16;
#pragma unroll
    for (int c = 0; c < POSITIVE_DIM / 8; c++) {
        if (8 * c >= (int)l.p.dim_qk) continue;
        for (int k = 0; l.gram && k < (int)l.p.dim_qk; k += 16) {
            operand_a<1> a;
            operand_b<3> b;
            load_a<POSITIVE_PITCH>(a, tile, first, k);
            positive_load_z(b, l.a.balance_keys, n, 8 * c, k);
            mma(d[c], a, b);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = (first + g + e / 2 * 8) * POSITIVE_PITCH + 8 * c + 2 * t + e % 2;
            d[c][e] = l.gram ? d[c][e] / POSITIVE_SHARE : __bfloat162float(tile[at]);
        }
    }
}

/* z of queries, and of keys where it is another one, in operands: a warp has 8 features and 16 channels. */
static __device__ void split_projections(const positive_launch &l, int64_t block)
{
    const int64_t steps = l.p.dim_qk / 16, tiles = l.p.features / 8,
                  e = block * POSITIVE_WARPS + threadIdx.x / 32, k = e % steps, n = e / steps % tiles,
                  head = e / steps / tiles % l.x.heads, side = e / steps / tiles / l.x.heads;
    if (side > (l.parts_k != l.parts_q)) return;
    operand_b<3> z;
    positive_load_z(z, side ? l.z_k : l.z_q, head, (int)n * 8, (int)k * 16);
    uint2 *to = (side ? l.parts_k : l.parts_q) +
                positive_part_at(head, l.p.features, l.p.dim_qk, (int)n * 8, (int)k * 16);
#pragma unroll
    for (int p = 0; p < 3; p++)
        to[32 * p + threadIdx.x % 32] = make_uint2(z.part[p][0], z.part[p][1]);
    if (l.p.pass != LOAM_BACKWARD) return;
    const int64_t m = e % (tiles / 2) * 16, c = e / (tiles / 2) % (2 * steps) * 8;
    const loam_const_view &from = side ? l.z_k : l.z_q;
    operand_b<2> row;
    positive_load_projections(row, (const float *)from.data + head * from.head, from.token, (int)m, (int)c);
    ((side ? l.rows_k : l.rows_q) +
     positive_rows_at(head, l.p.features, l.p.dim_qk, (int)m,
                      (int)c))[threadIdx.x % 32] = make_uint4(row.part[0][0], row.part[0][1], row.part[1][0],
                                                              row.part[1][1]);
}

/* |y|^2 / 2 of 64 tokens of a head of z; blocks beyond `norms` split the projections. */
__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_norm_kernel(const __grid_constant__ positive_launch l, int64_t norms)
{
    if (blockIdx.x >= norms) {
        split_projections(l, blockIdx.x - norms);
        return;
    }
    extern __shared__ __align__(16) char positive_memory[];
    __nv_bfloat16 *tile = (__nv_bfloat16 *)positive_memory; /* [64][POSITIVE_PITCH] */
    const int64_t tokens = l.x.axis / l.x.reads, blocks = (tokens + POSITIVE_CHUNK - 1) / POSITIVE_CHUNK,
                  token = blockIdx.x % blocks * POSITIVE_CHUNK, n = blockIdx.x / blocks % l.x.heads,
                  b = blockIdx.x / blocks / l.x.heads, left = tokens - token;
    const int count = (int)(left < POSITIVE_CHUNK ? left : POSITIVE_CHUNK), dim = (int)l.p.dim_qk;
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const rows_view rows = { l.a.k.data, LOAM_BF16, RECURRENT_AT(l.a.k, b, positive_key_head(&l.x, n), token),
                             l.a.k.token };
    float d[POSITIVE_DIM / 8][4], sums[2] = { 0, 0 };
    fill_tile<POSITIVE_CHUNK, POSITIVE_DIM, POSITIVE_THREADS>(tile, rows, count, 0, dim, NULL);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
    clear(d);
    turn_tile(l, n, tile, d);
#pragma unroll
    for (int c = 0; c < POSITIVE_DIM / 8; c++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (8 * c >= dim) continue;
            const float y = d[c][e] - (l.turned ? l.turned[n * dim + 8 * c + 2 * t + e % 2] : 0);
            sums[e / 2] = fmaf(y, y, sums[e / 2]);
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int i = (int)threadIdx.x / 32 * 16 + g + 8 * e;
        const float norm2 = quad_sum(sums[e]);
        if (t == 0 && i < count)
            l.half[(b * l.x.heads + n) * tokens + token + i] = (float)l.p.scale / 2 * norm2;
    }
}

loam_status positive_prepare_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t tokens = l->x.axis / l->x.reads, dim = l->p.dim_qk,
                  turns = (l->x.heads * dim + POSITIVE_THREADS - 1) / POSITIVE_THREADS,
                  numbers = l->x.heads * (l->p.features + dim) * (dim + 1),
                  parameters = (numbers + POSITIVE_THREADS - 1) / POSITIVE_THREADS,
                  blocks = positive_entries(*l) * l->x.heads *
                           ((tokens + POSITIVE_CHUNK - 1) / POSITIVE_CHUNK),
                  pieces = 2 * l->x.heads * (l->p.features / 8) * (dim / 16),
                  splits = (pieces + POSITIVE_WARPS - 1) / POSITIVE_WARPS;
    const size_t shared = POSITIVE_CHUNK * POSITIVE_PITCH * sizeof(__nv_bfloat16);
    REQUIRE(parameters <= INT32_MAX && blocks + splits <= INT32_MAX, error, LOAM_EMEMORY,
            "batch x heads x len_q: too large for one launch");
    if (l->turned) {
        TRY(cuda_launch("positive_turn_kernel", positive_turn_kernel, turns, POSITIVE_THREADS, 0, l->a.stream,
                        false, error, *l));
        TRY(cuda_launch("positive_parameter_kernel", positive_parameter_kernel, parameters, POSITIVE_THREADS,
                        0, l->a.stream, false, error, *l));
    }
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("positive_norm_kernel", positive_norm_kernel, blocks + splits,
                                     POSITIVE_THREADS, shared, l->a.stream, false, error, *l, blocks);
}
