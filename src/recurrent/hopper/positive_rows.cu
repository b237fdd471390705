/* SPDX-License-Identifier: MIT
 * Backward of positive random features on Hopper: from the gradients of logarithms those of the rows of q
 * and k,
 *
 *     dq_t = sqrt(scale) A^T sum_m db_tm z_m,   dk_t = sqrt(scale) B^T sum_m da_tm (z_m - y_t)
 *     B^T y_t = sqrt(scale) B^T B (k_t - r)
 *
 * A thread block has 64 tokens of a head of q or of k, wherever sequences begin; a warp 16 of them. */
#include "src/recurrent/hopper/positive.cuh"

/* 16 rows of gradients of logarithms, `stride` elements apart, of which `count` are there. */
struct gradient_rows {
    const float *at;
    int64_t stride;
    int count;
};

/* A: columns k .. k + 15. */
static __device__ __forceinline__ void load_gradients(operand_a<2> &a, const gradient_rows &rows, int k,
                                                      float (&sums)[2])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int row = g + e % 2 * 8;
        float2 x = make_float2(0, 0);
        if (row < rows.count) x = *(const float2 *)(rows.at + row * rows.stride + k + 2 * t + e / 2 * 8);
        uint32_t part[2];
        split_pair(part, x.x, x.y);
        a.part[0][e] = part[0], a.part[1][e] = part[1];
        sums[e % 2] += x.x + x.y;
    }
}

/* d += rows z; sums: of rows g and g + 8. */
static __device__ __forceinline__ void add_projections(const gradient_rows &rows, const uint4 *z, int64_t n,
                                                       int features, int dim, float (&d)[POSITIVE_DIM / 8][4],
                                                       float (&sums)[2])
{
    const uint4 *from = z + positive_rows_at(n, features, dim, 0, 0);
    sums[0] = sums[1] = 0;
    for (int k = 0; k < features; k += 16) {
        operand_a<2> a;
        load_gradients(a, rows, k, sums);
#pragma unroll
        for (int c = 0; c < POSITIVE_DIM / 8; c++) {
            operand_b<2> b;
            if (8 * c >= dim) continue;
            positive_load_rows(b, from + positive_rows_at(0, features, dim, k, 8 * c));
            mma(d[c], a, b);
        }
    }
    sums[0] = quad_sum(sums[0]), sums[1] = quad_sum(sums[1]);
}

/* A head of q or of k, and the warp's first token. */
struct row_place {
    bool key;
    int64_t b, head, token;
    int count;
};

static __device__ __forceinline__ row_place place_of(const positive_launch &l)
{
    const int64_t tokens = l.x.axis / l.x.reads, blocks = (tokens + POSITIVE_CHUNK - 1) / POSITIVE_CHUNK,
                  heads = l.p.heads_q + l.p.heads_kv, item = blockIdx.x / blocks, head = item % heads;
    row_place u;
    u.key = head >= l.p.heads_q;
    u.b = item / heads, u.head = u.key ? head - l.p.heads_q : head;
    u.token = blockIdx.x % blocks * POSITIVE_CHUNK + threadIdx.x / 32 * 16;
    const int64_t left = tokens - u.token;
    u.count = (int)(left < 0 ? 0 : left < 16 ? left : 16);
    return u;
}

/* A: columns k .. k + 15 of the keys. */
static __device__ __forceinline__ void load_keys(operand_a<1> &a, const positive_launch &l,
                                                 const row_place &u, int k)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const int row = g + e % 2 * 8;
        const int64_t at = RECURRENT_AT(l.a.k, u.b, u.head, u.token + row) + k + 2 * t + e / 2 * 8;
        const uint16_t *x = (const uint16_t *)l.a.k.data + at;
        a.part[0][e] = row < u.count ? x[0] | (uint32_t)x[1] << 16 : 0;
    }
}

