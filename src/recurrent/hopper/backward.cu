/* SPDX-License-Identifier: MIT
 * The backward pass of the recurrent family on Hopper: PREPARE and PASS recompute the states and u, REVERSE
 * computes the gradients of the states from the last chunk to the first, and GRADIENT all other gradients. */
#include "src/recurrent/hopper/stages.h"

size_t recurrent_backward_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)recurrent_chunks_carve(p, NULL, true, &pool);
    const size_t fallback = recurrent_backward_cuda_work(p);
    return pool.used > fallback ? pool.used : fallback;
}

bool recurrent_backward_hopper_reads(const loam_problem *p, const loam_args *a)
{
    arena pool = { (char *)LOAM_ALIGN, 0 }; /* only the alignment counts: nothing is read */
    const recurrent_chunks chunks = recurrent_chunks_carve(p, a, true, &pool);
    return recurrent_stages_hopper_fit(p, a, &chunks);
}

loam_status recurrent_backward_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!recurrent_backward_hopper_reads(p, a)) return recurrent_backward_cuda(p, a, error);
    arena pool = { (char *)a->work, 0 };
    const recurrent_chunks chunks = recurrent_chunks_carve(p, a, true, &pool);
    TRY(recurrent_prepare_hopper(p, a, &chunks, error));
    TRY(recurrent_pass_hopper(p, a, &chunks, error));
    TRY(recurrent_reverse_hopper(p, a, &chunks, error));
    if (!recurrent_form_of(p->mechanism)->delta) TRY(recurrent_output_reverse_hopper(p, a, &chunks, error));
    TRY(recurrent_gradient_hopper(p, a, &chunks, error));
    return loam_succeed(error);
}
