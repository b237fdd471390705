/* SPDX-License-Identifier: MIT
 * The pass of a delta rule from the first chunk to the last:
 *
 *     u = u_hat - w S0^T,   S1 = S0 Diag(total) + u^T k_out
 *
 * Where e^suf is one number per token and k needs no other preparation, (e^suf u)^T k replaces u^T k_out
 * (`late`). The first product is transposed, u^T = u_hat^T - S0 w^T: the accumulators of the state, and then
 * of u^T, become operands of the next product in registers. Neither goes through shared memory in between,
 * and no warp waits for another.
 *
 * S0 and u are split into hi and lo parts. Of the 16 rows of a warp's operand, 8 are the hi parts and 8 the
 * lo parts of the same rows, so that one thread has both. A warp thus has 8 rows of the state and a thread
 * block 32: twice as many thread blocks as with 64 rows, each with half of the work. */
#ifndef LOAM_RECURRENT_HOPPER_PASS_DELTA_CUH
#define LOAM_RECURRENT_HOPPER_PASS_DELTA_CUH

#include "src/recurrent/hopper/pass.cuh"

/* The index of element (row, column) in a tile of 32 columns, in the 64-byte swizzle. */
static __device__ __forceinline__ int swizzled_half(int row, int column)
{
    return (row * 32 + column) ^ row / 2 % 4 * 8;
}

/* For four 8 x 8 matrices of such a tile: the index of the row that the lane addresses, token 32 i + lane
 * of the warp's 8 columns. */
static __device__ __forceinline__ int half_piece(int i)
{
    const int lane = threadIdx.x % 32;
    return swizzled_half(32 * i + lane, threadIdx.x % 128 / 32 * 8);
}

