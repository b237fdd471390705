/* SPDX-License-Identifier: MIT
 * Gradients of a chunk where each channel has its own gate: the pairs of tokens of the same block of 16,
 * whose decay is the product of the decays of the tokens between them, and the gradients of the gates.
 * Notation of recurrent/hopper/gradient.cu. */
#ifndef LOAM_RECURRENT_HOPPER_GRADIENT_CHANNELS_CUH
#define LOAM_RECURRENT_HOPPER_GRADIENT_CHANNELS_CUH

#include "src/recurrent/hopper/gradient_shared.cuh"

/* In this file a thread has one channel of one block of 16 tokens. */
template <int DIM> static __device__ __forceinline__ int own_channel() { return threadIdx.x % DIM; }
template <int DIM> static __device__ __forceinline__ int own_block() { return threadIdx.x / DIM; }

/* e^g of the thread's 16 tokens; 1 beyond the sequence, and for channels that are not there. All loads are
 * issued before the first result is used. */
template <int DIM>
static __device__ __forceinline__ void load_decays(float (&decay)[BLOCK_TOKENS], const loam_problem &p,
                                                   const loam_args &a, const chunk_place &chunk)
{
    const bool there = own_channel<DIM>() < (int)p.dim_qk;
    const float *gates = gate_of(a, chunk, 0) + (there ? own_channel<DIM>() : 0);
    const int first = own_block<DIM>() * BLOCK_TOKENS;
#pragma unroll
    for (int i = 0; i < BLOCK_TOKENS; i++)
        decay[i] = gates[min(first + i, chunk.tokens - 1) * a.log_decay.token];
#pragma unroll
    for (int i = 0; i < BLOCK_TOKENS; i++)
        decay[i] = there && first + i < chunk.tokens ? exp_fast(decay[i]) : 1;
}

/* Fills sm.in.decayed, the rows decayed within their block of 16 tokens, and sm.block_decay, the decay over
 * the block, by products of decays. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void decay_in_blocks(gradient_shared<DIM, CHANNEL_GATES, DELTA> &sm,
                                                       const float (&decay)[BLOCK_TOKENS])
{
    constexpr int rows = CHUNK_TOKENS * DIM;
    const int c = own_channel<DIM>(), block = own_block<DIM>();
    float start = 1, end = 1;
#pragma unroll
    for (int i = 0; i < BLOCK_TOKENS; i++) {
        const int at = swizzled(block * BLOCK_TOKENS + i, c);
        start *= decay[i];
        sm.in.decayed[rows + at] = __float2bfloat16_rn(__bfloat162float(sm.q[at]) * start);
        if (DELTA) sm.in.decayed[2 * rows + at] = __float2bfloat16_rn(__bfloat162float(sm.k[at]) * start);
    }
    sm.block_decay[block][c] = start;
#pragma unroll
    for (int i = BLOCK_TOKENS - 1; i >= 0; i--) {
        const int at = swizzled(block * BLOCK_TOKENS + i, c);
        sm.in.decayed[at] = __float2bfloat16_rn(__bfloat162float(sm.k[at]) * end);
        end *= decay[i];
    }
}

/* One channel of the 16 tokens of a block: decays, features, and the sums x, y and z. */
struct block_channel {
    float decay[BLOCK_TOKENS], q[BLOCK_TOKENS], k[BLOCK_TOKENS];
    float x[BLOCK_TOKENS], y[BLOCK_TOKENS], z[BLOCK_TOKENS];
};

/* The weights of key j with the queries i > j of its block, from w[i] on. */
static __device__ __forceinline__ void load_weights(float (&w)[BLOCK_TOKENS],
                                                    const float (&row)[BLOCK_TOKENS], int j)
{
#pragma unroll
    for (int i = (j + 1) / 4 * 4; i < BLOCK_TOKENS; i += 4) {
        const float4 four = *(const float4 *)&row[i];
        w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
    }
}

