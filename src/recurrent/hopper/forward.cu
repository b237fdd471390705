/* SPDX-License-Identifier: MIT
 * The forward pass of the recurrent family on Hopper: the stages PREPARE, PASS and OUTPUT of the chunk
 * kernels. Arguments that 16-byte copies cannot read are left to the kernels of cuda/. Alignment is known
 * only when the arguments are, so the workspace suffices for either. */
#include "src/recurrent/hopper/stages.h"

size_t recurrent_forward_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)recurrent_chunks_carve(p, NULL, false, &pool);
    const size_t fallback = recurrent_forward_cuda_work(p);
    return pool.used > fallback ? pool.used : fallback;
}

bool recurrent_forward_hopper_reads(const loam_problem *p, const loam_args *a)
{
    arena pool = { (char *)LOAM_ALIGN, 0 }; /* only the alignment counts: nothing is read */
    const recurrent_chunks chunks = recurrent_chunks_carve(p, a, false, &pool);
    return recurrent_stages_hopper_fit(p, a, &chunks);
}

loam_status recurrent_forward_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!recurrent_forward_hopper_reads(p, a)) return recurrent_forward_cuda(p, a, error);
    arena pool = { (char *)a->work, 0 };
    const recurrent_chunks chunks = recurrent_chunks_carve(p, a, false, &pool);
    TRY(recurrent_prepare_hopper(p, a, &chunks, error));
    TRY(recurrent_pass_hopper(p, a, &chunks, error));
    TRY(recurrent_output_hopper(p, a, &chunks, error));
    return loam_succeed(error);
}