/* w <- B^T B k, k itself without a matrix. */
static __device__ __forceinline__ void turn_keys(const positive_launch &l, const row_place &u, int64_t n,
                                                 float (&w)[POSITIVE_DIM / 8][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, dim = (int)l.p.dim_qk;
    clear(w);
#pragma unroll
    for (int c = 0; c < POSITIVE_DIM / 8; c++) {
        if (8 * c >= dim) continue;
        for (int k = 0; l.gram && k < dim; k += 16) {
            operand_a<1> a;
            operand_b<2> b;
            load_keys(a, l, u, k);
            positive_load_projections(b, l.gram + n * dim * dim, dim, k, 8 * c);
            mma(w[c], a, b);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = g + e / 2 * 8;
            const int64_t at = RECURRENT_AT(l.a.k, u.b, u.head, u.token + row) + 8 * c + 2 * t + e % 2;
            if (!l.gram && row < u.count) w[c][e] = load_real<float>(l.a.k.data, LOAM_BF16, at);
        }
    }
}

/* d -= sums B^T y, of keys. */
static __device__ __forceinline__ void subtract_keys(const positive_launch &l, const row_place &u, int64_t n,
                                                     const float (&sums)[2], float (&d)[POSITIVE_DIM / 8][4])
{
    const int t = threadIdx.x % 4, dim = (int)l.p.dim_qk;
    const float root = sqrtf((float)l.p.scale);
    float w[POSITIVE_DIM / 8][4];
    turn_keys(l, u, n, w);
#pragma unroll
    for (int c = 0; c < POSITIVE_DIM / 8; c++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int channel = 8 * c + 2 * t + e % 2;
            if (8 * c >= dim) continue;
            const float y = root * (w[c][e] - (l.centre ? l.centre[n * dim + channel] : 0));
            d[c][e] -= sums[e / 2] != 0 ? sums[e / 2] * y : 0; /* y overflows where no logarithm is free */
        }
    }
}

static __device__ __forceinline__ void store_rows(const positive_launch &l, const row_place &u,
                                                  const loam_view &to, const float (&d)[POSITIVE_DIM / 8][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float root = sqrtf((float)l.p.scale);
#pragma unroll
    for (int c = 0; c < POSITIVE_DIM / 8; c++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int row = g + 8 * e;
            if (row >= u.count || 8 * c >= (int)l.p.dim_qk) continue;
            __nv_bfloat16 *at = (__nv_bfloat16 *)to.data + RECURRENT_AT(to, u.b, u.head, u.token + row);
            *(uint32_t *)(at + 8 * c + 2 * t) = pack_pair<__nv_bfloat16>(root * d[c][2 * e],
                                                                         root * d[c][2 * e + 1]);
        }
    }
}

__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_rows_kernel(const __grid_constant__ positive_launch l)
{
    positive_follow();
    const row_place u = place_of(l);
    const loam_view &to = u.key ? l.a.grad_k : l.a.grad_q;
    const int64_t first = u.key ? u.head * l.x.sharing : u.head / l.x.reads, count = u.key ? l.x.sharing : 1,
                  read = u.key ? 0 : u.head % l.x.reads;
    float d[POSITIVE_DIM / 8][4], sums[2];
    if (!to.data || u.count == 0) return;
    clear(d);
    for (int64_t n = first; n < first + count; n++) {
        const int64_t row = (u.b * l.x.heads + n) * l.x.axis + u.token * l.x.reads + read;
        const gradient_rows rows = { (u.key ? l.grad_a : l.grad_b) + row * l.p.features,
                                     l.x.reads * l.p.features, u.count };
        add_projections(rows, u.key ? l.rows_k : l.rows_q, n, (int)l.p.features, (int)l.p.dim_qk, d, sums);
        if (u.key) subtract_keys(l, u, n, sums, d);
    }
    store_rows(l, u, to, d);
}

loam_status positive_rows_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t tokens = l->x.axis / l->x.reads, blocks = positive_entries(*l) *
                                                            (l->p.heads_q + l->p.heads_kv) *
                                                            ((tokens + POSITIVE_CHUNK - 1) / POSITIVE_CHUNK);
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads x len_q: too large for one launch");
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("positive_rows_kernel", positive_rows_kernel, blocks, POSITIVE_THREADS,
                                     0, l->a.stream, true, error, *l);
}