/* x and z: adds the pairs of the block. y: is these pairs. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void add_block_pairs(block_channel &b,
                                                       const gradient_shared<DIM, CHANNEL_GATES, DELTA> &sm,
                                                       int block)
{
#pragma unroll
    for (int j = 0; j < BLOCK_TOKENS; j++) {
        float w[BLOCK_TOKENS], erased[BLOCK_TOKENS];
        load_weights(w, sm.block_pairs[0][block][j], j);
        if (DELTA) load_weights(erased, sm.block_pairs[DELTA][block][j], j);
        float key = b.k[j];
#pragma unroll
        for (int i = j + 1; i < BLOCK_TOKENS; i++) {
            key *= b.decay[i];
            b.x[i] += w[i] * key;
            if (DELTA) b.z[i] += erased[i] * key;
        }
        float sum = 0;
#pragma unroll
        for (int i = BLOCK_TOKENS - 1; i > j; i--) {
            sum += w[i] * b.q[i];
            if (DELTA) sum += erased[i] * (sm.beta[block * BLOCK_TOKENS + i] * b.k[i]);
            sum *= b.decay[i];
        }
        b.y[j] = sum;
    }
}

/* Completes x and z, which sm.products then has. terms: q x + beta k z of each token. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void complete_queries(float (&terms)[BLOCK_TOKENS], block_channel &b,
                                                        gradient_shared<DIM, CHANNEL_GATES, DELTA> &sm,
                                                        int block, int c)
{
    typedef gradient_shared<DIM, CHANNEL_GATES, DELTA> shared;
    float from_start = 1;
#pragma unroll
    for (int i = 0; i < BLOCK_TOKENS; i++) {
        const int row = block * BLOCK_TOKENS + i, at = row * shared::pitch + c;
        from_start *= b.decay[i];
        b.x[i] += from_start * sm.products[shared::x][at];
        sm.products[shared::x][at] = b.x[i];
        terms[i] = b.q[i] * b.x[i];
        if (DELTA) {
            b.z[i] += from_start * sm.products[shared::z][at];
            sm.products[shared::z][at] = b.z[i];
            terms[i] += sm.beta[row] * b.k[i] * b.z[i];
        }
    }
}

/* Completes y and e: sm.products then has y + e and, in place of e, what the tokens of the block add to the
 * gradients of the gates of the same block. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void complete_keys(float (&terms)[BLOCK_TOKENS], block_channel &b,
                                                     gradient_shared<DIM, CHANNEL_GATES, DELTA> &sm,
                                                     int block, int c)
{
    typedef gradient_shared<DIM, CHANNEL_GATES, DELTA> shared;
    float to_end = 1, beyond = 1, after = 0, before = 0, end_terms[BLOCK_TOKENS];
    for (int later = block + 1; later < CHUNK_BLOCKS; later++)
        beyond *= sm.block_decay[later][c];
#pragma unroll
    for (int i = BLOCK_TOKENS - 1; i >= 0; i--) {
        const int at = (block * BLOCK_TOKENS + i) * shared::pitch + c;
        const float e = to_end * beyond * sm.products[shared::e][at];
        b.y[i] += to_end * sm.products[shared::y][at];
        sm.products[shared::y][at] = b.y[i] + e;
        after += terms[i] - b.k[i] * b.y[i];
        terms[i] = after;
        end_terms[i] = b.k[i] * e;
        to_end *= b.decay[i];
    }
#pragma unroll
    for (int i = 0; i < BLOCK_TOKENS; i++) {
        sm.products[shared::e][(block * BLOCK_TOKENS + i) * shared::pitch + c] = terms[i] + before;
        before += end_terms[i];
    }
    sm.for_earlier[block][c] = after;
    sm.for_later[block][c] = before;
}

/* Completes the sums of one channel and block. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void complete_block(gradient_shared<DIM, CHANNEL_GATES, DELTA> &sm,
                                                      const loam_problem &p, const loam_args &a,
                                                      const chunk_place &chunk)
{
    const int block = own_block<DIM>(), c = own_channel<DIM>();
    block_channel b;
    float terms[BLOCK_TOKENS];
    load_decays<DIM>(b.decay, p, a, chunk);
#pragma unroll
    for (int i = 0; i < BLOCK_TOKENS; i++) {
        const int at = swizzled(block * BLOCK_TOKENS + i, c);
        b.q[i] = __bfloat162float(sm.q[at]), b.k[i] = __bfloat162float(sm.k[at]);
        b.x[i] = b.z[i] = 0;
    }
    add_block_pairs(b, sm, block);
    complete_queries(terms, b, sm, block, c);
    complete_keys(terms, b, sm, block, c);
}

/* Completes all blocks, then stores the gradients of the gates: contributions of the own block, of other
 * blocks and of the states. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void store_channel_gates(gradient_shared<DIM, CHANNEL_GATES, DELTA> &sm,
                                                           const loam_problem &p, const loam_args &a,
                                                           const chunk_place &chunk)
{
    typedef gradient_shared<DIM, CHANNEL_GATES, DELTA> shared;
    const int c = own_channel<DIM>(), block = own_block<DIM>();
    complete_block<DIM, DELTA>(sm, p, a, chunk);
    __syncthreads();
    if (!a.grad_log_decay.data || c >= (int)p.dim_qk) return;
    float others = 0;
#pragma unroll
    for (int part = 0; part < STATE_PARTS; part++)
        others += sm.state_dot[part][c];
#pragma unroll
    for (int n = 0; n < CHUNK_BLOCKS; n++)
        others *= sm.block_decay[n][c];
#pragma unroll
    for (int other = 0; other < CHUNK_BLOCKS; other++)
        others += other < block ? sm.for_later[other][c] : other > block ? sm.for_earlier[other][c] : 0;
    float *to = (float *)a.grad_log_decay.data +
                RECURRENT_AT(a.grad_log_decay, chunk.b, chunk.h, chunk.first + block * BLOCK_TOKENS) + c;
    const int tokens = min(chunk.tokens - block * BLOCK_TOKENS, (int)BLOCK_TOKENS);
#pragma unroll 4
    for (int i = 0; i < tokens; i++) {
        to[i * a.grad_log_decay.token] =
            sm.products[shared::e][(block * BLOCK_TOKENS + i) * shared::pitch + c] + others;
    }
}

#endif
