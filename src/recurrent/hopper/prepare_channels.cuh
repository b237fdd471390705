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
 * Decays are products, built up over blocks of doubling length: `since` is the decay from the beginning of a
 * token's block up to the token, inclusive; `until` is the decay after the token to the end of the block.
 */
#ifndef LOAM_RECURRENT_HOPPER_PREPARE_CHANNELS_CUH
#define LOAM_RECURRENT_HOPPER_PREPARE_CHANNELS_CUH

#include "src/recurrent/hopper/prepare.cuh"

/* Channels of a round; groups of 16 tokens, one for each warp. */
enum { ROUND_CHANNELS = 32, GROUPS = TILE_SIDE / BLOCK_TOKENS };

template <int DIM, bool DELTA> struct prepare_channels_shared {
    alignas(1024)
        __nv_bfloat16 k_in[DELTA ? 2 : 1][DELTA ? TILE_SIDE * DIM : 512]; /* hi and lo part of k e^pre */
    __nv_bfloat16 v[DELTA ? TILE_SIDE * DIM : 512];
    float square[SQUARE_ELEMENTS];
    /* k decayed to the end of the warp's 16 tokens, as operand B: [round % 2][warp][token
     * g or g + 8][part][lane]. */
    uint4 keys[2][GROUPS][2][DELTA ? 2 : 1][32];
    float whole[2][GROUPS][ROUND_CHANNELS]; /* [round % 2][warp]: the decay over all 16 tokens of a warp */
    /* For features of length 1 the `rest` of unit_factor, which multiplies products
     * and stored rows; else 1. */
    float q_norm[TILE_SIDE], k_norm[TILE_SIDE], beta[TILE_SIDE];
};

/* Accumulators of a warp's 16 rows of P or A, in the layout of D. own[m]: the columns of its own tokens 8 m
 * .. 8 m + 7. earlier[n][m]: the same of the warp that is 1 + n before it. */
struct channel_pairs {
    float own[2][4], earlier[GROUPS - 1][2][4];
};

/* 8 channels of token g or g + 8 of a warp. */
struct token_piece {
    uint4 q, k;
    piece since, until;
};

static __device__ __forceinline__ void clear(channel_pairs &pairs)
{
    clear(pairs.own);
#pragma unroll
    for (int n = 0; n < GROUPS - 1; n++) {
        clear(pairs.earlier[n]);
    }
}

static __device__ __forceinline__ void multiply(piece &p, const piece &by)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
        p.x[n] *= by.x[n];
    }
}

/* A piece as bf16, hi part first. The delta rule needs two parts, because it carries errors of its
 * pairs from token to token. */
template <int PARTS> struct piece_parts {
    uint4 part[PARTS];
};

template <int PARTS>
static __device__ __forceinline__ piece_parts<PARTS> scaled(const uint4 &bits, const piece &by)
{
    piece p = unpack(bits);
    multiply(p, by);
    piece_parts<PARTS> out;
    out.part[0] = pack(p);
    if (PARTS == 2) {
        out.part[PARTS - 1] = rest(p, out.part[0]);
    }
    return out;
}

static __device__ __forceinline__ float dot(const uint4 &a, const uint4 &b)
{
    const piece x = unpack(a), y = unpack(b);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        sum += x.x[n] * y.x[n];
    }
    return sum;
}

/* d += rows columns^T over the 32 channels of a round, in an order of channels that both operands share.
 * Rows: tokens g (`low`) and g + 8 (`high`), columns: 8 tokens. */
static __device__ __forceinline__ void multiply_pieces(float (&d)[4], const uint4 &low, const uint4 &high,
                                                       const uint4 &columns)
{
    const uint32_t first[4] = { low.x, high.x, low.y, high.y }, second[4] = { low.z, high.z, low.w, high.w };
    const uint32_t b0[2] = { columns.x, columns.y }, b1[2] = { columns.z, columns.w };
    mma_bf16(d, first, b0);
    mma_bf16(d, second, b1);
}

