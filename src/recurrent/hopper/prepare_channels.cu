/* SPDX-License-Identifier: MIT
 *
 * PREPARE where every channel has its own decay. No exponent is a difference of sums and nothing is divided
 * by a decay: for each pair of tokens there is a boundary between the two. The later token is multiplied by
 * the decay since the boundary, the earlier one by the decay up to the boundary, both at most 1, and all
 * pairs that share a boundary are one matrix product. The boundary of two tokens of the same warp is the
 * middle of the smallest block of 2, 4, 8 or 16 tokens that contains both; that of tokens of different warps
 * is the beginning of the later token's warp, 16 tokens.
 *
 * Lane 4 g + t has tokens g and g + 8 of its warp and, in each round of 32 channels, channels 8 t .. 8 t + 7.
 * This is its share of both operands of mma_bf16, so that products within a warp need no shared memory.
 * Decays are products, built up over blocks of doubling length: `pre_decay` is the decay from the beginning
 * of a token's block up to the token, inclusive; `suf_decay` is the decay after the token to the block's end.
 */
#include "src/recurrent/hopper/prepare.cuh"
#include "src/recurrent/hopper/stages.h"

/* Channels of a round. */
enum { ROUND_CHANNELS = 32 };

template <int DIM, bool DELTA> struct prepare_channels_shared {
    alignas(1024)
        __nv_bfloat16 k_in[DELTA ? 2 : 1][DELTA ? TILE_SIDE * DIM : 512]; /* hi and lo part of k e^pre */
    __nv_bfloat16 v[DELTA ? TILE_SIDE * DIM : 512];
    float square[SQUARE_ELEMENTS];
    /* k decayed to the end of the warp's 16 tokens, as operand B: [round % 2][warp][token
     * g or g + 8][part][lane]. */
    uint4 keys[2][CHUNK_BLOCKS][2][DELTA ? 2 : 1][32];
    /* [round % 2][warp]: the decay over all 16 tokens of a warp. */
    float block_decay[2][CHUNK_BLOCKS][ROUND_CHANNELS];
    /* For features of length 1 the `mantissa` of unit_factor, which multiplies products
     * and stored rows; else 1. */
    float q_norm[TILE_SIDE], k_norm[TILE_SIDE], beta[TILE_SIDE];
};

/* Accumulators of a warp's 16 rows of P or A, in the layout of D. own[m]: the columns of its own tokens 8 m
 * .. 8 m + 7. earlier[n][m]: the same of the warp that is 1 + n before it. */
struct channel_pairs {
    float own[2][4], earlier[CHUNK_BLOCKS - 1][2][4];
};

/* 8 channels of token g or g + 8 of a warp. */
struct token_channels {
    uint4 q, k;
    float8 pre_decay, suf_decay;
};

static __device__ __forceinline__ void clear(channel_pairs &pairs)
{
    clear(pairs.own);
#pragma unroll
    for (int n = 0; n < CHUNK_BLOCKS - 1; n++)
        clear(pairs.earlier[n]);
}

static __device__ __forceinline__ void multiply(float8 &p, const float8 &by)
{
#pragma unroll
    for (int n = 0; n < 8; n++)
        p.x[n] *= by.x[n];
}

/* A float8 as bf16, hi part first. The delta rule needs two parts, because it carries errors of its
 * pairs from token to token. */
template <int PARTS> struct bf16_parts {
    uint4 part[PARTS];
};

template <int PARTS>
static __device__ __forceinline__ bf16_parts<PARTS> scaled(const uint4 &bits, const float8 &by)
{
    float8 p = unpack(bits);
    multiply(p, by);
    bf16_parts<PARTS> out;
    out.part[0] = pack(p);
    if (PARTS == 2) out.part[PARTS - 1] = lo_part(p, out.part[0]);
    return out;
}

static __device__ __forceinline__ float dot(const uint4 &a, const uint4 &b)
{
    const float8 x = unpack(a), y = unpack(b);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++)
        sum += x.x[n] * y.x[n];
    return sum;
}

/* d += rows columns^T over the 32 channels of a round, in an order of channels that both operands share.
 * Rows: tokens g and g + 8, columns: 8 tokens. */
static __device__ __forceinline__ void mma_channels(float (&d)[4], const uint4 &g, const uint4 &g8,
                                                    const uint4 &columns)
{
    const uint32_t first[4] = { g.x, g8.x, g.y, g8.y }, second[4] = { g.z, g8.z, g.w, g8.w };
    const uint32_t b0[2] = { columns.x, columns.y }, b1[2] = { columns.z, columns.w };
    mma_bf16(d, first, b0);
    mma_bf16(d, second, b1);
}

