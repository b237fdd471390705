/* SPDX-License-Identifier: MIT
 * Positive random features on Hopper (src/recurrent/positive.h), bf16. A thread block has a chunk of 64
 * tokens of a head of z, and takes its tokens 16 at a time: a step. With c_0 the running maximum before a
 * step, c_t that at token t and c_1 that after it, a step reads what is before it from a state relative to
 * c_0 and its own keys pair by pair,
 *
 *     o_t den_t = sum_m e^{b_tm + c_0m - top_t} S_m + sum_{j<=t} w_tj v_j,   top_t = max_m (b_tm + c_tm)
 *     w_tj = sum_m e^{(a_jm - c_1m) + (b_tm + c_1m - top_t)}
 *     S_m <- e^{c_0m - c_1m} S_m + sum_j e^{a_jm - c_1m} v_j
 *
 * so that all factors and all terms are at most 1 and den_t is at least 1/e. Logarithms are float32,
 * products have z in three bf16 parts and features and states in two; exponentials are in the log2 domain.
 * The second factor of a term of w is at most e^{c_1m - c_tm}: where no c rises by more than POSITIVE_RISE
 * from a step's first token on, w is a product of two matrices; else the pairs are weighed one by one.
 *
 * A warp has 16 channels of v, and their state for all features as the accumulator S^T [16][features]. */
#ifndef LOAM_RECURRENT_HOPPER_POSITIVE_CUH
#define LOAM_RECURRENT_HOPPER_POSITIVE_CUH

#include "src/gpu/hopper.cuh"
#include "src/gpu/launch.cuh"
#include "src/recurrent/positive.h"

enum {
    POSITIVE_THREADS = 128,
    POSITIVE_WARPS = POSITIVE_THREADS / 32,
    POSITIVE_DIM = 64, /* channels of q and k, and of v, at most */
    POSITIVE_CHUNK = 64,
    POSITIVE_STEP = 16,
    POSITIVE_SLICE = 512, /* tokens of a part of the gradients of z and log alpha */
    POSITIVE_PITCH = POSITIVE_DIM + PAD
};

/* Arguments of a kernel. x has numbers alone until positive_chunk_at lets it point to these copies. */
typedef struct positive_launch {
    loam_problem p;
    loam_args a;
    positive x;
    /* [heads, features, dim_qk]: A^T z and B^T z, or z itself, whose products with q and k are those of z
     * with x and y; [heads, features]: log alpha - sqrt(scale) z . B r, or log alpha itself. */
    loam_const_view z_q, z_k, alpha;
    float *turned, *centre;   /* B r and B^T B r [heads, dim_qk], where there is a shift or a matrix */
    float *gram;              /* B^T B [heads, dim_qk, dim_qk], where there is a matrix */
    uint2 *parts_q, *parts_k; /* z_q and z_k as operands: positive_load_parts */
    uint4 *rows_q, *rows_k;   /* backward, likewise: positive_load_rows */
    float *half;              /* |y|^2 / 2 [entries, heads, tokens] */
    int64_t chunks;           /* of the longest sequence */
    float *tops;              /* c of each chunk alone [batch, heads, chunks, features] */
    float *before;            /* c before each chunk, likewise */
    float *states; /* S and s of each chunk alone, then before it: [dim_v + 1, features] for each chunk */
    /* Backward. Rows are those of positive_row. */
    float4 *records;        /* top, 1 / den and -(grad_o . o) / den of each query */
    float *ends;            /* c before each step [batch, heads, chunks, 4, features] */
    float *adjoints;        /* gradients of S and s, of each chunk alone, then after it; as states */
    float *grad_b, *grad_a; /* gradients of logarithms [rows, features]; of keys in the rows of read 0 */
    float *grad_v;          /* [rows, dim_v], where heads share values */
    float *parts;           /* sums of db q, da k and da [entries, slices, heads, features, 2 dim_qk + 1] */
    double *totals;         /* the same of all slices */
    int64_t slices;         /* of the tokens of an entry */
} positive_launch;

/* Batch entries of the arrays: packed sequences are one. */
static __host__ __device__ __forceinline__ int64_t positive_entries(const positive_launch &l)
{
    return sequence_packed(&l.p) ? 1 : l.p.batch;
}

