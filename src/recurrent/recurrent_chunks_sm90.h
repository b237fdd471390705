/* SPDX-License-Identifier: MIT
 * The launches that the passes of the chunk kernels on Hopper consist of, in order. Arguments in a loam_args, all else in the arrays over
 * slots. */
#ifndef LOAM_RECURRENT_RECURRENT_CHUNKS_SM90_H
#define LOAM_RECURRENT_RECURRENT_CHUNKS_SM90_H

#include "src/recurrent/recurrent_slots_cuda.cuh"

typedef loam_status recurrent_launch_fn(const loam_problem *problem, const loam_args *args,
                                        const recurrent_chunks *chunks, loam_error *error);

/* q_in, k_out, P, total, u_hat, w, Linv and, where there is a feature map, features. */
recurrent_launch_fn recurrent_prepare_sm90;
/* states and state_out, u; reads u_hat, k_out, total, w. */
recurrent_launch_fn recurrent_pass_sm90;
/* o; reads q_in, states, P, u. */
recurrent_launch_fn recurrent_output_sm90;
/* grad_states and grad_state_in, du of delta rules; reads grad_o, q_in, k_out, total, w, P. */
recurrent_launch_fn recurrent_reverse_sm90;
/* du where there is no delta rule; reads grad_o, k_out, grad_states, P. */
recurrent_launch_fn recurrent_output_reverse_sm90;
/* The other gradients; reads the features, v, grad_o, u, states, inverse, du, grad_states. */
recurrent_launch_fn recurrent_gradient_sm90;

/* Can bulk copies read these sources? */
bool recurrent_chunks_sm90_fit(const loam_problem *problem, const recurrent_chunks *chunks);

/* Can the stages read and write these arguments? Rows of 16 bits, and log decays of channels, 16 bytes at a time. */
static inline bool recurrent_stages_sm90_fit(const loam_problem *p, const loam_args *a,
                                             const recurrent_chunks *chunks)
{
    const loam_const_view *const read[] = { &a->q, &a->k, &a->v }, *const g = &a->log_decay;
    const loam_view *const written[] = { &a->grad_q, &a->grad_k, &a->grad_v };
    for (const loam_const_view *v : read) {
        if (!chunk_view_aligned(v->data, v->batch, v->head, v->token, 8)) {
            return false;
        }
    }
    for (const loam_view *v : written) {
        if (p->pass == LOAM_BACKWARD && v->data &&
            !chunk_view_aligned(v->data, v->batch, v->head, v->token, 8)) {
            return false;
        }
    }
    const bool gates = recurrent_form_of(p->mechanism)->gate != GATE_CHANNEL ||
                       chunk_view_aligned(g->data, g->batch, g->head, g->token, 4);
    return chunks->slots > 0 && gates && recurrent_chunks_sm90_fit(p, chunks);
}

#endif