template <int PARTS>
static __device__ __forceinline__ void mma_channels(float (&d)[4], const bf16_parts<PARTS> (&rows)[2],
                                                    const bf16_parts<PARTS> &columns)
{
    if (PARTS == 2) {
        mma_channels(d, rows[0].part[PARTS - 1], rows[1].part[PARTS - 1], columns.part[0]);
        mma_channels(d, rows[0].part[0], rows[1].part[0], columns.part[PARTS - 1]);
    }
    mma_channels(d, rows[0].part[0], rows[1].part[0], columns.part[0]);
}

template <int DIM>
static __device__ __forceinline__ uint4 chunk_vector(const chunk_source &s, const chunk_place &chunk, int r,
                                                     int c)
{
    const chunk_rows rows = chunk_rows_of<DIM>(s, chunk);
    return *(const uint4 *)(rows.first + r * rows.stride + c);
}

/* Loads channels c .. c + 7 of token r. What is beyond the sequence or the arguments is 0, its decay 1. */
template <int DIM>
static __device__ __forceinline__ token_channels load_token(const recurrent_chunks &chunks,
                                                            const loam_args &a, const chunk_place &chunk,
                                                            int r, int c)
{
    token_channels token = {};
    float4 gate[2] = {};
    if (r < chunk.tokens && c < chunks.q_given.channels) {
        const loam_const_view &view = a.log_decay;
        const float *gates = (const float *)view.data +
                             RECURRENT_AT(view, chunk.b, chunk.h, chunk.first + r) + c;
        token.q = chunk_vector<DIM>(chunks.q_given, chunk, r, c);
        token.k = chunk_vector<DIM>(chunks.k_given, chunk, r, c);
        gate[0] = *(const float4 *)gates, gate[1] = *(const float4 *)(gates + 4);
    }
    const float g[8] = { gate[0].x, gate[0].y, gate[0].z, gate[0].w,
                         gate[1].x, gate[1].y, gate[1].z, gate[1].w };
#pragma unroll
    for (int n = 0; n < 8; n++) {
        token.pre_decay.x[n] = exp_fast(g[n]);
        token.suf_decay.x[n] = 1;
    }
    return token;
}

/* p of the lane with the same t and with g = `from`. */
static __device__ __forceinline__ float8 shuffle(const float8 &p, int from)
{
    float8 other;
#pragma unroll
    for (int n = 0; n < 8; n++)
        other.x[n] = __shfl_sync(0xffffffffu, p.x[n], from * 4 + threadIdx.x % 4);
    return other;
}

static __device__ __forceinline__ float8 select(bool first, const float8 &a, const float8 &b)
{
    float8 p;
#pragma unroll
    for (int n = 0; n < 8; n++)
        p.x[n] = first ? a.x[n] : b.x[n];
    return p;
}