/* All kernels of a call but the first ones begin so, and may be launched before the one before has ended. */
static __device__ __forceinline__ void positive_follow(void)
{
    launch_dependents();
    wait_for_previous_launch();
}

/* A chunk of a head, and where its numbers lie. */
struct positive_chunk {
    positive x;
    recurrent_seq seq;
    int64_t n, at;       /* head of z; the chunk, counted over all heads */
    int first, count;    /* its tokens; count <= 0: none */
    int features, pitch; /* pitch: of rows of features in shared memory */
    float root;          /* sqrt(scale) */
    const uint2 *parts_q, *parts_k;
    loam_const_view alpha;
};

static __device__ __forceinline__ positive_chunk positive_chunk_at(const positive_launch &l)
{
    positive_chunk u;
    const int64_t item = blockIdx.x / l.chunks, left_over = blockIdx.x % l.chunks * POSITIVE_CHUNK;
    u.x = l.x;
    u.x.p = &l.p, u.x.a = &l.a;
    u.seq = recurrent_seq_at(&l.p, &l.a, item / l.x.heads);
    u.n = item % l.x.heads, u.at = blockIdx.x;
    u.first = (int)left_over;
    const int64_t left = u.seq.len - left_over;
    u.count = (int)(left < POSITIVE_CHUNK ? left : POSITIVE_CHUNK);
    u.features = (int)l.p.features, u.pitch = u.features + 4;
    u.root = sqrtf((float)l.p.scale);
    u.parts_q = l.parts_q, u.parts_k = l.parts_k, u.alpha = l.alpha;
    return u;
}

/* Shared memory of a chunk. Arrays of a step are [16][pitch], of pairs [16][18], of its queries [16];
 * those of features [features], and a state, its normaliser apart, [64][pitch]. */
struct positive_shared {
    float *a, *keys, *c; /* logarithms of keys, then log2 e times those less c_1; e^{a - c_1}; c_t */
    float *half;         /* |y|^2 / 2 of the chunk's keys [64] */
    float *c_0, *c_1, *s_0, *s_1, *decay; /* before the step and after it; e^{c_0 - c_1} */
    __nv_bfloat16 *k, *v;                 /* [64][POSITIVE_PITCH] */
    /* Where queries are read. */
    /* Logarithms of queries, then e^{b + c_1 - top}, or its log2 where pairs are weighed one by one;
     * e^{b + c_0 - top}. */
    float *b, *queries;
    float *weights;            /* w, of pairs */
    float *top, *divisor;      /* of queries; the divisor without w */
    __nv_bfloat16 *q, *grad_o; /* [2][16][POSITIVE_PITCH]: of this step or read, and of the next */
    /* Backward. */
    float *inverse, *shift;    /* 1 / den and -(grad_o . o) / den of queries */
    float *pairs;              /* gradients of w */
    float *sums;               /* of a step: products with the state, or gradients of logarithms */
    float *state, *normaliser; /* the chunk's, of keys before or of queries after the step */
    float *start, *reads;      /* c before the chunk; the sum of shift over its queries, relative to that */
    unsigned *held;            /* of features: bit i where the logarithm of row i of a step is held */
};

enum { POSITIVE_PAIRS_PITCH = POSITIVE_STEP + 2, POSITIVE_STEPS = POSITIVE_CHUNK / POSITIVE_STEP };

/* What a kernel has of it: the first part, the first two, all. */
typedef enum positive_use { POSITIVE_KEYS, POSITIVE_READ, POSITIVE_GRADIENT } positive_use;

/* Divides shared memory at `base`; returns its bytes: with 64 features at most a third of that of a Hopper
 * multiprocessor. */
