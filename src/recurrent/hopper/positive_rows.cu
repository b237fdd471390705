/* SPDX-License-Identifier: MIT
 * Backward of positive random features on Hopper: from the gradients of logarithms those of the rows of q
 * and k,
 *
 *     dq_t = sqrt(scale) sum_m db_tm z_m,   dk_t = sqrt(scale) sum_m da_tm (z_m - y_t)
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

/* B: features k .. k + 15 of z, channels n .. n + 7. */
static __device__ __forceinline__ void load_projections(operand_b<2> &b, const float *z, int64_t stride,
                                                        int k, int n)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float *x = z + (k + 2 * t + 8 * e) * stride + n + g;
        uint32_t part[2];
        split_pair(part, x[0], x[stride]);
        b.part[0][e] = part[0], b.part[1][e] = part[1];
    }
}

/* d += rows z; sums += the sums of rows g and g + 8. */
static __device__ __forceinline__ void add_projections(const positive_launch &l, const gradient_rows &rows,
                                                       int64_t n, float (&d)[POSITIVE_DIM / 8][4],
                                                       float (&sums)[2])
{
    const float *z = (const float *)l.a.z.data + n * l.a.z.head;
    float mine[2] = { 0, 0 };
    for (int k = 0; k < (int)l.p.features; k += 16) {
        operand_a<2> a;
        load_gradients(a, rows, k, mine);
#pragma unroll
        for (int c = 0; c < POSITIVE_DIM / 8; c++) {
            operand_b<2> b;
            if (8 * c >= (int)l.p.dim_qk) continue;
            load_projections(b, z, l.a.z.token, k, 8 * c);
            mma(d[c], a, b);
        }
    }
    sums[0] += quad_sum(mine[0]), sums[1] += quad_sum(mine[1]);
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

/* to <- root (d - sums y), of keys. */
static __device__ void store_rows(const positive_launch &l, const row_place &u, const loam_view &to,
                                  const float (&d)[POSITIVE_DIM / 8][4], const float (&sums)[2])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float root = sqrtf((float)l.p.scale);
#pragma unroll
    for (int c = 0; c < POSITIVE_DIM / 8; c++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int row = g + 8 * e, channel = 8 * c + 2 * t;
            if (row >= u.count || 8 * c >= (int)l.p.dim_qk) continue;
            float x = d[c][2 * e], y = d[c][2 * e + 1];
            if (u.key) {
                const int64_t at = RECURRENT_AT(l.a.k, u.b, u.head, u.token + row) + channel;
                x -= sums[e] * (root * load_real<float>(l.a.k.data, LOAM_BF16, at));
                y -= sums[e] * (root * load_real<float>(l.a.k.data, LOAM_BF16, at + 1));
            }
            *(uint32_t *)((__nv_bfloat16 *)to.data + RECURRENT_AT(to, u.b, u.head, u.token + row) +
                          channel) = pack_pair<__nv_bfloat16>(root * x, root * y);
        }
    }
}

__global__ void __launch_bounds__(POSITIVE_THREADS)
    positive_rows_kernel(const __grid_constant__ positive_launch l)
{
    const row_place u = place_of(l);
    const loam_view &to = u.key ? l.a.grad_k : l.a.grad_q;
    const int64_t first = u.key ? u.head * l.x.sharing : u.head / l.x.reads, count = u.key ? l.x.sharing : 1,
                  read = u.key ? 0 : u.head % l.x.reads;
    float d[POSITIVE_DIM / 8][4], sums[2] = { 0, 0 };
    if (!to.data || u.count == 0) return;
    clear(d);
    for (int64_t n = first; n < first + count; n++) {
        const int64_t row = (u.b * l.x.heads + n) * l.x.axis + u.token * l.x.reads + read;
        const gradient_rows rows = { (u.key ? l.grad_a : l.grad_b) + row * l.p.features,
                                     l.x.reads * l.p.features, u.count };
        add_projections(l, rows, n, d, sums);
    }
    store_rows(l, u, to, d, sums);
}

loam_status positive_rows_hopper(const positive_launch *l, loam_error *error)
{
    const int64_t tokens = l->x.axis / l->x.reads, blocks = positive_entries(*l) *
                                                            (l->p.heads_q + l->p.heads_kv) *
                                                            ((tokens + POSITIVE_CHUNK - 1) / POSITIVE_CHUNK);
    REQUIRE(blocks <= INT32_MAX, error, LOAM_EMEMORY, "batch x heads x len_q: too large for one launch");
    return blocks == 0 ? LOAM_OK
                       : cuda_launch("positive_rows_kernel", positive_rows_kernel, blocks, POSITIVE_THREADS,
                                     0, l->a.stream, false, error, *l);
}