static __device__ __forceinline__ uint4 select(bool first, const uint4 &a, const uint4 &b)
{
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

/* Pairs of one token before and one after the middle of a block of 2 STEP tokens, STEP = 1, 2 or 4.
 * One product has all tokens as rows and as columns, each decayed to or from the middle of its
 * block; only entries of such pairs are added to P and A. Afterwards `pre_decay` and `suf_decay` refer to
 * blocks of 2 STEP tokens. */
template <int STEP, bool DELTA>
static __device__ __forceinline__ void add_pairs(channel_pairs &P, channel_pairs &A,
                                                 token_channels (&token)[2])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const bool second_half = g & STEP;
    constexpr int parts = DELTA ? 2 : 1;
    bf16_parts<parts> rows[2], own[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float8 decay = select(second_half, token[n].pre_decay, token[n].suf_decay);
        rows[n] = scaled<parts>(select(second_half, token[n].q, token[n].k), decay);
        own[n] = DELTA ? scaled<parts>(token[n].k, decay) : rows[n];
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float p[4] = { 0, 0, 0, 0 }, l[4] = { 0, 0, 0, 0 };
        mma_channels(p, rows, own[n]);
        if (DELTA) mma_channels(l, own, own[n]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int j = 2 * t + e;
            if (second_half && (g ^ j) >= STEP && (g ^ j) < 2 * STEP) {
                P.own[n][2 * n + e] += p[2 * n + e];
                A.own[n][2 * n + e] += l[2 * n + e];
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float8 sibling = shuffle(token[n].pre_decay, (g ^ STEP) | (STEP - 1));
#pragma unroll
        for (int c = 0; c < 8; c++) {
            token[n].pre_decay.x[c] *= second_half ? sibling.x[c] : 1;
            token[n].suf_decay.x[c] *= second_half ? 1 : sibling.x[c];
        }
    }
}

/* Pairs of a row of tokens 8 .. 15 and a column of tokens 0 .. 7. Afterwards `pre_decay` and `suf_decay`
 * refer to the warp's 16 tokens. */
template <bool DELTA>
static __device__ __forceinline__ void add_pairs_of_halves(channel_pairs &P, channel_pairs &A,
                                                           token_channels (&token)[2])
{
    constexpr int parts = DELTA ? 2 : 1;
    float p[4] = { 0, 0, 0, 0 }, l[4] = { 0, 0, 0, 0 };
    bf16_parts<parts> rows[2] = { scaled<parts>(token[0].k, token[0].suf_decay),
                                  scaled<parts>(token[1].q, token[1].pre_decay) };
    mma_channels(p, rows, rows[0]);
    if (DELTA) {
        rows[1] = scaled<parts>(token[1].k, token[1].pre_decay);
        mma_channels(l, rows, rows[0]);
    }
#pragma unroll
    for (int e = 2; e < 4; e++) {
        P.own[0][e] += p[e];
        A.own[0][e] += l[e];
    }
    const float8 first = shuffle(token[0].pre_decay, 7), second = shuffle(token[1].pre_decay, 7);
    multiply(token[1].pre_decay, first);
    multiply(token[0].suf_decay, second);
}

/* Pairs with the tokens of earlier warps, the nearest warp first. Afterwards `pre_decay` begins at the
 * beginning of the chunk and `suf_decay` ends at its end. */
template <bool DELTA, class SHARED>
static __device__ __forceinline__ void add_pairs_of_warps(channel_pairs &P, channel_pairs &A,
                                                          token_channels (&token)[2], const SHARED &sm,
                                                          int buffer)
{
    constexpr int parts = DELTA ? 2 : 1;
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto load_block_decay = [&](int group) {
        const float4 *from = (const float4 *)(sm.block_decay[buffer][group] + lane % 4 * 8);
        const float4 lo = from[0], hi = from[1];
        return float8{ { lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w } };
    };
#pragma unroll
    for (int n = 0; n < CHUNK_BLOCKS - 1; n++) {
        const int J = w - 1 - n;
        if (J >= 0) {
            bf16_parts<parts> rows[2], keys[2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int part = 0; part < parts; part++)
                    keys[m].part[part] = sm.keys[buffer][J][m][part][lane];
                rows[m] = scaled<parts>(token[m].q, token[m].pre_decay);
            }
            mma_channels(P.earlier[n][0], rows, keys[0]);
            mma_channels(P.earlier[n][1], rows, keys[1]);
            if (DELTA) {
                rows[0] = scaled<parts>(token[0].k, token[0].pre_decay);
                rows[1] = scaled<parts>(token[1].k, token[1].pre_decay);
                mma_channels(A.earlier[n][0], rows, keys[0]);
                mma_channels(A.earlier[n][1], rows, keys[1]);
            }
            const float8 decay = load_block_decay(J);
            multiply(token[0].pre_decay, decay);
            multiply(token[1].pre_decay, decay);
        }
    }
    for (int J = w + 1; J < CHUNK_BLOCKS; J++) {
        const float8 decay = load_block_decay(J);
        multiply(token[0].suf_decay, decay);
        multiply(token[1].suf_decay, decay);
    }
}

/* unit_factor of the thread's tokens, [token][q, k], for features of length 1, else 1. `power` multiplies q
 * and k before the products, `mantissa` the results of the products and the rows that are stored. */
struct token_norms {
    float power[2][2], mantissa[2][2];
};

template <int DIM>
static __device__ __forceinline__ void find_norms(token_norms &norm, const recurrent_chunks &chunks,
                                                  const chunk_place &chunk)
{
    const int row = threadIdx.x / 32 * BLOCK_TOKENS + threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int r = row + 8 * n;
        double norm2[2] = { 0, 0 };
        for (int c = threadIdx.x % 4 * 8; c < chunks.q_given.channels && r < chunk.tokens;
             c += ROUND_CHANNELS) {
            norm2[0] += norm2_of(chunk_vector<DIM>(chunks.q_given, chunk, r, c));
            norm2[1] += norm2_of(chunk_vector<DIM>(chunks.k_given, chunk, r, c));
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            norm2[m] += __shfl_xor_sync(0xffffffffu, norm2[m], 1);
            norm2[m] += __shfl_xor_sync(0xffffffffu, norm2[m], 2);
            const unit_factor factor = unit_factor_of(norm2[m]);
            norm.power[n][m] = factor.power, norm.mantissa[n][m] = factor.mantissa;
        }
    }
}

