/* SPDX-License-Identifier: MIT
 *
 * PASS, from the first chunk to the last: states and, with a delta rule, u. The pass of a delta rule:
 *
 *     u = u_hat - w S0^T,   S1 = S0 Diag(chunk_decay) + u^T k_out
 *
 * Where e^suf is one number per token and k needs no other preparation, (e^suf u)^T k replaces u^T k_out
 * (`decay_on_u`). The first product is transposed, u^T = u_hat^T - S0 w^T: the accumulators of the state, and
 * then of u^T, become operands of the next product in registers. Neither goes through shared memory in
 * between, and no warp waits for another.
 *
 * S0 and u are split into hi and lo parts. Of the 16 rows of a warp's operand, 8 are the hi parts and 8 the
 * lo parts of the same rows, so that one thread has both. A warp thus has 8 rows of the state and a thread
 * block 32: twice as many thread blocks as with 64 rows, each with half of the work. */
#include "src/recurrent/hopper/pass.cuh"
#include "src/recurrent/hopper/stages.h"

/* The index of element (row, column) in a tile of 32 columns, in the 64-byte swizzle. */
static __device__ __forceinline__ int swizzled_32(int row, int column)
{
    return (row * 32 + column) ^ row / 2 % 4 * 8;
}

/* For four 8 x 8 matrices of such a tile: the index of the row that the lane addresses, token 32 i + lane
 * of the warp's 8 columns. */
static __device__ __forceinline__ int matrix_row_32(int i)
{
    const int lane = threadIdx.x % 32;
    return swizzled_32(32 * i + lane, threadIdx.x % 128 / 32 * 8);
}

template <int DIM, bool GATED, bool LO> struct delta_pass {
    typedef pass_shape<DIM, true, GATED, false, LO> shape;
    typedef pass_shared<shape> shared;
    static constexpr bool decay_on_u = shape::decay_on_u;
    static constexpr int blocks = DIM / 8; /* of 8 columns of the state */
    float state[blocks][2];

    /* What a thread loads of a chunk: u_hat^T in hi and lo part, the decays of its columns of the state,
     * and e^suf where `decay_on_u`. */
    struct chunk_inputs {
        uint32_t value[2][8];
        float2 chunk_decay[decay_on_u ? 1 : blocks], suf_decay[8];

        __device__ __forceinline__ void load(const shared &sm, unsigned stage)
        {
#pragma unroll
            for (int part = 0; part < 2; part++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const __nv_bfloat16 *tile = sm.ring_tiles[stage] + part * (TILE_ELEMENTS / 2);
                    load_matrices_transposed(*(uint32_t(*)[4])(value[part] + 4 * i), tile + matrix_row_32(i));
                }
            }
            if (GATED) load_decays(chunk_decay, sm.chunk_decay[stage]);
            if (decay_on_u) load_decays(suf_decay, sm.suf_decay[stage]);
        }
    };

    __device__ __forceinline__ void decay(const chunk_inputs &in)
    {
        if constexpr (decay_on_u) { /* all channels have the same decay */
#pragma unroll
            for (int b = 0; b < blocks; b++)
                state[b][0] *= in.chunk_decay[0].x, state[b][1] *= in.chunk_decay[0].x;
        } else if constexpr (GATED) {
            decay_state(state, in.chunk_decay);
        }
    }

    /* u^T = u_hat^T - S0 w^T; `read` has the products of the hi part of S0 (elements 0, 1)
     * and of the lo part (2, 3). */
    static __device__ __forceinline__ void subtract(float (&u)[8][2], const chunk_inputs &in,
                                                    const float (&read)[8][4])
    {
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const uint32_t hi = in.value[0][n], lo = in.value[1][n];
            u[n][0] = (unpack_first(hi) + unpack_first(lo)) - (read[n][0] + read[n][2]);
            u[n][1] = (unpack_second(hi) + unpack_second(lo)) - (read[n][1] + read[n][3]);
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
            store_matrices(tiles + (i / 2 * shape::rows + row) * TILE_SIDE + (piece ^ row % 8) * 8, out);
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
                store_matrices_transposed(tiles + part * (TILE_ELEMENTS / 2) + matrix_row_32(i), out);
            }
        }
    }

    /* Loads and stores of shared memory wait for the asynchronous products that the warp has issued
     * before them. They are therefore placed before the products, or where a wait is needed anyway;
     * arithmetic does not wait. */
    __device__ __forceinline__ void run(shared &sm, const pass_arrays &, const pass_block &block)
    {
        uint32_t a[DIM / 16][4], u_parts[4][4], decayed[decay_on_u ? 4 : 1][4];
        float u[8][2], read[8][4], update[shape::tiles][8][4];
        chunk_inputs in;
        pass_wait(sm, block, 0);
#pragma unroll 1
        for (unsigned n = 0; n < block.chunks; n++) {
            const __nv_bfloat16 *tiles = sm.ring_tiles[n % shape::stages];
            const unsigned buffer = n % shape::snapshots;
            in.load(sm, n % shape::stages);
            split(a, state);
            output_acquire(2 * buffer);
            store_snapshot(sm.snapshot[buffer], a);
            output_commit<shape::buffers>(2 * buffer);
            wgmma_fence();
            more_rows<DIM>(read, a, tiles + shape::read * TILE_ELEMENTS, false);
            wgmma_commit();
            decay(in);
            output_acquire(2 * buffer + 1);
            wgmma_wait<0>();
            wgmma_results(read);
            subtract(u, in, read);
            split(u_parts, u);
            if constexpr (decay_on_u) {
                decay_state(u, in.suf_decay);
                split(decayed, u);
                wgmma_fence();
                more_weights<DIM>(update, decayed, tiles + shape::key * TILE_ELEMENTS, false);
            } else {
                wgmma_fence();
                more_weights<DIM>(update, u_parts, tiles + shape::key * TILE_ELEMENTS, false);
            }
            if constexpr (LO) more_weights<DIM>(update, u_parts, tiles + shape::key_lo * TILE_ELEMENTS);
            wgmma_commit();
            store_result(sm.result[buffer], u_parts);
            output_commit<shape::buffers>(2 * buffer + 1);
            pass_wait(sm, block, n + 1 < block.chunks ? n + 1 : n);
            wgmma_wait<0>();
            wgmma_results(update);
#pragma unroll
            for (int b = 0; b < blocks; b++) {
                const float(&x)[4] = update[b / 8][b % 8];
                state[b][0] += x[0] + x[2], state[b][1] += x[1] + x[3];
            }
            ring_release(sm.ring, n);
        }
    }
};

