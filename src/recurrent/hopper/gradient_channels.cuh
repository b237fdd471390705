/* SPDX-License-Identifier: MIT
 * Gradients of a chunk where each channel has its own gate: the pairs of tokens of the same block of 16,
 * whose decay is the product of the decays of the tokens between them, and the gradients of the gates.
 * Notation of recurrent/hopper/gradient.cuh. */
#ifndef LOAM_RECURRENT_HOPPER_GRADIENT_CHANNELS_CUH
#define LOAM_RECURRENT_HOPPER_GRADIENT_CHANNELS_CUH

#include "src/recurrent/hopper/gradient_shared.cuh"

/* In this file a thread has one channel of one block of 16 tokens. */
template <int DIM> static __device__ __forceinline__ int own_channel() { return threadIdx.x % DIM; }
template <int DIM> static __device__ __forceinline__ int own_block() { return threadIdx.x / DIM; }

/* e^g of the thread's 16 tokens; 1 beyond the sequence. All loads are issued before
 * the first result is used. */
template <int DIM>
static __device__ __forceinline__ void load_decays(float (&decay)[PAIR_BLOCK], const loam_problem &p,
                                                   const loam_args &a, const chunk_place &place)
{
    const float *gates = gate_of(p, a, place, 0) + own_channel<DIM>();
    const int first = own_block<DIM>() * PAIR_BLOCK;
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        decay[i] = gates[min(first + i, place.tokens - 1) * a.log_decay.token];
    }
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        decay[i] = first + i < place.tokens ? exp2_fast(decay[i] * 1.4426950408889634f) : 1;
    }
}

