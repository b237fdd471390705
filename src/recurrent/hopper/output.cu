/* SPDX-License-Identifier: MIT
 * The launches of OUTPUT. */
#include "src/recurrent/hopper/output.cuh"
#include "src/recurrent/hopper/stages.h"

loam_status recurrent_output_hopper(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                                    loam_error *error)
{
    if (recurrent_tokens(p) == 0) {
        return LOAM_OK;
    }
    const int64_t d = p->dim_qk;
    output_arrays arrays = {};
    TRY(chunk_map_make(&arrays.value, p, chunks, chunks->u, d, error));
    TRY(slot_map_make(&arrays.pairs, chunks, chunks->pairs, CHUNK_TOKENS, CHUNK_TOKENS, TILE_SIDE, error));
    TRY(chunk_map_make(&arrays.row, p, chunks, chunks->q_in, d, error));
    TRY(slot_map_make(&arrays.state, chunks, chunks->states, d, d, TILE_SIDE, error));
    arrays.o = a->o, arrays.scale = (float)p->scale;
    arrays.aligned = chunk_view_aligned(a->o.data, a->o.batch, a->o.head, a->o.token, 8);
    if (!recurrent_form_of(p->mechanism)->delta) {
        return output_launch<false, false>(p, a, chunks, &arrays, error);
    }
    TRY(slot_map_make(&arrays.value_lo, chunks, chunks->values_lo, CHUNK_TOKENS, d, CHUNK_TOKENS, error));
    return output_launch<false, true>(p, a, chunks, &arrays, error);
}

loam_status recurrent_output_reverse_hopper(const loam_problem *p, const loam_args *a,
                                            const recurrent_chunks *chunks, loam_error *error)
{
    if (recurrent_tokens(p) == 0) {
        return LOAM_OK;
    }
    const int64_t d = p->dim_qk;
    output_arrays arrays = {};
    TRY(chunk_map_make(&arrays.value, p, chunks, chunks->grad_o, d, error));
    TRY(slot_map_make(&arrays.pairs, chunks, chunks->pairs, CHUNK_TOKENS, CHUNK_TOKENS, TILE_SIDE, error));
    TRY(chunk_map_make(&arrays.row, p, chunks, chunks->k_out, d, error));
    TRY(slot_map_make(&arrays.state, chunks, chunks->grad_states, d, d, TILE_SIDE, error));
    arrays.du = chunks->du, arrays.scale = (float)p->scale;
    return output_launch<true, false>(p, a, chunks, &arrays, error);
}

/* Only what is read matters: o may have any alignment, and du is an array over slots. */
bool recurrent_chunks_hopper_fit(const loam_problem *p, const recurrent_chunks *chunks)
{
    return chunk_source_fits(p, chunks->q_in) && chunk_source_fits(p, chunks->k_out) &&
           (!chunks->suf_decay || chunk_source_fits(p, chunks->k)) && chunk_source_fits(p, chunks->u_hat) &&
           (p->pass != LOAM_BACKWARD || chunk_source_fits(p, chunks->grad_o));
}
