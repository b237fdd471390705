/* SPDX-License-Identifier: MIT
 * The launches of OUTPUT. */
#include "src/recurrent/hopper/chunks.h"
#include "src/recurrent/hopper/output.cuh"

loam_status recurrent_output_hopper(const loam_problem *p, const loam_args *a, const recurrent_chunks *x,
                                    loam_error *error)
{
    if (recurrent_tokens(p) == 0) {
        return LOAM_OK;
    }
    const int64_t d = p->dim_qk;
    output_arrays arrays = {};
    TRY(chunk_map_make(&arrays.value, p, x, x->u, d, error));
    TRY(slot_map_make(&arrays.pairs, x, x->P, CHUNK_TOKENS, CHUNK_TOKENS, TILE_SIDE, error));
    TRY(chunk_map_make(&arrays.row, p, x, x->q_in, d, error));
    TRY(slot_map_make(&arrays.state, x, x->states, d, d, TILE_SIDE, error));
    arrays.o = a->o, arrays.scale = (float)p->scale;
    arrays.aligned = chunk_view_aligned(a->o.data, a->o.batch, a->o.head, a->o.token, 8);
    if (!recurrent_form_of(p->mechanism)->delta) {
        return output_launch<false, false>(p, a, x, &arrays, error);
    }
    TRY(slot_map_make(&arrays.value_low, x, x->values_low, CHUNK_TOKENS, d, CHUNK_TOKENS, error));
    return output_launch<false, true>(p, a, x, &arrays, error);
}

loam_status recurrent_output_reverse_hopper(const loam_problem *p, const loam_args *a,
                                            const recurrent_chunks *x, loam_error *error)
{
    if (recurrent_tokens(p) == 0) {
        return LOAM_OK;
    }
    const int64_t d = p->dim_qk;
    output_arrays arrays = {};
    TRY(chunk_map_make(&arrays.value, p, x, x->grad_o, d, error));
    TRY(slot_map_make(&arrays.pairs, x, x->P, CHUNK_TOKENS, CHUNK_TOKENS, TILE_SIDE, error));
    TRY(chunk_map_make(&arrays.row, p, x, x->k_out, d, error));
    TRY(slot_map_make(&arrays.state, x, x->grad_states, d, d, TILE_SIDE, error));
    arrays.du = x->du, arrays.scale = (float)p->scale;
    return output_launch<true, false>(p, a, x, &arrays, error);
}

/* Only what is read matters: o may have any alignment, and du is an array over slots. */
bool recurrent_chunks_hopper_fit(const loam_problem *p, const recurrent_chunks *x)
{
    return chunk_source_fits(p, x->q_in) && chunk_source_fits(p, x->k_out) &&
           (!x->after || chunk_source_fits(p, x->k)) && chunk_source_fits(p, x->u_hat) &&
           (p->pass != LOAM_BACKWARD || chunk_source_fits(p, x->grad_o));
}
