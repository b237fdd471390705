/* SPDX-License-Identifier: MIT
 * The pass of additive rules in both directions: S1 = S0 Diag(chunk_decay) + X, X = u^T k_out; backward, with
 * scaled do, dS0 = dS1 Diag(chunk_decay) + do^T q_in. X does not depend on the state: its product runs while the
 * snapshot of S0 is stored. */
#ifndef LOAM_RECURRENT_HOPPER_PASS_ADDITIVE_CUH
#define LOAM_RECURRENT_HOPPER_PASS_ADDITIVE_CUH

#include "src/recurrent/hopper/pass.cuh"

template <int DIM, bool GATED, bool BACKWARD> struct additive_pass {
    typedef pass_shape<DIM, false, BACKWARD, false> shape;
    typedef pass_shared<DIM, false, BACKWARD, false> shared;
    float state[8][4];

    /* Issues the product of chunk number n, and loads the decays of the chunk. */
    static __device__ __forceinline__ void issue_product(float (&product)[8][4], float2 (&chunk_decay)[8],
                                                         shared &sm, const pass_block &block, unsigned n)
    {
        const unsigned stage = n % shape::stages;
        pass_wait(sm, block, n);
        multiply_transposed(product, sm.ring_tiles[stage], sm.ring_tiles[stage] + shape::key * TILE_ELEMENTS);
        wgmma_commit();
        if (GATED) {
            load_decays(chunk_decay, sm.chunk_decay[stage]);
        }
    }

    __device__ __forceinline__ void run(shared &sm, const pass_arrays &arrays, const pass_block &block)
    {
        float product[8][4];
        float2 chunk_decay[8];
        issue_product(product, chunk_decay, sm, block, 0);
#pragma unroll 1
        for (unsigned n = 0; n < block.chunks; n++) {
            uint32_t snapshot[4][4];
            round_state(snapshot, *(float(*)[1][8][4]) & state);
            output_acquire(n % shape::buffers);
            store_operands(sm.snapshot[n % shape::buffers], snapshot);
            output_commit<shape::buffers>(n % shape::buffers);
            wgmma_wait<0>();
            wgmma_results(product);
            if (GATED) {
                decay_state(state, chunk_decay);
            }
#pragma unroll
            for (int e = 0; e < 32; e++) {
                float &x = state[e / 4][e % 4];
                x = BACKWARD ? fmaf(product[e / 4][e % 4], arrays.scale, x) : x + product[e / 4][e % 4];
            }
            ring_release(sm.ring, n);
            /* The last product is computed twice, so that there is no branch around the products. */
            issue_product(product, chunk_decay, sm, block, n + 1 < block.chunks ? n + 1 : n);
        }
        wgmma_wait<0>();
    }
};

#endif