static __host__ __device__ inline size_t positive_shared_carve(char *base, int features, positive_use use,
                                                               positive_shared *s)
{
    const int rows = POSITIVE_STEP * (features + 4), pairs = POSITIVE_STEP * POSITIVE_PAIRS_PITCH,
              tile = POSITIVE_CHUNK * POSITIVE_PITCH, step = 2 * POSITIVE_STEP * POSITIVE_PITCH;
    float *at = (float *)base;
    s->a = at, at += rows;
    s->keys = at, at += rows;
    s->c = at, at += rows;
    s->half = at, at += POSITIVE_CHUNK;
    s->c_0 = at, at += features;
    s->c_1 = at, at += features;
    s->s_0 = at, at += features;
    s->s_1 = at, at += features;
    s->decay = at, at += features;
    s->k = (__nv_bfloat16 *)at, at += tile / 2;
    s->v = (__nv_bfloat16 *)at, at += tile / 2;
    if (use == POSITIVE_KEYS) return (size_t)((char *)at - base);
    s->b = at, at += rows;
    s->queries = at, at += rows;
    s->weights = at, at += pairs;
    s->top = at, at += POSITIVE_STEP;
    s->divisor = at, at += POSITIVE_STEP;
    s->q = (__nv_bfloat16 *)at, at += step / 2;
    if (use == POSITIVE_READ) return (size_t)((char *)at - base);
    s->grad_o = (__nv_bfloat16 *)at, at += step / 2;
    s->inverse = at, at += POSITIVE_STEP;
    s->shift = at, at += POSITIVE_STEP;
    s->pairs = at, at += pairs;
    s->sums = at, at += rows;
    s->state = at, at += POSITIVE_DIM * (features + 4);
    s->normaliser = at, at += features;
    s->start = at, at += features;
    s->reads = at, at += features;
    s->held = (unsigned *)at, at += features;
    return (size_t)((char *)at - base);
}

/* ------------------------------------------------------------------ rows of q, k and v */

static __device__ __forceinline__ rows_view positive_rows(const positive_chunk &u,
                                                          const loam_const_view &from, int64_t head,
                                                          int token)
{
    return { from.data, LOAM_BF16, RECURRENT_AT(from, u.seq.b, head, u.seq.first + token), from.token };
}

/* The keys and values of the chunk and s.half: complete after a copy_async_wait and a barrier. */
static __device__ void positive_load_chunk(const positive_launch &l, const positive_chunk &u,
                                           const positive_shared &s)
{
    const loam_args &a = l.a;
    const int64_t head = positive_key_head(&u.x, u.n);
    const float *half = l.half + (u.seq.b * l.x.heads + u.n) * (l.x.axis / l.x.reads) + u.seq.first + u.first;
    fill_tile<POSITIVE_CHUNK, POSITIVE_DIM, POSITIVE_THREADS>(s.k, positive_rows(u, a.k, head, u.first),
                                                              u.count, 0, (int)u.x.p->dim_qk, NULL);
    fill_tile<POSITIVE_CHUNK, POSITIVE_DIM, POSITIVE_THREADS>(s.v, positive_rows(u, a.v, head, u.first),
                                                              u.count, 0, (int)u.x.p->dim_v, NULL);
    for (int i = (int)threadIdx.x; i < POSITIVE_CHUNK; i += POSITIVE_THREADS)
        s.half[i] = i < u.count ? half[i] : 0;
}

/* ------------------------------------------------------------------ operands from rows of floats */

/* A: 16 rows, columns k .. k + 15. */
static __device__ __forceinline__ void positive_load_a(operand_a<2> &a, const float *rows, int pitch, int k)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const float2 x = *(const float2 *)(rows + (g + e % 2 * 8) * pitch + k + 2 * t + e / 2 * 8);
        uint32_t part[2];
        split_pair(part, x.x, x.y);
        a.part[0][e] = part[0], a.part[1][e] = part[1];
    }
}

/* B: 16 rows, columns n .. n + 7. */
static __device__ __forceinline__ void positive_load_b(operand_b<2> &b, const float *rows, int pitch, int n)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float *x = rows + (2 * t + 8 * e) * pitch + n + g;
        uint32_t part[2];
        split_pair(part, x[0], x[pitch]);
        b.part[0][e] = part[0], b.part[1][e] = part[1];
    }
}

/* B: the transpose of rows n .. n + 7, of which columns k .. k + 15. */
static __device__ __forceinline__ void positive_load_b_rows(operand_b<2> &b, const float *rows, int pitch,
                                                            int n, int k)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float2 x = *(const float2 *)(rows + (n + g) * pitch + k + 2 * t + 8 * e);
        uint32_t part[2];
        split_pair(part, x.x, x.y);
        b.part[0][e] = part[0], b.part[1][e] = part[1];
    }
}