/* ------------------------------------------------------------------ launches */

/* The descriptors of the arrays; called only where there are tokens. */
static loam_status forward_maps(pass_arrays *to, const loam_problem *p, const recurrent_chunks *chunks,
                                loam_error *error)
{
    const int64_t d = chunk_width(p);
    const bool key_itself = chunks->suf_decay || chunks->weighed;
    TRY(chunk_map_make(&to->key, p, chunks, key_itself ? chunks->k : chunks->k_out, d, error));
    if (!recurrent_form_of(p->mechanism)->delta) {
        const chunk_source value = chunk_source_or(chunks->weighed, chunks->weighed, chunks->u_hat);
        TRY(chunk_map_make(&to->value, p, chunks, value, d, error));
        return slot_map_make(&to->snapshot, chunks, chunks->states, d, d, TILE_SIDE, error);
    }
    constexpr int rows = TILE_SIDE / 2; /* rows of the state that a block has */
    TRY(slot_map_make(&to->value, chunks, chunks->values, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows));
    TRY(slot_map_make(&to->value_lo, chunks, chunks->values_lo, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows));
    if (chunks->k_lo)
        TRY(slot_map_make(&to->key_lo, chunks, chunks->k_lo, CHUNK_TOKENS, d, TILE_SIDE, error));
    TRY(slot_map_make(&to->read, chunks, chunks->w, CHUNK_TOKENS, d, TILE_SIDE, error));
    TRY(slot_map_make(&to->snapshot, chunks, chunks->states, d, d, rows, error));
    to->store_lo = p->pass == LOAM_FORWARD; /* OUTPUT alone reads the lo part of u */
    to->result_lo = to->value_lo;
    return slot_map_make(&to->result, chunks, chunks->values, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows);
}

template <int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                          const pass_arrays *arrays, loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const bool gated = form->gate != GATE_NONE;
    if constexpr (DIM <= 128) {
        if (!form->delta) {
            return gated ? pass_launch<additive_pass<DIM, true, false>>(p, a, chunks, arrays, error)
                         : pass_launch<additive_pass<DIM, false, false>>(p, a, chunks, arrays, error);
        }
        if (chunks->k_lo) {
            return gated ? pass_launch<delta_pass<DIM, true, true>>(p, a, chunks, arrays, error)
                         : pass_launch<delta_pass<DIM, false, true>>(p, a, chunks, arrays, error);
        }
    }
    return gated ? pass_launch<delta_pass<DIM, true, false>>(p, a, chunks, arrays, error)
                 : pass_launch<delta_pass<DIM, false, false>>(p, a, chunks, arrays, error);
}

loam_status recurrent_pass_hopper(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                  loam_error *error)
{
    pass_arrays arrays = {};
    if (recurrent_tokens(p) > 0) TRY(forward_maps(&arrays, p, chunks, error));
    arrays.chunk_decay = chunks->chunk_decay, arrays.suf_decay = chunks->suf_decay,
    arrays.state_in = a->state_in, arrays.state_out = a->state_out;
    arrays.rows = (int)p->dim_v, arrays.columns = (int)p->dim_qk;
    if (chunk_width(p) == 256) return launch<256>(p, a, chunks, &arrays, error);
    return chunk_width(p) == 64 ? launch<64>(p, a, chunks, &arrays, error)
                                : launch<128>(p, a, chunks, &arrays, error);
}
