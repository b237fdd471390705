/* SPDX-License-Identifier: MIT
 * Making a plan: check the problem, choose the kernel, fix the sizes. */
#include "src/core/plan.h"

#include "src/core/problem.h"

#include <stdio.h>
#include <stdlib.h>

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *loam_version(void) { return VERSION(LOAM_VERSION_MAJOR, LOAM_VERSION_MINOR, LOAM_VERSION_PATCH); }

static void write_name(loam_plan *plan)
{
    const loam_problem *p = &plan->problem;
    int n = snprintf(plan->name, sizeof plan->name, "%s %s %s %s b%lld h%lld/%lld q%lld k%lld d%lld/%lld %s",
                     loam_mechanism_name(p->mechanism), loam_pass_name(p->pass), loam_dtype_name(p->dtype),
                     plan->kernel->name, (long long)p->batch, (long long)p->heads_q, (long long)p->heads_kv,
                     (long long)p->len_q, (long long)p->len_kv, (long long)p->dim_qk, (long long)p->dim_v,
                     p->causal ? "causal" : "full");
    if (p->window > 0 && n > 0 && (size_t)n < sizeof plan->name)
        snprintf(plan->name + n, sizeof plan->name - (size_t)n, " window %lld", (long long)p->window);
    if (p->features > 0 && n > 0 && (size_t)n < sizeof plan->name)
        snprintf(plan->name + n, sizeof plan->name - (size_t)n, " features %lld", (long long)p->features);
}

loam_status loam_plan_create(loam_plan **out, const loam_problem *problem, loam_error *error)
{
    REQUIRE(out, error, LOAM_EARG, "plan: NULL, expected where to put it");
    *out = NULL;
    TRY(problem_check_stamp(problem, "problem", error));
    loam_problem checked = *problem;
    TRY(problem_check(&checked, error));
    const family *f = family_of(checked.mechanism);
    const kernel *chosen;
    TRY(registry_choose(&chosen, &checked, error));
    loam_plan *plan = malloc(sizeof *plan);
    REQUIRE(plan, error, LOAM_EMEMORY, "plan: out of memory");
    checked.kernel = chosen->name;
    checked.backend = chosen->backend;
    plan->problem = checked;
    plan->kernel = chosen;
    plan->family = f;
    plan->work_bytes = f->work_bytes(&checked, chosen->work(&checked));
    plan->saved_bytes = f->saved_bytes ? f->saved_bytes(&checked) : 0;
    if (plan->work_bytes > PTRDIFF_MAX || plan->saved_bytes > PTRDIFF_MAX) {
        free(plan);
        return loam_fail(error, LOAM_EMEMORY, "work: the workspace of this problem is too large to address");
    }
    write_name(plan);
    *out = plan;
    return loam_succeed(error);
}

void loam_plan_destroy(loam_plan *plan) { free(plan); }
const char *loam_plan_name(const loam_plan *plan) { return plan->name; }
const loam_problem *loam_plan_problem(const loam_plan *plan) { return &plan->problem; }
size_t loam_plan_work_bytes(const loam_plan *plan) { return plan->work_bytes; }
size_t loam_plan_saved_bytes(const loam_plan *plan) { return plan->saved_bytes; }

const char *loam_plan_fallback(const loam_plan *plan) { return plan->kernel->fallback; }

const char *loam_plan_kernel_for(const loam_plan *plan, const loam_args *args)
{
    const kernel *k = plan->kernel;
    return k->fallback && !k->reads(&plan->problem, args) ? k->fallback : k->name;
}

int64_t loam_plan_state_rows(const loam_plan *plan)
{
    return plan->family->state_rows ? plan->family->state_rows(&plan->problem) : 0;
}
