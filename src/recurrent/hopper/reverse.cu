/* SPDX-License-Identifier: MIT
 * REVERSE, from the last chunk to the first: gradients of the states and, with a delta rule, du. */
#include "src/recurrent/hopper/chunks.h"
#include "src/recurrent/hopper/pass_launch.cuh"

static loam_status backward_maps(pass_arrays *to, const loam_problem *p, const recurrent_chunks *x,
                                 loam_error *error)
{
    const int64_t d = p->dim_qk;
    TRY(chunk_map_make(&to->value, p, x, x->grad_o, d, error));
    TRY(chunk_map_make(&to->key, p, x, x->q_in, d, error));
    TRY(slot_map_make(&to->snapshot, x, x->grad_states, d, d, TILE_SIDE, error));
    if (recurrent_form_of(p->mechanism)->delta) {
        TRY(chunk_map_make(&to->read, p, x, x->k_out, d, error));
        TRY(slot_map_make(&to->erase, x, x->w, CHUNK_TOKENS, d, TILE_SIDE, error));
        TRY(slot_map_make(&to->pairs, x, x->P, CHUNK_TOKENS, CHUNK_TOKENS, TILE_SIDE, error));
        TRY(slot_map_make(&to->result, x, x->du, CHUNK_TOKENS, d, TILE_SIDE, error));
    }
    return LOAM_OK;
}

loam_status recurrent_reverse_hopper(const loam_problem *p, const loam_args *a, const recurrent_chunks *x,
                                     loam_error *error)
{
    pass_arrays arrays = {};
    if (recurrent_tokens(p) > 0) {
        TRY(backward_maps(&arrays, p, x, error));
    }
    arrays.total = x->total, arrays.scale = (float)p->scale;
    arrays.begin = a->grad_state_out, arrays.end = a->grad_state_in;
    return pass_launch<true>(p, a, x, &arrays, error);
}