template <int PARTS>
static __device__ __forceinline__ void multiply_pieces(float (&d)[4], const piece_parts<PARTS> (&rows)[2],
                                                       const piece_parts<PARTS> &columns)
{
    if (PARTS == 2) {
        multiply_pieces(d, rows[0].part[PARTS - 1], rows[1].part[PARTS - 1], columns.part[0]);
        multiply_pieces(d, rows[0].part[0], rows[1].part[0], columns.part[PARTS - 1]);
    }
    multiply_pieces(d, rows[0].part[0], rows[1].part[0], columns.part[0]);
}

/* Loads channels c .. c + 7 of token r. A token beyond the sequence is 0 and its decay is 1. */
template <int DIM>
static __device__ __forceinline__ token_piece load_token(const recurrent_chunks &chunks, const loam_args &a,
                                                         const chunk_place &x, int r, int c)
{
    token_piece token = {};
    float4 gate[2] = {};
    if (r < x.tokens) {
        const loam_const_view &view = a.log_decay;
        const float *gates = (const float *)view.data + RECURRENT_AT(view, x.b, x.h, x.first + r) + c;
        token.q = *(const uint4 *)(chunk_row<DIM>(chunks.q_given, x, r) + c);
        token.k = *(const uint4 *)(chunk_row<DIM>(chunks.k_given, x, r) + c);
        gate[0] = *(const float4 *)gates, gate[1] = *(const float4 *)(gates + 4);
    }
    const float g[8] = { gate[0].x, gate[0].y, gate[0].z, gate[0].w,
                         gate[1].x, gate[1].y, gate[1].z, gate[1].w };
#pragma unroll
    for (int n = 0; n < 8; n++) {
        token.since.x[n] = exp2_fast(g[n] * LOG2_E);
        token.until.x[n] = 1;
    }
    return token;
}

/* The piece of the lane with the same t and with g = `of`. */
static __device__ __forceinline__ piece piece_of(const piece &p, int of)
{
    piece other;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        other.x[n] = __shfl_sync(0xffffffffu, p.x[n], of * 4 + threadIdx.x % 4);
    }
    return other;
}

static __device__ __forceinline__ piece select(bool first, const piece &a, const piece &b)
{
    piece p;
#pragma unroll
    for (int n = 0; n < 8; n++) {
        p.x[n] = first ? a.x[n] : b.x[n];
    }
    return p;
}

static __device__ __forceinline__ uint4 select(bool first, const uint4 &a, const uint4 &b)
{
    return make_uint4(first ? a.x : b.x, first ? a.y : b.y, first ? a.z : b.z, first ? a.w : b.w);
}

/* Pairs of one token before and one after the middle of a block of 2 STEP tokens, STEP = 1, 2 or 4.
 * One product has all tokens as rows and as columns, each decayed to or from the middle of its
 * block; only entries of such pairs are added to P and A. Afterwards `since` and `until` refer to
 * blocks of 2 STEP tokens. */
template <int STEP, bool DELTA>
static __device__ __forceinline__ void pairs_at(channel_pairs &P, channel_pairs &A, token_piece (&token)[2])
{
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const bool late = g & STEP;
    constexpr int parts = DELTA ? 2 : 1;
    piece_parts<parts> rows[2], own[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const piece decay = select(late, token[n].since, token[n].until);
        rows[n] = scaled<parts>(select(late, token[n].q, token[n].k), decay);
        own[n] = DELTA ? scaled<parts>(token[n].k, decay) : rows[n];
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        float p[4] = { 0, 0, 0, 0 }, l[4] = { 0, 0, 0, 0 };
        multiply_pieces(p, rows, own[n]);
        if (DELTA) {
            multiply_pieces(l, own, own[n]);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int j = 2 * t + e;
            if (late && (g ^ j) >= STEP && (g ^ j) < 2 * STEP) {
                P.own[n][2 * n + e] += p[2 * n + e];
                A.own[n][2 * n + e] += l[2 * n + e];
            }
        }
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const piece sibling = piece_of(token[n].since, (g ^ STEP) | (STEP - 1));
#pragma unroll
        for (int c = 0; c < 8; c++) {
            token[n].since.x[c] *= late ? sibling.x[c] : 1;
            token[n].until.x[c] *= late ? 1 : sibling.x[c];
        }
    }
}

/* Pairs of a row of tokens 8 .. 15 and a column of tokens 0 .. 7. Afterwards `since` and `until` refer
 * to the warp's 16 tokens. */