/* Fills m.in.local, the rows decayed within their block of 16 tokens, and m.whole, the decay over the
 * block, by products of decays. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void decay_locally(gradient_shared<DIM, CHANNEL_GATES, DELTA> &m,
                                                     const float (&decay)[PAIR_BLOCK])
{
    constexpr int rows = CHUNK_TOKENS * DIM;
    const int c = own_channel<DIM>(), block = own_block<DIM>();
    float start = 1, end = 1;
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        const int at = swizzled(block * PAIR_BLOCK + i, c);
        start *= decay[i];
        m.in.local[rows + at] = __float2bfloat16_rn(__bfloat162float(m.q[at]) * start);
        if (DELTA) {
            m.in.local[2 * rows + at] = __float2bfloat16_rn(__bfloat162float(m.k[at]) * start);
        }
    }
    m.whole[block][c] = start;
#pragma unroll
    for (int i = PAIR_BLOCK - 1; i >= 0; i--) {
        const int at = swizzled(block * PAIR_BLOCK + i, c);
        m.in.local[at] = __float2bfloat16_rn(__bfloat162float(m.k[at]) * end);
        end *= decay[i];
    }
}

/* Completes the sums of one channel and block. Afterwards m.sum has x, z, y + e and, in place of e, what the
 * tokens of the block add to the gradients of the gates of the same block. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void finish_block(gradient_shared<DIM, CHANNEL_GATES, DELTA> &m,
                                                    const loam_problem &p, const loam_args &a,
                                                    const chunk_place &place)
{
    const int block = own_block<DIM>(), c = own_channel<DIM>();
    typedef gradient_shared<DIM, CHANNEL_GATES, DELTA> shared;
    float decay[PAIR_BLOCK], q[PAIR_BLOCK], k[PAIR_BLOCK], x[PAIR_BLOCK], y[PAIR_BLOCK], z[PAIR_BLOCK];
    load_decays<DIM>(decay, p, a, place);
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        const int row = block * PAIR_BLOCK + i, at = swizzled(row, c);
        q[i] = __bfloat162float(m.q[at]), k[i] = __bfloat162float(m.k[at]);
        x[i] = z[i] = 0;
    }
#pragma unroll
    for (int j = 0; j < PAIR_BLOCK; j++) {
        float w[PAIR_BLOCK], erased[PAIR_BLOCK];
#pragma unroll
        for (int i = (j + 1) / 4 * 4; i < PAIR_BLOCK; i += 4) {
            const float4 four = *(const float4 *)&m.pair[0][block][j][i];
            w[i] = four.x, w[i + 1] = four.y, w[i + 2] = four.z, w[i + 3] = four.w;
            if (DELTA) {
                const float4 taken = *(const float4 *)&m.pair[DELTA][block][j][i];
                erased[i] = taken.x, erased[i + 1] = taken.y, erased[i + 2] = taken.z,
                erased[i + 3] = taken.w;
            }
        }
        float key = k[j];
#pragma unroll
        for (int i = j + 1; i < PAIR_BLOCK; i++) {
            key *= decay[i];
            x[i] += w[i] * key;
            if (DELTA) {
                z[i] += erased[i] * key;
            }
        }
        float sum = 0;
#pragma unroll
        for (int i = PAIR_BLOCK - 1; i > j; i--) {
            sum += w[i] * q[i];
            if (DELTA) {
                sum += erased[i] * (m.beta[block * PAIR_BLOCK + i] * k[i]);
            }
            sum *= decay[i];
        }
        y[j] = sum;
    }
    float from_start = 1, to_end = 1, beyond = 1, after = 0, before = 0;
    for (int later = block + 1; later < PAIR_BLOCKS; later++) {
        beyond *= m.whole[later][c];
    }
    float rest[PAIR_BLOCK];
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        const int row = block * PAIR_BLOCK + i, at = row * shared::pitch + c;
        from_start *= decay[i];
        x[i] += from_start * m.sum[shared::x][at];
        m.sum[shared::x][at] = x[i];
        rest[i] = q[i] * x[i];
        if (DELTA) {
            z[i] += from_start * m.sum[shared::z][at];
            m.sum[shared::z][at] = z[i];
            rest[i] += m.beta[row] * k[i] * z[i];
        }
    }
#pragma unroll
    for (int i = PAIR_BLOCK - 1; i >= 0; i--) {
        const int at = (block * PAIR_BLOCK + i) * shared::pitch + c;
        const float out = to_end * beyond * m.sum[shared::e][at];
        y[i] += to_end * m.sum[shared::y][at];
        m.sum[shared::y][at] = y[i] + out;
        after += rest[i] - k[i] * y[i];
        rest[i] = after;
        z[i] = k[i] * out;
        to_end *= decay[i];
    }
#pragma unroll
    for (int i = 0; i < PAIR_BLOCK; i++) {
        m.sum[shared::e][(block * PAIR_BLOCK + i) * shared::pitch + c] = rest[i] + before;
        before += z[i];
    }
    m.after[block][c] = after;
    m.before[block][c] = before;
}

/* Completes all blocks, then stores the gradients of the gates: contributions of the own block, of other
 * blocks and of the states. */
template <int DIM, bool DELTA>
static __device__ __forceinline__ void finish_channels(gradient_shared<DIM, CHANNEL_GATES, DELTA> &m,
                                                       const loam_problem &p, const loam_args &a,
                                                       const chunk_place &place)
{
    typedef gradient_shared<DIM, CHANNEL_GATES, DELTA> shared;
    const int c = own_channel<DIM>(), block = own_block<DIM>();
    finish_block<DIM, DELTA>(m, p, a, place);
    __syncthreads();
    if (!a.grad_log_decay.data) {
        return;
    }
    float others = 0;
#pragma unroll
    for (int part = 0; part < STATE_PARTS; part++) {
        others += m.state_dot[part][c];
    }
#pragma unroll
    for (int each = 0; each < PAIR_BLOCKS; each++) {
        others *= m.whole[each][c];
    }
#pragma unroll
    for (int other = 0; other < PAIR_BLOCKS; other++) {
        others += other < block ? m.before[other][c] : other > block ? m.after[other][c] : 0;
    }
    float *to = (float *)a.grad_log_decay.data +
                RECURRENT_AT(a.grad_log_decay, place.b, place.h, place.first + block * PAIR_BLOCK) + c;
    const int tokens = min(place.tokens - block * PAIR_BLOCK, (int)PAIR_BLOCK);
#pragma unroll 4
    for (int i = 0; i < tokens; i++) {
        to[i * a.grad_log_decay.token] = m.sum[shared::e][(block * PAIR_BLOCK + i) * shared::pitch + c] +
                                         others;
    }
}

#endif
