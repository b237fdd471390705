/* SPDX-License-Identifier: MIT
 * The pass of additive rules in both directions: S1 = S0 Diag(total) + X, X = u^T k_out; backward, with
 * scaled do, dS0 = dS1 Diag(total) + do^T q_in. X does not depend on the state: its product runs while the
 * snapshot of S0 is stored. */
#ifndef LOAM_RECURRENT_HOPPER_PASS_ADDITIVE_CUH
#define LOAM_RECURRENT_HOPPER_PASS_ADDITIVE_CUH

#include "src/recurrent/hopper/pass.cuh"

template <int DIM, bool GATED, bool BACKWARD> struct additive_pass {
    typedef pass_shape<DIM, false, BACKWARD, false> of;
    typedef pass_shared<DIM, false, BACKWARD, false> shared;
    float state[8][4];

    /* Issues the product of chunk number n, and loads the decays of the chunk. */
    static __device__ __forceinline__ void ask(float (&product)[8][4], float2 (&total)[8], shared &sm,
                                               const pass_block &block, unsigned n)
    {
        const unsigned slot = n % of::slots;
        pass_await(sm, block, n);
        multiply_transposed(product, sm.ring_tiles[slot], sm.ring_tiles[slot] + of::key * TILE_ELEMENTS);
        wgmma_commit();
        if (GATED) {
            load_totals(total, sm.total[slot]);
        }
    }

    __device__ __forceinline__ void run(shared &sm, const pass_arrays &arrays, const pass_block &block)
    {
        float product[8][4];
        float2 total[8];
        ask(product, total, sm, block, 0);
#pragma unroll 1
        for (unsigned n = 0; n < block.chunks; n++) {
            uint32_t snapshot[4][4];
            round_state(snapshot, *(float(*)[1][8][4]) & state);
            put_begin(n % of::places);
            store_operands(sm.snapshot[n % of::places], snapshot);
            put_end<of::places>(n % of::places);
            wgmma_wait<0>();
            wgmma_results(product);
            if (GATED) {
                decay_state(state, total);
            }
#pragma unroll
            for (int e = 0; e < 32; e++) {
                float &x = state[e / 4][e % 4];
                x = BACKWARD ? fmaf(product[e / 4][e % 4], arrays.scale, x) : x + product[e / 4][e % 4];
            }
            ring_release(sm.ring, n);
            /* The last product is computed twice, so that there is no branch around the products. */
            ask(product, total, sm, block, n + 1 < block.chunks ? n + 1 : n);
        }
        wgmma_wait<0>();
    }
};

#endif