/* Loads channels c .. c + 7 of the features of the thread's tokens, and stores them where they have an array.
 * diagonal: these channels of q . k of the tokens are added, the diagonal of P. */
template <int DIM>
static __device__ __forceinline__ void load_features(token_channels (&token)[2], float (&diagonal)[2],
                                                     const token_norms &norm, const recurrent_chunks &chunks,
                                                     const loam_problem &p, const loam_args &a,
                                                     const chunk_place &chunk, int row, int c)
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int r = row + 8 * n;
        token[n] = load_token<DIM>(chunks, a, chunk, r, c);
        if (p.feature_map == LOAM_FEATURES_ELU && r < chunk.tokens && c < (int)p.dim_qk) {
            token[n].q = elu(token[n].q), token[n].k = elu(token[n].k);
        } else if (p.feature_map == LOAM_FEATURES_UNIT) {
            token[n].q = scaled(token[n].q, norm.power[n][0]),
            token[n].k = scaled(token[n].k, norm.power[n][1]);
        }
        if (chunks.q_features) {
            *slot_vector<DIM>(chunks.q_features, chunk, r, c) = scaled(token[n].q, norm.mantissa[n][0]);
            *slot_vector<DIM>(chunks.k_features, chunk, r, c) = scaled(token[n].k, norm.mantissa[n][1]);
        }
        diagonal[n] += dot(token[n].q, token[n].k);
    }
}

static __device__ __forceinline__ void store_float8(float *to, const float8 &p)
{
    const float(&x)[8] = p.x;
    *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
    *(float4 *)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
}

/* Shares the warp's keys, decayed to the end of its tokens, and its decay with the other warps. */
template <bool DELTA, class SHARED>
static __device__ __forceinline__ void share_keys(SHARED &sm, const token_channels (&token)[2], int buffer)
{
    constexpr int parts = DELTA ? 2 : 1;
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const bf16_parts<parts> key = scaled<parts>(token[n].k, token[n].suf_decay);
#pragma unroll
        for (int part = 0; part < parts; part++)
            sm.keys[buffer][w][n][part][lane] = key.part[part];
    }
    if (lane / 4 == 7) store_float8(sm.block_decay[buffer][w] + lane % 4 * 8, token[1].pre_decay);
    __syncthreads();
}

/* Stores q_in, k_out and chunk_decay; with a delta rule k e^pre to shared memory. */
template <int DIM, bool DELTA, class SHARED>
static __device__ __forceinline__ void store_decayed(SHARED &sm, token_channels (&token)[2],
                                                     const token_norms &norm, const recurrent_chunks &chunks,
                                                     const chunk_place &chunk, int row, int c)
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int r = row + 8 * n;
        float8 q_decay = token[n].pre_decay;
        multiply(q_decay, norm.mantissa[n][0]);
        multiply(token[n].suf_decay, norm.mantissa[n][1]);
        *slot_vector<DIM>(chunks.q_decayed, chunk, r, c) = scaled<1>(token[n].q, q_decay).part[0];
        const bf16_parts<DELTA ? 2 : 1> out = scaled < DELTA ? 2 : 1 > (token[n].k, token[n].suf_decay);
        *slot_vector<DIM>(chunks.k_decayed, chunk, r, c) = out.part[0];
        if (DELTA) {
            float8 k_decay = token[n].pre_decay;
            multiply(k_decay, norm.mantissa[n][1]);
            const bf16_parts<2> in = scaled<2>(token[n].k, k_decay);
            *slot_vector<DIM>(chunks.k_lo, chunk, r, c) = out.part[DELTA];
            *(uint4 *)(sm.k_in[0] + swizzled(r, c)) = in.part[0];
            *(uint4 *)(sm.k_in[DELTA] + swizzled(r, c)) = in.part[1];
        }
    }
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (w == CHUNK_BLOCKS - 1 && lane / 4 == 7)
        store_float8(chunks.chunk_decay + chunk.slot * DIM + c, token[1].pre_decay);
}