/* A: the transpose of 16 rows of a tile, columns m .. m + 15. */
static __device__ __forceinline__ void positive_load_transposed(operand_a<1> &a, const __nv_bfloat16 *rows,
                                                                int m)
{
    const int lane = threadIdx.x % 32;
    load_matrices_transposed(a.part[0],
                             rows + (lane / 16 * 8 + lane % 8) * POSITIVE_PITCH + m + lane / 8 % 2 * 8);
}

/* ------------------------------------------------------------------ logarithms */

/* Products have this part of z: with queries of 3e38 they do not overflow, and a logarithm that is held
 * has its sign. */
constexpr float POSITIVE_SHARE = 0x1p-16f;

/* B of products with z^T: features n .. n + 7, channels k .. k + 15. */
static __device__ __forceinline__ void positive_load_z(operand_b<3> &b, const loam_const_view &z,
                                                       int64_t head, int n, int k)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float *row = (const float *)z.data + head * z.head + (n + g) * z.token + k + 2 * t;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float2 x = *(const float2 *)(row + 8 * e);
        uint32_t part[3];
        split_pair(part, POSITIVE_SHARE * x.x, POSITIVE_SHARE * x.y);
#pragma unroll
        for (int p = 0; p < 3; p++)
            b.part[p][e] = part[p];
    }
}

/* The same from what was split before: three pairs of words for each lane. Where those of features n .. n + 7
 * and channels k .. k + 15 are: */
static __host__ __device__ __forceinline__ int64_t positive_part_at(int64_t head, int64_t features,
                                                                    int64_t dim, int n, int k)
{
    return ((head * (features / 8) + n / 8) * (dim / 16) + k / 16) * 3 * 32;
}

static __device__ __forceinline__ void positive_load_parts(operand_b<3> &b, const uint2 *parts)
{
#pragma unroll
    for (int p = 0; p < 3; p++) {
        const uint2 x = parts[32 * p + threadIdx.x % 32];
        b.part[p][0] = x.x, b.part[p][1] = x.y;
    }
}

/* The same for products with z, of two parts: two pairs of words for each lane. Where those of features k ..
 * k + 15 and channels n .. n + 7 are: */
static __host__ __device__ __forceinline__ int64_t positive_rows_at(int64_t head, int64_t features,
                                                                    int64_t dim, int k, int n)
{
    return ((head * (features / 16) + k / 16) * (dim / 8) + n / 8) * 32;
}

static __device__ __forceinline__ void positive_load_rows(operand_b<2> &b, const uint4 *rows)
{
    const uint4 x = rows[threadIdx.x % 32];
    b.part[0][0] = x.x, b.part[0][1] = x.y, b.part[1][0] = x.z, b.part[1][1] = x.w;
}

/* B: features k .. k + 15 of z, channels n .. n + 7. */
static __device__ __forceinline__ void positive_load_projections(operand_b<2> &b, const float *z,
                                                                 int64_t stride, int k, int n)
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

static __device__ __forceinline__ float positive_hold_float(float x)
{
    return !(x > (float)-POSITIVE_BOUND) ? (float)-POSITIVE_BOUND : fminf(x, (float)POSITIVE_BOUND);
}

/* to [16][pitch] <- sqrt(scale) z . row of a tile's 16 rows, and for keys log alpha - |y|^2 / 2 more, as they
 * are before they are held. */
