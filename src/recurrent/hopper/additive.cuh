/* SPDX-License-Identifier: MIT
 *
 * The forward pass of additive rules without gates of channels on Hopper, by segments of ADDITIVE_SEGMENT
 * chunks. S0 and S1 are the states before and after a chunk; notation of docs/recurrent.md:
 *
 *     S1 = S0 e^total + X,   X = sum_j (beta_j e^suf_j v_j) k_j^T
 *     o_i = scale (e^pre_i S0 q_i + sum_{j<=i} (q_i . k_j) e^seg_ij beta_j v_j)
 *
 *     GATES     the decays of each chunk, where there are any
 *     STATES    float32 states before the segments, carried through the chunks of a sequence in order
 *     OUTPUT    a thread block has a segment: the states within it again, and o
 *
 * States within segments never leave registers, and q, k and v are read as the caller has them. STATES and
 * OUTPUT compute a state by the same operations in the same order, so that o does not show where segments
 * begin. Products S0 q are transposed, (S0 q^T): the state is then an operand from registers. */
#ifndef LOAM_RECURRENT_HOPPER_ADDITIVE_CUH
#define LOAM_RECURRENT_HOPPER_ADDITIVE_CUH

#include "src/gpu/launch.cuh"
#include "src/gpu/ring.cuh"
#include "src/recurrent/hopper/maps.cuh"
#include "src/recurrent/hopper/operands.cuh"

enum { ADDITIVE_SEGMENT = 8 }; /* chunks */

/* The decays of a chunk; tokens beyond its end have gate 0 and weight 0. */
struct additive_gates {
    float2 pre_log2[CHUNK_TOKENS];                                     /* pre, hi and lo part */
    float pre[CHUNK_TOKENS], weight[CHUNK_TOKENS], beta[CHUNK_TOKENS]; /* e^pre; beta e^suf; beta */
};

/* The arguments of the three kernels. */
struct additive_launch {
    loam_problem p;
    loam_args a;
    recurrent_chunks chunks;
    chunk_map q, k, v;
    additive_gates *gates; /* by slots */
    float *states;         /* [width][width] before segments: additive_state_at */
    int64_t per_head;      /* places of states of one head */
    int64_t segments;      /* of the longest sequence */
    bool aligned;          /* rows of o can be written 16 bytes at a time */
};

static inline bool additive_gated(const loam_problem *p)
{
    return recurrent_form_of(p->mechanism)->gate != GATE_NONE;
}

/* The place of the state before chunk `c`, the first of a segment. No two of a head meet: segments of a
 * sequence are ADDITIVE_SEGMENT slots apart, and sequences count once more. */
template <int DIM>
static __device__ __forceinline__ int64_t additive_state_at(const additive_launch &l, const chunk_sequence &s,
                                                            int64_t h, int64_t c)
{
    return (h * l.per_head + (s.base + c) / ADDITIVE_SEGMENT + s.index) * DIM * DIM;
}

/* Operand A, v^T, times the weights of its tokens. */
static __device__ __forceinline__ void additive_weigh(uint32_t (&to)[4][4], const uint32_t (&v)[4][4],
                                                      const additive_gates &gates)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int token = 16 * k + e / 2 * 8 + threadIdx.x % 4 * 2;
            const float2 w = *(const float2 *)(gates.weight + token);
            to[k][e] = pack_bf16(unpack_first(v[k][e]) * w.x, unpack_second(v[k][e]) * w.y);
        }
    }
}

/* state <- state decay + x */
static __device__ __forceinline__ void additive_update(float (&state)[8][4], const float (&x)[8][4],
                                                       float decay)
{
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            state[n][e] = fmaf(state[n][e], decay, x[n][e]);
    }
}

loam_status additive_gates_hopper(const additive_launch *l, loam_error *error);
loam_status additive_states_hopper(const additive_launch *l, loam_error *error);
loam_status additive_output_hopper(const additive_launch *l, loam_error *error);

#endif
