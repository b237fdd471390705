/* SPDX-License-Identifier: MIT
 * Forward of the local family on GPUs of compute capability 8.0 and newer. */
#include "src/local/local_forward_cuda.h"

#include "src/base/error.h"

static bool nothing(const loam_problem *p) { return p->batch == 0 || p->len_q == 0; }

size_t local_forward_sm80_work(const loam_problem *p)
{
    return p->mechanism == LOAM_LLA && !nothing(p) ? local_solved_cuda_work(p) : 0;
}

loam_status local_forward_sm80(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!nothing(p)) {
        TRY(p->mechanism == LOAM_LLA ? local_solved_cuda(p, a, error) : local_given_cuda(p, a, error));
    }
    return loam_succeed(error);
}
