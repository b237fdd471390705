/* SPDX-License-Identifier: MIT
 * Running a plan: check the arguments, prepare what kernels read instead, run the kernel, stamp `saved`. */
#include "src/core/args.h"
#include "src/core/saved.h"

loam_status loam_run(const loam_plan *plan, const loam_args *args, loam_error *error)
{
    REQUIRE(plan, error, LOAM_EARG, "plan: NULL");
    TRY(args_check(plan, args, ARGS_RUN, error));
    const loam_problem *p = &plan->problem;
    loam_args ready = *args;
    if (plan->family->prepare) TRY(plan->family->prepare(p, args, &ready, error));
    const bool saves = plan->saved_bytes > 0 && args->saved;
    if (saves) ready.saved = (char *)args->saved + saved_stamp_bytes(p);
    TRY(plan->kernel->run(p, &ready, error));
    if (saves && p->pass == LOAM_FORWARD) saved_write(p, 0, args->saved);
    return LOAM_OK;
}