template <bool KEYS>
static __device__ void positive_products(const positive_chunk &u, const __nv_bfloat16 *rows,
                                         const float *half_norms, float *to)
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, dim = (int)u.x.p->dim_qk;
    const loam_const_view &weight = u.alpha;
    for (int n = (int)threadIdx.x / 32 * 8; n < u.features; n += POSITIVE_WARPS * 8) {
        const uint2 *parts = (KEYS ? u.parts_k : u.parts_q) + positive_part_at(u.n, u.features, dim, n, 0);
        float d[4] = { 0, 0, 0, 0 };
#pragma unroll
        for (int k = 0; k < POSITIVE_DIM; k += 16) {
            operand_a<1> a;
            operand_b<3> z;
            if (k >= dim) break;
            positive_load_parts(z, parts + positive_part_at(0, 8, dim, 0, k));
            load_a<POSITIVE_PITCH>(a, rows, 0, k);
            mma(d, a, z);
        }
        float alpha[2] = { 0, 0 };
        if (KEYS && weight.data) {
            alpha[0] = ((const float *)weight.data)[u.n * weight.head + n + 2 * t];
            alpha[1] = ((const float *)weight.data)[u.n * weight.head + n + 2 * t + 1];
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int row = g + 8 * e;
            const float factor = u.root / POSITIVE_SHARE, half = KEYS ? half_norms[row] : 0;
            *(float2 *)(to + row * u.pitch + n + 2 * t) = make_float2(
                factor * d[2 * e] + (alpha[0] - half), factor * d[2 * e + 1] + (alpha[1] - half));
        }
    }
}

/* ------------------------------------------------------------------ a step of the keys */

/* e^POSITIVE_RISE is far from infinity, and a key that is 0 in float has terms below e^{POSITIVE_RISE - 87}:
 * nothing beside den_t. */
constexpr float POSITIVE_RISE = 40;

/* Calls use(m, row) for each feature m by two lanes of a warp, 16 apart, of which one has the rows of a step
 * from row = 0 on, the other those from HALF_STEP on. */
enum { HALF_STEP = POSITIVE_STEP / 2 };
template <class F>
static __device__ __forceinline__ void positive_for_features(const positive_chunk &u, F use)
{
    const int lane = (int)threadIdx.x % 32;
    for (int m = (int)threadIdx.x / 32 * 16 + lane % 16; m < u.features; m += POSITIVE_WARPS * 16)
        use(m, lane / 16 * HALF_STEP);
}

template <class T> static __device__ __forceinline__ T positive_other_half(T x)
{
    return __shfl_xor_sync(~0u, x, 16);
}

/* From the logarithms of the keys: c, keys, decay, s_0, s_1, c_0, c_1, and a less c_1. `count` tokens are
 * there. Returns whether a c of the thread rises by more than POSITIVE_RISE. */
static __device__ bool positive_scan(const positive_chunk &u, const positive_shared &s, int count)
{
    bool rises = false;
    positive_for_features(u, [&](int m, int row) {
        float a[HALF_STEP], top = (float)-POSITIVE_BOUND, sum = 0;
        const float c_0 = s.c_1[m], s_0 = s.s_1[m];
#pragma unroll
        for (int i = 0; i < HALF_STEP; i++) {
            a[i] = row + i < count ? positive_hold_float(s.a[(row + i) * u.pitch + m]) : -INFINITY;
            top = fmaxf(top, ceilf(a[i]));
        }
        const float other = positive_other_half(top), c_1 = fmaxf(c_0, fmaxf(top, other));
        float c = row == 0 ? c_0 : fmaxf(c_0, other);
#pragma unroll
        for (int i = 0; i < HALF_STEP; i++) {
            c = fmaxf(c, ceilf(a[i]));
            s.c[(row + i) * u.pitch + m] = c;
            if (row + i == 0) rises |= c_1 - c > POSITIVE_RISE;
            a[i] = (float)LOG2E * (a[i] - c_1);
            const float key = exp2_fast(a[i]);
            s.a[(row + i) * u.pitch + m] = a[i], s.keys[(row + i) * u.pitch + m] = key;
            sum += key;
        }
        sum += positive_other_half(sum);
        const float decay = exp2_fast((float)LOG2E * (c_0 - c_1));
        __syncwarp();
        if (row > 0) return;
        s.decay[m] = decay, s.c_0[m] = c_0, s.c_1[m] = c_1, s.s_0[m] = s_0, s.s_1[m] = fmaf(s_0, decay, sum);
    });
    return rises;
}

/* state <- e^{c_0 - c_1} state + sum_j v_j e^{a_j - c_1}, of the warp's 16 channels. rows: the step's
 * values. */