template <bool DELTA>
static __device__ __forceinline__ void pairs_at_eight(channel_pairs &P, channel_pairs &A,
                                                      token_piece (&token)[2])
{
    constexpr int parts = DELTA ? 2 : 1;
    float p[4] = { 0, 0, 0, 0 }, l[4] = { 0, 0, 0, 0 };
    piece_parts<parts> rows[2] = { scaled<parts>(token[0].k, token[0].until),
                                   scaled<parts>(token[1].q, token[1].since) };
    multiply_pieces(p, rows, rows[0]);
    if (DELTA) {
        rows[1] = scaled<parts>(token[1].k, token[1].since);
        multiply_pieces(l, rows, rows[0]);
    }
#pragma unroll
    for (int e = 2; e < 4; e++) {
        P.own[0][e] += p[e];
        A.own[0][e] += l[e];
    }
    const piece first = piece_of(token[0].since, 7), second = piece_of(token[1].since, 7);
    multiply(token[1].since, first);
    multiply(token[0].until, second);
}

/* Pairs with the tokens of earlier warps, the nearest warp first. Afterwards `since` begins at the beginning
 * of the chunk and `until` ends at its end. */
template <bool DELTA, class SHARED>
static __device__ __forceinline__ void pairs_of_warps(channel_pairs &P, channel_pairs &A,
                                                      token_piece (&token)[2], const SHARED &sm, int turn)
{
    constexpr int parts = DELTA ? 2 : 1;
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32;
    const auto whole = [&](int group) {
        const float4 *from = (const float4 *)(sm.whole[turn][group] + lane % 4 * 8);
        const float4 low = from[0], high = from[1];
        return piece{ { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w } };
    };
#pragma unroll
    for (int n = 0; n < GROUPS - 1; n++) {
        const int J = w - 1 - n;
        if (J >= 0) {
            piece_parts<parts> rows[2], keys[2];
#pragma unroll
            for (int m = 0; m < 2; m++) {
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    keys[m].part[part] = sm.keys[turn][J][m][part][lane];
                }
                rows[m] = scaled<parts>(token[m].q, token[m].since);
            }
            multiply_pieces(P.earlier[n][0], rows, keys[0]);
            multiply_pieces(P.earlier[n][1], rows, keys[1]);
            if (DELTA) {
                rows[0] = scaled<parts>(token[0].k, token[0].since);
                rows[1] = scaled<parts>(token[1].k, token[1].since);
                multiply_pieces(A.earlier[n][0], rows, keys[0]);
                multiply_pieces(A.earlier[n][1], rows, keys[1]);
            }
            const piece decay = whole(J);
            multiply(token[0].since, decay);
            multiply(token[1].since, decay);
        }
    }
    for (int J = w + 1; J < GROUPS; J++) {
        const piece decay = whole(J);
        multiply(token[0].until, decay);
        multiply(token[1].until, decay);
    }
}

/* unit_factor of the thread's tokens, [token][q, k], for features of length 1, else 1. `power` multiplies q
 * and k before the products, `rest` the results of the products and the rows that are stored. */
struct token_norms {
    float power[2][2], rest[2][2];
};

template <int DIM>
static __device__ __forceinline__ void find_norms(token_norms &norm, const recurrent_chunks &chunks,
                                                  const chunk_place &x)
{
    const int row = threadIdx.x / 32 * BLOCK_TOKENS + threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int r = row + 8 * n;
        double norm2[2] = { 0, 0 };
        for (int c = threadIdx.x % 4 * 8; c < DIM && r < x.tokens; c += ROUND_CHANNELS) {
            norm2[0] += square_sum(*(const uint4 *)(chunk_row<DIM>(chunks.q_given, x, r) + c));
            norm2[1] += square_sum(*(const uint4 *)(chunk_row<DIM>(chunks.k_given, x, r) + c));
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
            norm2[m] += __shfl_xor_sync(0xffffffffu, norm2[m], 1);
            norm2[m] += __shfl_xor_sync(0xffffffffu, norm2[m], 2);
            const unit_factor factor = unit_factor_of(norm2[m]);
            norm.power[n][m] = factor.power, norm.rest[n][m] = factor.rest;
        }
    }
}