template <int DIM, bool GATED, bool LOW> struct delta_pass {
    typedef pass_shape<DIM, true, false, LOW> of;
    typedef pass_shared<DIM, true, false, LOW> shared;
    static constexpr bool late = GATED && !LOW; /* e^suf multiplies u */
    static constexpr int blocks = DIM / 8;      /* of 8 columns of the state */
    float state[blocks][2];

    /* What a thread loads of a chunk: u_hat^T in hi and lo part, the decays of its columns of the state,
     * and e^suf where `late`. */
    struct chunk_numbers {
        uint32_t value[2][8];
        float2 total[late ? 1 : blocks], after[8];

        __device__ __forceinline__ void load(const shared &sm, unsigned slot)
        {
#pragma unroll
            for (int part = 0; part < 2; part++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const __nv_bfloat16 *tile = sm.ring_tiles[slot] + part * (TILE_ELEMENTS / 2);
                    load_matrices_transposed(*(uint32_t(*)[4])(value[part] + 4 * i), tile + half_piece(i));
                }
            }
            if (GATED) {
                load_totals(total, sm.total[slot]);
            }
            if (late) {
                load_totals(after, sm.after[slot]);
            }
        }
    };

    __device__ __forceinline__ void decay(const chunk_numbers &chunk)
    {
        if constexpr (late) { /* all channels have the same decay */
#pragma unroll
            for (int b = 0; b < blocks; b++) {
                state[b][0] *= chunk.total[0].x, state[b][1] *= chunk.total[0].x;
            }
        } else if constexpr (GATED) {
            decay_state(state, chunk.total);
        }
    }

    /* u^T = u_hat^T - S0 w^T; `read` has the products of the hi part of S0 (elements 0, 1)
     * and of the lo part (2, 3). */
    static __device__ __forceinline__ void subtract(float (&u)[8][2], const chunk_numbers &chunk,
                                                    const float (&read)[8][4])
    {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const uint32_t high = chunk.value[0][n], low = chunk.value[1][n];
            u[n][0] = (pair_low(high) + pair_low(low)) - (read[n][0] + read[n][2]);
            u[n][1] = (pair_high(high) + pair_high(low)) - (read[n][1] + read[n][3]);
        }
    }

    /* Operand A, columns 16 k .. in a[k]: the hi part of a row and, eight rows further down, its lo part. */
    template <int BLOCKS>
    static __device__ __forceinline__ void split(uint32_t (&a)[BLOCKS / 2][4], const float (&x)[BLOCKS][2])
    {
#pragma unroll
        for (int n = 0; n < BLOCKS; n++) {
            uint32_t part[2];
            split_pair(part, x[n][0], x[n][1]);
            a[n / 2][n % 2 * 2] = part[0], a[n / 2][n % 2 * 2 + 1] = part[1];
        }
    }

    static __device__ __forceinline__ void store_snapshot(__nv_bfloat16 *tiles,
                                                          const uint32_t (&a)[DIM / 16][4])
    {
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 8 + lane % 8;
#pragma unroll
        for (int i = 0; i < DIM / 32; i++) {
            const int piece = i % 2 * 4 + lane / 8;
            const uint32_t out[4] = { a[2 * i][0], a[2 * i][2], a[2 * i + 1][0], a[2 * i + 1][2] };
            store_matrices(tiles + (i / 2 * of::rows + row) * TILE_SIDE + (piece ^ row % 8) * 8, out);
        }
    }

    static __device__ __forceinline__ void store_result(__nv_bfloat16 *tiles, const uint32_t (&a)[4][4])
    {
#pragma unroll
        for (int part = 0; part < 2; part++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t out[4] = { a[2 * i][part], a[2 * i][2 + part], a[2 * i + 1][part],
                                          a[2 * i + 1][2 + part] };
                store_matrices_transposed(tiles + part * (TILE_ELEMENTS / 2) + half_piece(i), out);
            }
        }
    }

    /* Loads and stores of shared memory wait for the asynchronous products that the warp has issued
     * before them. They are therefore placed before the products, or where a wait is needed anyway;
     * arithmetic does not wait. */
    __device__ __forceinline__ void run(shared &sm, const pass_arrays &, const pass_block &block)
    {
        uint32_t a[DIM / 16][4], u_parts[4][4], decayed[late ? 4 : 1][4];
        float u[8][2], read[8][4], more[of::tiles][8][4];
        chunk_numbers chunk;
        pass_await(sm, block, 0);
#pragma unroll 1
        for (unsigned n = 0; n < block.chunks; n++) {
            const __nv_bfloat16 *tiles = sm.ring_tiles[n % of::slots];
            const unsigned turn = n % of::snapshots;
            chunk.load(sm, n % of::slots);
            split(a, state);
            put_begin(2 * turn);
            store_snapshot(sm.snapshot[turn], a);
            put_end<of::places>(2 * turn);
            wgmma_fence();
            more_rows<DIM>(read, a, tiles + of::read * TILE_ELEMENTS, false);
            wgmma_commit();
            decay(chunk);
            put_begin(2 * turn + 1);
            wgmma_wait<0>();
            wgmma_results(read);
            subtract(u, chunk, read);
            split(u_parts, u);
            if constexpr (late) {
                decay_state(u, chunk.after);
                split(decayed, u);
                wgmma_fence();
                more_weights<DIM>(more, decayed, tiles + of::key * TILE_ELEMENTS, false);
            } else {
                wgmma_fence();
                more_weights<DIM>(more, u_parts, tiles + of::key * TILE_ELEMENTS, false);
            }
            if constexpr (LOW) {
                more_weights<DIM>(more, u_parts, tiles + of::key_low * TILE_ELEMENTS);
            }
            wgmma_commit();
            store_result(sm.result[turn], u_parts);
            put_end<of::places>(2 * turn + 1);
            pass_await(sm, block, n + 1 < block.chunks ? n + 1 : n);
            wgmma_wait<0>();
            wgmma_results(more);
#pragma unroll
            for (int b = 0; b < blocks; b++) {
                const float(&x)[4] = more[b / 8][b % 8];
                state[b][0] += x[0] + x[2], state[b][1] += x[1] + x[3];
            }
            ring_release(sm.ring, n);
        }
    }
};

#endif
