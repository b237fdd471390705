/* SPDX-License-Identifier: MIT
 * Gradients of a chunk: the shared memory of a thread block and the loads that fill it. Notation of
 * recurrent/hopper/gradient.cu. */
#ifndef LOAM_RECURRENT_HOPPER_GRADIENT_SHARED_CUH
#define LOAM_RECURRENT_HOPPER_GRADIENT_SHARED_CUH

#include "src/recurrent/hopper/chunks.cuh"
#include "src/recurrent/hopper/decays.cuh"

/* What one gate decays: nothing (there are no gates), all channels of a token, one channel of a token. */
enum gate_reach { NO_GATES, TOKEN_GATES, CHANNEL_GATES };

/* Half of the warpgroups have queries as rows, the others keys; each computes 64 `tiles` of the channels.
 * With CHANNEL_GATES there is one thread for each channel and block of 16 tokens. */
template <int DIM, gate_reach GATES> struct gradient_shape {
    enum {
        tiles = GATES == CHANNEL_GATES ? 1 : DIM / TILE_SIDE,
        warpgroups = DIM / TILE_SIDE / tiles, /* warpgroups that have the same rows */
        threads = 2 * warpgroups * 128,
        blocks = DIM == 64 ? 2 : 1 /* thread blocks resident on a multiprocessor */
    };
};
/* bf16 parts of the weights of pairs. In dg_t pairs of tokens on one side of t are in two sums and cancel; of
 * those on its two sides a delta rule leaves little where keys are alike: each token takes back what the one
 * before wrote. With one part the rounding of up to 32^2 weights, in y with beta_i and in z without it, would
 * be left in its place. */
template <gate_reach GATES, bool DELTA> constexpr int pair_parts = 1 + (DELTA && (GATES == TOKEN_GATES));
constexpr int STATE_PARTS = 4; /* partial sums over the rows of a state, each by another thread */

template <int DIM, gate_reach GATES, bool DELTA> struct gradient_shared {
    enum {
        rows = CHUNK_TOKENS * DIM,
        state_size = DIM * DIM,
        decayed_rows = GATES == CHANNEL_GATES ? 2 + DELTA : 0,
        pitch = DIM + 8, /* padded, so that the rows of an accumulator lie in different banks */
        products_count = 2 + (GATES != NO_GATES) + DELTA,
        blocks = GATES == CHANNEL_GATES ? CHUNK_BLOCKS : 1
    };
    struct operands {
        __nv_bfloat16 grad_o[rows], u[rows], state[state_size], grad_state[state_size];
        /* With CHANNEL_GATES: k decayed to the end of its block of 16 tokens; q, and with a delta rule k,
         * decayed from its beginning. */
        __nv_bfloat16 decayed[decayed_rows > 0 ? decayed_rows *rows : 8];
    };
    __nv_bfloat16 q[rows], k[rows];
    __nv_bfloat16 dr[DELTA ? rows : 512];
    union {
        operands in;
        float products[products_count]
                      [CHUNK_TOKENS * pitch]; /* x, y, e, z: the products, which overwrite the operands */
    };
    chunk_place chunk;                 /* here so that it occupies no registers during the products */
    float2 pre[CHUNK_TOKENS];          /* inclusive prefix sums of the gates, log2 domain, hi and lo */
    float block_decay[blocks][DIM];    /* decay over each block of 16 tokens */
    float state_dot[STATE_PARTS][DIM]; /* partial sums of sum_r S_r dS_r */
    float block_pairs[1 + DELTA][blocks][BLOCK_TOKENS]
                     [BLOCK_TOKENS]; /* pairs (i, j) of a block, [j][i]: W, -X */
    /* Sums over a block: of k e, for the gates of later blocks; of q x + beta k z - k y, for
     * those of earlier blocks. */
    float for_later[blocks][DIM], for_earlier[blocks][DIM];
    float diagonal[CHUNK_TOKENS], beta[CHUNK_TOKENS]; /* W_ii; beta */
    /* Sums over channels: q x + beta k z - k y; k e; q dq. */
    float row_dot[CHUNK_TOKENS], out_dot[CHUNK_TOKENS], scale_dot[CHUNK_TOKENS];

    enum { x = 0, y = 1, e = 2, z = 2 + (GATES != NO_GATES) };
};

/* The index of element (row, column) of a state in shared memory: DIM / 64 tiles of DIM rows. */
template <int DIM> static __device__ __forceinline__ int swizzled_state(int row, int column)
{
    const int c = column % TILE_SIDE;
    return column / TILE_SIDE * (DIM * TILE_SIDE) + row * TILE_SIDE + ((c / 8 ^ row % 8) * 8 | c % 8);
}

template <int DIM, int THREADS>
static __device__ __forceinline__ void load_state_tiles(__nv_bfloat16 *tiles, const __nv_bfloat16 *state)
{
    load_tiles<DIM, THREADS, DIM>(tiles, { state, DIM, DIM }, DIM);
}

/* The log decay of row `row` of the chunk. */
static __device__ __forceinline__ const float *gate_of(const loam_args &a, const chunk_place &chunk, int row)
{
    return (const float *)a.log_decay.data + RECURRENT_AT(a.log_decay, chunk.b, chunk.h, chunk.first + row);
}

/* Two warps load beta, 1 where the mechanism has none and 0 beyond the sequence. With TOKEN_GATES a third
 * warp computes the cumulative log decays. */
template <int DIM, gate_reach GATES, bool DELTA>
static __device__ __forceinline__ void load_scalars(gradient_shared<DIM, GATES, DELTA> &sm,
                                                    const loam_args &a, const chunk_place &chunk)
{
    const int thread = threadIdx.x, lane = thread % 32;
    if (thread < CHUNK_TOKENS) {
        const float *beta = (const float *)a.beta.data;
        sm.beta[thread] = thread >= chunk.tokens ? 0
                          : beta ? beta[RECURRENT_AT(a.beta, chunk.b, chunk.h, chunk.first + thread)]
                                 : 1;
    } else if (GATES == TOKEN_GATES && thread < CHUNK_TOKENS + 32) {
        float gate[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const int row = 2 * lane + n;
            gate[n] = row < chunk.tokens ? *gate_of(a, chunk, row) : 0;
        }
        double pre[2];
        cumulative_log_decay(pre, gate, LOG2_E);
        sm.pre[2 * lane] = split_double(pre[0]), sm.pre[2 * lane + 1] = split_double(pre[1]);
    }
}

#endif