/* One round: channels c .. c + 31 of the features, P, A, q_in, k_out and total. same: the thread's channels
 * of q . k of its tokens, the diagonal of P. */
template <int DIM, bool DELTA, class SHARED>
static __device__ __forceinline__ void channel_round(channel_pairs &P, channel_pairs &A, float (&same)[2],
                                                     const token_norms &norm, SHARED &sm,
                                                     const recurrent_chunks &chunks, const loam_problem &p,
                                                     const loam_args &a, const chunk_place &x, int c)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, turn = c / ROUND_CHANNELS % 2;
    const int row = w * BLOCK_TOKENS + lane / 4, at = c + lane % 4 * 8;
    token_piece token[2];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int r = row + 8 * n;
        token[n] = load_token<DIM>(chunks, a, x, r, at);
        if (p.feature_map == LOAM_FEATURES_ELU && r < x.tokens) {
            token[n].q = elu(token[n].q), token[n].k = elu(token[n].k);
        } else if (p.feature_map == LOAM_FEATURES_UNIT) {
            token[n].q = scaled(token[n].q, norm.power[n][0]),
            token[n].k = scaled(token[n].k, norm.power[n][1]);
        }
        if (chunks.q_features) {
            *slot_piece<DIM>(chunks.q_features, x, r, at) = scaled(token[n].q, norm.rest[n][0]);
            *slot_piece<DIM>(chunks.k_features, x, r, at) = scaled(token[n].k, norm.rest[n][1]);
        }
        same[n] += dot(token[n].q, token[n].k);
    }
    pairs_at<1, DELTA>(P, A, token);
    pairs_at<2, DELTA>(P, A, token);
    pairs_at<4, DELTA>(P, A, token);
    pairs_at_eight<DELTA>(P, A, token);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const auto key = scaled < DELTA ? 2 : 1 > (token[n].k, token[n].until);
#pragma unroll
        for (int part = 0; part < (DELTA ? 2 : 1); part++) {
            sm.keys[turn][w][n][part][lane] = key.part[part];
        }
    }
    if (lane / 4 == 7) {
        float4 *to = (float4 *)(sm.whole[turn][w] + lane % 4 * 8);
        const float(&s)[8] = token[1].since.x;
        to[0] = make_float4(s[0], s[1], s[2], s[3]), to[1] = make_float4(s[4], s[5], s[6], s[7]);
    }
    __syncthreads();
    pairs_of_warps<DELTA>(P, A, token, sm, turn);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const int r = row + 8 * n;
        piece since_q = token[n].since;
        multiply(since_q, norm.rest[n][0]);
        multiply(token[n].until, norm.rest[n][1]);
        *slot_piece<DIM>(chunks.q_decayed, x, r, at) = scaled<1>(token[n].q, since_q).part[0];
        const auto out = scaled < DELTA ? 2 : 1 > (token[n].k, token[n].until);
        *slot_piece<DIM>(chunks.k_decayed, x, r, at) = out.part[0];
        if (DELTA) {
            piece since_k = token[n].since;
            multiply(since_k, norm.rest[n][1]);
            const auto in = scaled<2>(token[n].k, since_k);
            *slot_piece<DIM>(chunks.k_low, x, r, at) = out.part[DELTA];
            *(uint4 *)(sm.k_in[0] + swizzled(r, at)) = in.part[0];
            *(uint4 *)(sm.k_in[DELTA] + swizzled(r, at)) = in.part[1];
        }
    }
    if (w == GROUPS - 1 && lane / 4 == 7) {
        float4 *to = (float4 *)(chunks.total + x.slot * DIM + at);
        const float(&s)[8] = token[1].since.x;
        to[0] = make_float4(s[0], s[1], s[2], s[3]), to[1] = make_float4(s[4], s[5], s[6], s[7]);
    }
}

