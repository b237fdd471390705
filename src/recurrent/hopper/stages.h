/* SPDX-License-Identifier: MIT
 * The stages of the chunked forward and backward pass on Hopper, one launch each, in the order of execution.
 * A stage reads the caller's arguments from loam_args and the results of earlier stages from the arrays over
 * slots, named here as in recurrent/hopper/chunks.cuh. */
#ifndef LOAM_RECURRENT_HOPPER_STAGES_H
#define LOAM_RECURRENT_HOPPER_STAGES_H

#include "src/recurrent/hopper/chunks.cuh"

typedef loam_status recurrent_launch_fn(const loam_problem *problem, const loam_args *args,
                                        const recurrent_chunks *chunks, loam_error *error);

/* PREPARE. Writes q_in, k_out, P, chunk_decay, suf_decay, u_hat, w, Linv and the features: those of
 * them that have an array. */
recurrent_launch_fn recurrent_prepare_hopper;
/* Writes the features alone. */
recurrent_launch_fn recurrent_features_hopper;
/* PREPARE where each channel has its own gate. */
recurrent_launch_fn recurrent_prepare_channels_hopper;
/* PASS. Writes states, state_out and, with a delta rule, u; reads u_hat, k_out (or k and suf_decay),
 * chunk_decay, w. */
recurrent_launch_fn recurrent_pass_hopper;
/* OUTPUT. Writes o; reads q_in, states, P, u. */
recurrent_launch_fn recurrent_output_hopper;
/* REVERSE. Writes grad_states, grad_state_in and, with a delta rule, du; reads grad_o,
 * q_in, k_out, chunk_decay, w, P. */
recurrent_launch_fn recurrent_reverse_hopper;
/* Writes du where there is no delta rule; reads grad_o, k_out, grad_states, P. */
recurrent_launch_fn recurrent_output_reverse_hopper;
/* GRADIENT. Writes all other gradients; reads the features, v, grad_o, u, states,
 * inverse, du, grad_states. */
recurrent_launch_fn recurrent_gradient_hopper;

/* True if bulk tensor copies can read all sources: addresses and strides are multiples of 16 bytes. */
bool recurrent_chunks_hopper_fit(const loam_problem *problem, const recurrent_chunks *chunks);

/* True if the stages can access the arguments: rows of bf16, and of log decays per
 * channel, by 16-byte accesses. */
static inline bool recurrent_stages_hopper_fit(const loam_problem *p, const loam_args *a,
                                               const recurrent_chunks *chunks)
{
    const loam_const_view *const read[] = { &a->q, &a->k, &a->v }, *const g = &a->log_decay;
    const loam_view *const written[] = { &a->grad_q, &a->grad_k, &a->grad_v };
    for (const loam_const_view *v : read)
        if (!chunk_view_aligned(v->data, v->batch, v->head, v->token, 8)) return false;
    for (const loam_view *v : written)
        if (p->pass == LOAM_BACKWARD && v->data &&
            !chunk_view_aligned(v->data, v->batch, v->head, v->token, 8))
            return false;
    const bool gates = recurrent_form_of(p->mechanism)->gate != GATE_CHANNEL ||
                       chunk_view_aligned(g->data, g->batch, g->head, g->token, 4);
    return chunks->slots > 0 && gates && recurrent_chunks_hopper_fit(p, chunks);
}

#endif