template <int TILES>
static __device__ __forceinline__ void positive_add(const positive_chunk &u, const positive_shared &s,
                                                    const __nv_bfloat16 *rows, float (&state)[2 * TILES][4])
{
    const int t = threadIdx.x % 4;
    operand_a<1> v;
    positive_load_transposed(v, rows, (int)threadIdx.x / 32 * 16);
#pragma unroll
    for (int f = 0; f < 2 * TILES; f++) {
        if (8 * f >= u.features) continue;
        const float2 decay = *(const float2 *)(s.decay + 8 * f + 2 * t);
        operand_b<2> keys;
        positive_load_b(keys, s.keys, u.pitch, 8 * f);
        state[f][0] *= decay.x, state[f][1] *= decay.y, state[f][2] *= decay.x, state[f][3] *= decay.y;
        mma(state[f], v, keys);
    }
}

/* ------------------------------------------------------------------ states in memory */

/* Calls of a warp's 16 channels of an array [dim_v (+ 1)][features]: the pair of each fragment. */
template <int TILES>
static __device__ __forceinline__ void positive_load_state(const positive_chunk &u, const float *from,
                                                           float (&state)[2 * TILES][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, channel = (int)threadIdx.x / 32 * 16 + g;
#pragma unroll
    for (int f = 0; f < 2 * TILES; f++) {
        if (8 * f >= u.features) continue;
        const float *at = from + (int64_t)channel * u.features + 8 * f + 2 * t;
        const float2 x = *(const float2 *)at, y = *(const float2 *)(at + 8 * u.features);
        state[f][0] = x.x, state[f][1] = x.y, state[f][2] = y.x, state[f][3] = y.y;
    }
}

template <int TILES>
static __device__ __forceinline__ void positive_store_state(const positive_chunk &u, float *to,
                                                            const float (&state)[2 * TILES][4])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, channel = (int)threadIdx.x / 32 * 16 + g;
#pragma unroll
    for (int f = 0; f < 2 * TILES; f++) {
        if (8 * f >= u.features) continue;
        float *at = to + (int64_t)channel * u.features + 8 * f + 2 * t;
        *(float2 *)at = make_float2(state[f][0], state[f][1]);
        *(float2 *)(at + 8 * u.features) = make_float2(state[f][2], state[f][3]);
    }
}

/* Does the warp have channels of v? Their number is a multiple of 16. */
static __device__ __forceinline__ bool positive_warp_works(const positive_chunk &u)
{
    return (int)threadIdx.x / 32 * 16 < (int)u.x.p->dim_v;
}

static __device__ __forceinline__ int64_t positive_state_at(const positive_chunk &u)
{
    return u.at * (u.x.p->dim_v + 1) * u.features;
}

/* A launch with the instance of `kernel` for the number of features. */
#define POSITIVE_LAUNCH(kernel, blocks, shared, error, launch) \
    ((launch).p.features <= 64    ? cuda_launch(#kernel, kernel<4>, blocks, POSITIVE_THREADS, shared, \
                                                (launch).a.stream, true, error, launch) \
     : (launch).p.features <= 128 ? cuda_launch(#kernel, kernel<8>, blocks, POSITIVE_THREADS, shared, \
                                                (launch).a.stream, true, error, launch) \
                                  : cuda_launch(#kernel, kernel<16>, blocks, POSITIVE_THREADS, shared, \
                                                (launch).a.stream, true, error, launch))

/* What A, B and the shift make of z and log alpha; |y|^2 / 2. */
loam_status positive_prepare_hopper(const positive_launch *l, loam_error *error);
/* S, s and c before each chunk; state_out, where it is wanted. */
loam_status positive_states_hopper(const positive_launch *l, loam_error *error);
loam_status positive_output_hopper(const positive_launch *l, loam_error *error);
/* Backward, in this order: records and grad_b, and up to POSITIVE_ADJOINTS features adjoints; else these, and
 * grad_state_in; grad_a and the gradient of v; the gradients of q and k, z and log alpha. */
enum { POSITIVE_ADJOINTS = 64 };
loam_status positive_queries_hopper(const positive_launch *l, loam_error *error);
loam_status positive_adjoints_hopper(const positive_launch *l, loam_error *error);
loam_status positive_keys_hopper(const positive_launch *l, loam_error *error);
loam_status positive_rows_hopper(const positive_launch *l, loam_error *error);
loam_status positive_parameters_hopper(const positive_launch *l, loam_error *error);

#endif