/* One round: channels c .. c + 31 of the features, P, A, q_in, k_out and chunk_decay. */
template <int DIM, bool DELTA, class SHARED>
static __device__ __forceinline__ void channel_round(channel_pairs &P, channel_pairs &A, float (&diagonal)[2],
                                                     const token_norms &norm, SHARED &sm,
                                                     const recurrent_chunks &chunks, const loam_problem &p,
                                                     const loam_args &a, const chunk_place &chunk, int c)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, buffer = c / ROUND_CHANNELS % 2;
    const int row = w * BLOCK_TOKENS + lane / 4, own = c + lane % 4 * 8;
    token_channels token[2];
    load_features<DIM>(token, diagonal, norm, chunks, p, a, chunk, row, own);
    add_pairs<1, DELTA>(P, A, token);
    add_pairs<2, DELTA>(P, A, token);
    add_pairs<4, DELTA>(P, A, token);
    add_pairs_of_halves<DELTA>(P, A, token);
    share_keys<DELTA>(sm, token, buffer);
    add_pairs_of_warps<DELTA>(P, A, token, sm, buffer);
    store_decayed<DIM, DELTA>(sm, token, norm, chunks, chunk, row, own);
}

/* The index of element (row, column) in the staging buffer of a warp, 16 rows x 64 columns of bf16
 * in the 128-byte swizzle. */
static __device__ __forceinline__ int staging_index(int row, int column)
{
    return row * TILE_SIDE + ((column / 8 ^ row % 8) * 8 | column % 8);
}

/* Copies the staging buffer of the warp to its 16 rows of an array over slots, 64 columns from `column`. */
template <int DIM>
static __device__ __forceinline__ void store_staging(__nv_bfloat16 *array, const chunk_place &chunk,
                                                     const __nv_bfloat16 *staging, int column)
{
    __syncwarp();
#pragma unroll
    for (int e = threadIdx.x % 32; e < 16 * (TILE_SIDE / 8); e += 32) {
        const int row = e / (TILE_SIDE / 8), c = e % (TILE_SIDE / 8) * 8;
        *slot_vector<DIM>(array, chunk, threadIdx.x / 32 * 16 + row,
                          column + c) = *(const uint4 *)(staging + staging_index(row, c));
    }
    __syncwarp();
}

/* The staging buffer of the warp: its rows of the square, which later has the system. */
static __device__ __forceinline__ __nv_bfloat16 *staging_buffer(float *square)
{
    return (__nv_bfloat16 *)(square + threadIdx.x / 32 * 16 * SQUARE_PITCH);
}

/* Stores the warp's rows of P. diagonal: the thread's part of the diagonal. */
template <class SHARED>
static __device__ __forceinline__ void store_pairs(const recurrent_chunks &chunks, const chunk_place &chunk,
                                                   SHARED &sm, channel_pairs &P, const float (&diagonal)[2])
{
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __nv_bfloat16 *staging = staging_buffer(sm.square);
#pragma unroll
    for (int e = lane; e < 16 * TILE_SIDE / 8; e += 32)
        *(uint4 *)(staging + 8 * e) = make_uint4(0, 0, 0, 0);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float sum = quad_sum(diagonal[n]);
#pragma unroll
        for (int e = 0; e < 2; e++)
            P.own[n][2 * n + e] = 2 * t + e == g ? sum : P.own[n][2 * n + e];
    }
    const auto put = [&](const float(&d)[4], int column) {
        const float2 keys = *(const float2 *)(sm.k_norm + column + 2 * t);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float norm = sm.q_norm[w * BLOCK_TOKENS + g + 8 * m];
            *(uint32_t *)(staging + staging_index(g + 8 * m, column + 2 * t)) = pack_bf16(
                d[2 * m] * norm * keys.x, d[2 * m + 1] * norm * keys.y);
        }
    };
#pragma unroll
    for (int m = 0; m < 2; m++) {
        put(P.own[m], w * BLOCK_TOKENS + 8 * m);
#pragma unroll
        for (int n = 0; n < CHUNK_BLOCKS - 1; n++)
            if (w - 1 - n >= 0) put(P.earlier[n][m], (w - 1 - n) * BLOCK_TOKENS + 8 * m);
    }
    store_staging<TILE_SIDE>(chunks.pairs, chunk, staging, 0);
}

