/* SPDX-License-Identifier: MIT
 * The forward pass of the recurrent family on Hopper: the stages PREPARE, PASS and OUTPUT of the chunk
 * kernels. Arguments that 16-byte copies cannot read are left to the sm80 kernels. Alignment is known only
 * when the arguments are, so the workspace suffices for either. */
#include "src/recurrent/recurrent_chunks_sm90.h"

size_t recurrent_forward_sm90_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)recurrent_chunks_carve(p, NULL, false, &pool);
    const size_t plain = recurrent_forward_sm80_work(p);
    return pool.used > plain ? pool.used : plain;
}

loam_status recurrent_forward_sm90(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    const recurrent_chunks chunks = recurrent_chunks_carve(p, a, false, &pool);
    if (!recurrent_stages_sm90_fit(p, a, &chunks)) {
        return recurrent_forward_sm80(p, a, error);
    }
    TRY(recurrent_prepare_sm90(p, a, &chunks, error));
    TRY(recurrent_pass_sm90(p, a, &chunks, error));
    TRY(recurrent_output_sm90(p, a, &chunks, error));
    return loam_succeed(error);
}
