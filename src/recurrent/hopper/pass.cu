/* SPDX-License-Identifier: MIT
 * PASS, from the first chunk to the last: states and, with a delta rule, u. */
#include "src/recurrent/hopper/pass_launch.cuh"
#include "src/recurrent/hopper/stages.h"

/* The descriptors of the arrays; called only where there are tokens. */
static loam_status forward_maps(pass_arrays *to, const loam_problem *p, const recurrent_chunks *chunks,
                                loam_error *error)
{
    const int64_t d = p->dim_qk;
    TRY(chunk_map_make(&to->key, p, chunks, chunks->suf_decay ? chunks->k : chunks->k_out, d, error));
    if (!recurrent_form_of(p->mechanism)->delta) {
        TRY(chunk_map_make(&to->value, p, chunks, chunks->u_hat, d, error));
        return slot_map_make(&to->snapshot, chunks, chunks->states, d, d, TILE_SIDE, error);
    }
    constexpr int rows = TILE_SIDE / 2; /* rows of the state that a block has */
    TRY(slot_map_make(&to->value, chunks, chunks->values, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows));
    TRY(slot_map_make(&to->value_lo, chunks, chunks->values_lo, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows));
    if (chunks->k_lo) {
        TRY(slot_map_make(&to->key_lo, chunks, chunks->k_lo, CHUNK_TOKENS, d, TILE_SIDE, error));
    }
    TRY(slot_map_make(&to->read, chunks, chunks->w, CHUNK_TOKENS, d, TILE_SIDE, error));
    TRY(slot_map_make(&to->snapshot, chunks, chunks->states, d, d, rows, error));
    to->store_lo = p->pass == LOAM_FORWARD; /* OUTPUT alone reads the lo part of u */
    to->result_lo = to->value_lo;
    return slot_map_make(&to->result, chunks, chunks->values, CHUNK_TOKENS, d, CHUNK_TOKENS, error, rows);
}

loam_status recurrent_pass_hopper(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                  loam_error *error)
{
    pass_arrays arrays = {};
    if (recurrent_tokens(p) > 0) {
        TRY(forward_maps(&arrays, p, chunks, error));
    }
    arrays.chunk_decay = chunks->chunk_decay, arrays.suf_decay = chunks->suf_decay,
    arrays.state_in = a->state_in, arrays.state_out = a->state_out;
    return pass_launch<false>(p, a, chunks, &arrays, error);
}
