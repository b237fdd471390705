/* SPDX-License-Identifier: MIT
 * Partial states of decode, which only the local family has. */
#include "src/core/args.h"
#include "src/local/local.h"

#include <omp.h>

static loam_status check_decode(const loam_plan *plan, loam_error *error)
{
    REQUIRE(plan, error, LOAM_EARG, "plan: NULL");
    REQUIRE(plan->problem.pass == LOAM_DECODE, error, LOAM_EARG, "plan: made for %s, expected decode",
            loam_pass_name(plan->problem.pass));
    REQUIRE(plan->family->state_doubles, error, LOAM_EUNSUPPORTED,
            "plan: made for %s, expected softmax, parallax or lla; its state is state_out",
            loam_mechanism_name(plan->problem.mechanism));
    return LOAM_OK;
}

size_t loam_state_doubles(const loam_plan *plan)
{
    return plan->family->state_doubles ? plan->family->state_doubles(&plan->problem) : 0;
}

size_t loam_states_doubles(const loam_plan *plan)
{
    return size_mul(loam_state_doubles(plan), (size_t)local_rows(&plan->problem));
}

loam_status loam_state_partial(const loam_plan *plan, const loam_args *args, int64_t first, int64_t count,
                               double *states, loam_error *error)
{
    TRY(check_decode(plan, error));
    REQUIRE(first >= 0 && count >= 0 && first <= plan->problem.len_kv &&
                count <= plan->problem.len_kv - first,
            error, LOAM_ESHAPE, "first, count: keys %lld to %lld + %lld, expected within 0 to %lld",
            (long long)first, (long long)first, (long long)count, (long long)plan->problem.len_kv);
    TRY(args_check(plan, args, ARGS_PARTIAL, error));
    REQUIRE(states || local_rows(&plan->problem) == 0, error, LOAM_EARG, "states: NULL");
    loam_args ready;
    TRY(plan->family->prepare(&plan->problem, args, &ready, error));
    return plan->kernel->partial(&plan->problem, &ready, first, count, states, error);
}

loam_status loam_state_merge(const loam_plan *plan, double *into, const double *from, loam_error *error)
{
    TRY(check_decode(plan, error));
    const int64_t rows = local_rows(&plan->problem), n = (int64_t)loam_state_doubles(plan);
    REQUIRE((into && from) || rows == 0, error, LOAM_EARG, "%s: NULL", into ? "from" : "into");
    REQUIRE(into != from || rows == 0, error, LOAM_EARG, "into: the same states as from");
    for (int64_t row = 0; row < rows; row++)
        local_state_merge(&plan->problem, into + row * n, from + row * n);
    return loam_succeed(error);
}

loam_status loam_state_finish(const loam_plan *plan, const loam_args *args, const double *states,
                              loam_error *error)
{
    TRY(check_decode(plan, error));
    TRY(args_check(plan, args, ARGS_FINISH, error));
    const loam_problem *p = &plan->problem;
    const int64_t rows = local_rows(p), n = (int64_t)loam_state_doubles(plan);
    const size_t each = size_of(local_state_scratch(p), sizeof(double));
    REQUIRE(states || rows == 0, error, LOAM_EARG, "states: NULL");
#pragma omp parallel for num_threads(p->threads) schedule(dynamic, 1)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t h = row / p->len_q % p->heads_q;
        const local_seq s = local_seq_at(p, args, row / p->len_q / p->heads_q);
        local_state_finish(p, args, &s, h, row % p->len_q, states + row * n,
                           (double *)(void *)((char *)args->work + each * (size_t)omp_get_thread_num()));
    }
    return loam_succeed(error);
}