/* Stores the warp's rows of P. same: the thread's part of the diagonal. */
template <class SHARED>
static __device__ __forceinline__ void store_pairs(const recurrent_chunks &chunks, const chunk_place &x,
                                                   SHARED &sm, channel_pairs &P, const float (&same)[2])
{
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __nv_bfloat16 *stage = passing_stage(sm.square);
#pragma unroll
    for (int e = lane; e < 16 * TILE_SIDE / 8; e += 32) {
        *(uint4 *)(stage + 8 * e) = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float diagonal = quad_sum(same[n]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            P.own[n][2 * n + e] = 2 * t + e == g ? diagonal : P.own[n][2 * n + e];
        }
    }
    const auto put = [&](const float(&d)[4], int column) {
        const float2 keys = *(const float2 *)(sm.k_norm + column + 2 * t);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float norm = sm.q_norm[w * BLOCK_TOKENS + g + 8 * m];
            *(uint32_t *)(stage + passing(g + 8 * m, column + 2 * t)) = pack_pair(
                d[2 * m] * norm * keys.x, d[2 * m + 1] * norm * keys.y);
        }
    };
#pragma unroll
    for (int m = 0; m < 2; m++) {
        put(P.own[m], w * BLOCK_TOKENS + 8 * m);
#pragma unroll
        for (int n = 0; n < GROUPS - 1; n++) {
            if (w - 1 - n >= 0) {
                put(P.earlier[n][m], (w - 1 - n) * BLOCK_TOKENS + 8 * m);
            }
        }
    }
    store_passing<TILE_SIDE>(chunks.P, x, stage, 0);
}

/* Writes the warp's rows of L = I + Diag(beta) A, without the unit diagonal, to the square. */
template <class SHARED> static __device__ __forceinline__ void put_system(SHARED &sm, const channel_pairs &A)
{
    const int w = threadIdx.x / 32, lane = threadIdx.x % 32, t = lane % 4, row = w * BLOCK_TOKENS + lane / 4;
    for (int e = lane; e < BLOCK_TOKENS * SQUARE_PITCH / 4; e += 32) {
        *(float4 *)(sm.square + w * BLOCK_TOKENS * SQUARE_PITCH + 4 * e) = make_float4(0, 0, 0, 0);
    }
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
        for (int n = 0; n < GROUPS - 1; n++) {
            if (w - 1 - n >= 0) {
                put(A.earlier[n][m], (w - 1 - n) * BLOCK_TOKENS + 8 * m);
            }
        }
    }
}

template <int DIM, bool DELTA>
__global__ void __launch_bounds__(PREPARE_THREADS)
    prepare_channels_kernel(const __grid_constant__ loam_problem p, const __grid_constant__ loam_args a,
                            const __grid_constant__ recurrent_chunks chunks)
{
    extern __shared__ __align__(1024) unsigned char swizzled_memory[];
    auto &sm = *(prepare_channels_shared<DIM, DELTA> *)swizzled_memory;
    const chunk_place x = chunk_of_slot(p, a, chunks, blockIdx.x);
    if (x.tokens == 0) {
        return;
    }
    put_info(p, a, x);
    if (DELTA) {
        load_chunk<DIM, PREPARE_THREADS>(sm.v, chunks.v, x, threadIdx.x);
        load_beta(sm.beta, a, x);
    }
    copy_async_commit();
    token_norms norm = { { { 1, 1 }, { 1, 1 } }, { { 1, 1 }, { 1, 1 } } };
    float same[2] = { 0, 0 };
    if (p.feature_map == LOAM_FEATURES_UNIT) {
        find_norms<DIM>(norm, chunks, x);
    }
    if (threadIdx.x % 4 < 2) {
        const int n = threadIdx.x % 4, r = threadIdx.x / 32 * BLOCK_TOKENS + threadIdx.x % 32 / 4 + 8 * n;
        sm.q_norm[r] = n ? norm.rest[1][0] : norm.rest[0][0];
        sm.k_norm[r] = n ? norm.rest[1][1] : norm.rest[0][1];
    }
    channel_pairs P, A;
    clear(P);
    clear(A);
#pragma unroll 1
    for (int c = 0; c < DIM; c += ROUND_CHANNELS) {
        channel_round<DIM, DELTA>(P, A, same, norm, sm, chunks, p, a, x, c);
    }
    store_pairs(chunks, x, sm, P, same);
    if constexpr (DELTA) {
        put_system(sm, A);
        copy_async_wait<0>();
        fence_async_proxy();
        store_delta<DIM, true>(chunks, x, sm.square, sm.beta, sm.beta, sm.k_in[0], sm.k_in[1], sm.v);
    }
}

#endif
