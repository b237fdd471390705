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

/* Can they read and write these arguments? */
bool recurrent_prepare_sm90_fit(const loam_problem *problem, const loam_args *args);
bool recurrent_gradient_sm90_fit(const loam_args *args);
bool recurrent_chunks_sm90_fit(const loam_problem *problem, const recurrent_chunks *chunks);

#endif