/* Writes the warp's rows of L = I + Diag(beta) A, without the unit diagonal, to the square. */
template <class SHARED>
static __device__ __forceinline__ void store_system(SHARED &sm, const channel_pairs &A)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4, row = w * BLOCK_TOKENS + lane / 4;
    for (int e = lane; e < BLOCK_TOKENS * SQUARE_PITCH / 4; e += 32)
        *(float4 *)(sm.square + w * BLOCK_TOKENS * SQUARE_PITCH + 4 * e) = make_float4(0, 0, 0, 0);
    __syncwarp();
    const auto put = [&](const float(&d)[4], int column) {
        const float2 keys = *(const float2 *)(sm.k_norm + column + 2 * t);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float b = sm.beta[row + 8 * m] * sm.k_norm[row + 8 * m];
            *(float2 *)(sm.square + (row + 8 * m) * SQUARE_PITCH + column +
                        2 * t) = make_float2(d[2 * m] * b * keys.x, d[2 * m + 1] * b * keys.y);
        }
    };
#pragma unroll
    for (int m = 0; m < 2; m++) {
        put(A.own[m], w * BLOCK_TOKENS + 8 * m);
#pragma unroll
        for (int n = 0; n < CHUNK_BLOCKS - 1; n++)
            if (w - 1 - n >= 0) put(A.earlier[n][m], (w - 1 - n) * BLOCK_TOKENS + 8 * m);
    }
}

template <int DIM, bool DELTA>
__global__ void __launch_bounds__(PREPARE_THREADS)
    prepare_channels_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                            const __grid_constant__ recurrent_chunks chunks)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    auto &sm = *(prepare_channels_shared<DIM, DELTA> *)swizzled_memory;
    const chunk_place chunk = chunk_of_block(p, a, chunks, blockIdx.x);
    if (chunk.tokens == 0) return;
    report_solved(p, a, chunk);
    if (DELTA) {
        load_rows_of<DIM, PREPARE_THREADS>(sm.v, chunks.v, chunk);
        load_beta(sm.beta, a, chunk);
    }
    copy_async_commit();
    token_norms norm = { { { 1, 1 }, { 1, 1 } }, { { 1, 1 }, { 1, 1 } } };
    float diagonal[2] = { 0, 0 };
    if (p.feature_map == LOAM_FEATURES_UNIT) find_norms<DIM>(norm, chunks, chunk);
    if (threadIdx.x % 4 < 2) {
        const int n = threadIdx.x % 4, r = threadIdx.x / 32 * BLOCK_TOKENS + threadIdx.x % 32 / 4 + 8 * n;
        sm.q_norm[r] = n ? norm.mantissa[1][0] : norm.mantissa[0][0];
        sm.k_norm[r] = n ? norm.mantissa[1][1] : norm.mantissa[0][1];
    }
    channel_pairs P, A;
    clear(P);
    clear(A);
#pragma unroll 1
    for (int c = 0; c < DIM; c += ROUND_CHANNELS)
        channel_round<DIM, DELTA>(P, A, diagonal, norm, sm, chunks, p, a, chunk, c);
    store_pairs(chunks, chunk, sm, P, diagonal);
    if constexpr (DELTA) {
        store_system(sm, A);
        copy_async_wait<0>();
        fence_async_proxy();
        store_wy<DIM, true>(chunks, chunk, sm.square, sm.beta, sm.beta, sm.k_in[0], sm.k_in[1], sm.v);
    }
    end_after_previous_launch();
}

/* ------------------------------------------------------------------ launches */

template <int DIM, bool DELTA>
static loam_status launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                          loam_error *error)
{
    return cuda_launch("prepare_channels_kernel", prepare_channels_kernel<DIM, DELTA>, chunk_blocks(*chunks),
                       PREPARE_THREADS, sizeof(prepare_channels_shared<DIM, DELTA>), a->stream,
                       chunks->from > 0, error, *p, *a, *chunks);
}

loam_status recurrent_prepare_channels_hopper(const loam_problem *p, const loam_args *a,
                                              const recurrent_chunks *chunks, loam_error *error)
{
    if (recurrent_form_of(p->mechanism)->delta) {
        return chunk_width(p) == 64 ? launch<64, true>(p, a, chunks, error)
                                    : launch<128, true>(p, a, chunks, error);
    }
    return chunk_width(p) == 64 ? launch<64, false>(p, a, chunks, error)
                                : launch<128, false>(p, a, chunks, error);
}
