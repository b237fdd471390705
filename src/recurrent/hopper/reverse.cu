/* SPDX-License-Identifier: MIT
 * REVERSE, from the last chunk to the first: gradients of the states and, with a delta rule, du. */
#include "src/recurrent/hopper/pass_launch.cuh"
#include "src/recurrent/hopper/stages.h"

static loam_status backward_maps(pass_arrays *to, const loam_problem *p, const recurrent_chunks *chunks,
                                 loam_error *error)
{
    const int64_t d = p->dim_qk;
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

loam_status recurrent_reverse_hopper(const loam_problem *p, const loam_args *a,
                                     const recurrent_chunks *chunks, loam_error *error)
{
    pass_arrays arrays = {};
    if (recurrent_tokens(p) > 0) {
        TRY(backward_maps(&arrays, p, chunks, error));
    }
    arrays.chunk_decay = chunks->chunk_decay, arrays.scale = (float)p->scale;
    arrays.state_in = a->grad_state_out, arrays.state_out = a->grad_state_in;
    return pass_launch<true>(p, a, chunks, &arrays, error);
}
