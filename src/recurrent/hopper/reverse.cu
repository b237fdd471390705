/* SPDX-License-Identifier: MIT
 *
 * REVERSE, from the last chunk to the first: gradients of the states and, with a delta rule, du. The pass of
 * a delta rule, with scaled do:
 *
 *     du = P^T do + k_out dS1^T,   dS0 = dS1 Diag(chunk_decay) + do^T q_in - du^T w
 *
 * The first product is transposed, du^T = do^T P + dS1 k_out^T, for the reason given in
 * recurrent/hopper/pass.cu. */
#include "src/recurrent/hopper/pass.cuh"
#include "src/recurrent/hopper/stages.h"

template <int DIM, bool GATED> struct reverse_pass {
    typedef pass_shape<DIM, true, GATED, true, false> shape;
    typedef pass_shared<shape> shared;
    static constexpr int blocks = DIM / 8; /* of 8 columns of the state */
    float state[blocks][4];

    /* do^T times the scale, as operand A. */
    static __device__ __forceinline__ void scale_value(uint32_t (&to)[4][4], const uint32_t (&value)[4][4],
                                                       float factor)
    {
#pragma unroll
        for (int e = 0; e < 16; e++) {
            const uint32_t pair = value[e / 4][e % 4];
            to[e / 4][e % 4] = pack_bf16(unpack_first(pair) * factor, unpack_second(pair) * factor);
        }
    }

    /* a = -x, rounded to bf16, as operand A. */
    static __device__ __forceinline__ void negate(uint32_t (&a)[4][4], const float (&x)[8][4])
    {
        float minus[1][8][4];
#pragma unroll
        for (int e = 0; e < 32; e++)
            minus[0][e / 4][e % 4] = -x[e / 4][e % 4];
        round_to_operand(a, minus);
    }

    /* Loads and stores of shared memory wait for the asynchronous products that the warp has issued before
     * them. They are therefore placed before the products, or where a wait is needed anyway. */
    __device__ __forceinline__ void run(shared &sm, const pass_arrays &arrays, const pass_block &block)
    {
        float(&columns)[shape::tiles][8][4] = *(float(*)[shape::tiles][8][4]) & state;
        uint32_t snapshot[shape::tiles * 4][4], value[4][4], raw[4][4], out[4][4]; /* out: -du^T */
        float sum[1][8][4];
        float2 chunk_decay[blocks];
        pass_wait(sm, block, 0);
        load_transposed(raw, sm.ring_tiles[0]);
#pragma unroll 1
        for (unsigned n = 0; n < block.chunks; n++) {
            const unsigned next = n + 1 < block.chunks ? n + 1 : n;
            const __nv_bfloat16 *tiles = sm.ring_tiles[n % shape::stages];
            if (GATED) load_decays(chunk_decay, sm.chunk_decay[n % shape::stages]);
            scale_value(value, raw, arrays.scale);
            round_to_operand(snapshot, columns);
            output_acquire(0);
            store_operands(sm.snapshot[0], snapshot);
            output_commit<shape::buffers>(0);
            if (GATED) decay_state(state, chunk_decay);
            wgmma_fence();
            more_weights<TILE_SIDE>(sum, value, tiles + shape::pairs * TILE_ELEMENTS, false);
            more_rows<DIM>(sum[0], snapshot, tiles + shape::read * TILE_ELEMENTS, true);
            wgmma_commit();
            more_weights<shape::columns>(columns, value, tiles + shape::key * TILE_ELEMENTS);
            wgmma_commit();
            output_acquire(1);
            wgmma_wait<1>();
            wgmma_results(sum);
            negate(out, sum[0]);
            wgmma_fence();
            more_weights<DIM>(columns, out, tiles + shape::erase * TILE_ELEMENTS);
            wgmma_commit();
            store_transposed(sm.result[0], out, 0x80008000u);
            output_commit<shape::buffers>(1);
            pass_wait(sm, block, next);
            load_transposed(raw, sm.ring_tiles[next % shape::stages]);
            wgmma_wait<0>();
            wgmma_results(state);
            ring_release(sm.ring, n);
        }
    }
};

/* ------------------------------------------------------------------ launches */

static loam_status backward_maps(pass_arrays *to, const loam_problem *p, const recurrent_chunks *chunks,
                                 loam_error *error)
{
    const int64_t d = chunk_width(p);
    TRY(chunk_map_make(&to->value, p, chunks, chunks->grad_o, d, error));
    TRY(chunk_map_make(&to->key, p, chunks, chunks->q_in, d, error));
    TRY(slot_map_make(&to->snapshot, chunks, chunks->grad_states, d, d, TILE_SIDE, error));
    if (recurrent_form_of(p->mechanism)->delta) {
        TRY(chunk_map_make(&to->read, p, chunks, chunks->k_out, d, error));
        TRY(slot_map_make(&to->erase, chunks, chunks->w, CHUNK_TOKENS, d, TILE_SIDE, error));
        TRY(slot_map_make(&to->pairs, chunks, chunks->pairs, CHUNK_TOKENS, CHUNK_TOKENS, TILE_SIDE, error));
        TRY(slot_map_make(&to->result, chunks, chunks->du, CHUNK_TOKENS, d, TILE_SIDE, error));
    }
    return LOAM_OK;
}

template <int DIM>
static loam_status launch(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                          const pass_arrays *arrays, loam_error *error)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    const bool gated = form->gate != GATE_NONE;
    if (!form->delta) {
        return gated ? pass_launch<additive_pass<DIM, true, true>>(p, a, chunks, arrays, error)
                     : pass_launch<additive_pass<DIM, false, true>>(p, a, chunks, arrays, error);
    }
    return gated ? pass_launch<reverse_pass<DIM, true>>(p, a, chunks, arrays, error)
                 : pass_launch<reverse_pass<DIM, false>>(p, a, chunks, arrays, error);
}

loam_status recurrent_reverse_hopper(const loam_problem *p, const loam_args *a,
                                     const recurrent_chunks *chunks, loam_error *error)
{
    pass_arrays arrays = {};
    if (recurrent_tokens(p) > 0) TRY(backward_maps(&arrays, p, chunks, error));
    arrays.chunk_decay = chunks->chunk_decay, arrays.scale = (float)p->scale;
    arrays.state_in = a->grad_state_out, arrays.state_out = a->grad_state_in;
    arrays.rows = (int)p->dim_v, arrays.columns = (int)p->dim_qk;
    return chunk_width(p) == 64 ? launch<64>(p, a, chunks, &arrays, error)
                                : launch<128>(p, a, chunks, &arrays, error);
}
