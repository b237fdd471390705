/* SPDX-License-Identifier: MIT
 * PASS, from the first chunk to the last: states and, with a delta rule, u. */
#include "src/recurrent/hopper/chunks.h"
#include "src/recurrent/hopper/pass_launch.cuh"

/* The descriptors of the arrays; called only where there are tokens. */
static loam_status forward_maps(pass_arrays *to, const loam_problem *p, const recurrent_chunks *x,
                                loam_error *error)
{
    const int64_t d = p->dim_qk;
    TRY(chunk_map_make(&to->key, p, x, x->after ? x->k : x->k_out, d, error));
    if (!recurrent_form_of(p->mechanism)->delta) {
        TRY(chunk_map_make(&to->value, p, x, x->u_hat, d, error));
        return slot_map_make(&to->snapshot, x, x->states, d, d, TILE_SIDE, error);
    }
    constexpr int rows = TILE_SIDE / 2; /* rows of the state that a block has */
    TRY(slot_map_make(&to->value, x, x->values, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows));
    TRY(slot_map_make(&to->value_low, x, x->values_low, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows));
    if (x->k_low) {
        TRY(slot_map_make(&to->key_low, x, x->k_low, CHUNK_TOKENS, d, TILE_SIDE, error));
    }
    TRY(slot_map_make(&to->read, x, x->w, CHUNK_TOKENS, d, TILE_SIDE, error));
    TRY(slot_map_make(&to->snapshot, x, x->states, d, d, rows, error));
    to->with_low = p->pass == LOAM_FORWARD; /* OUTPUT alone reads the lo part of u */
    to->result_low = to->value_low;
    return slot_map_make(&to->result, x, x->values, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows);
}

loam_status recurrent_pass_hopper(const loam_problem *p, const loam_args *a, const recurrent_chunks *x,
                                  loam_error *error)
{
    pass_arrays arrays = {};
    if (recurrent_tokens(p) > 0) {
        TRY(forward_maps(&arrays, p, x, error));
    }
    arrays.total = x->total, arrays.after = x->after, arrays.begin = a->state_in, arrays.end = a->state_out;
    return pass_launch<false>(p, a, x, &arrays, error);
}
