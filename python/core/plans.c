/* SPDX-License-Identifier: MIT
 * Plans of the last problems. */
#include "python/core/core.h"

#include <stdlib.h>

void release_plan(cached_plan *plan)
{
    if (!plan || --plan->owners > 0) return;
    loam_plan_destroy(plan->plan);
    free(plan);
}

cached_plan *find_plan(const call *c)
{
    module_state *module = c->module;
    int oldest = 0;
    for (int i = 0; i < PLANS; i++) {
        cached_plan *plan = module->plans[i];
        if (!plan) {
            oldest = i;
            break;
        }
        /* Unlike padding would only make a plan once more. */
        if (memcmp((const char *)&plan->problem, (const char *)&c->problem, sizeof plan->problem) == 0) {
            plan->used = ++module->clock;
            plan->owners++;
            return plan;
        }
        if (plan->used < module->plans[oldest]->used) oldest = i;
    }
    cached_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return (cached_plan *)PyErr_NoMemory();
    loam_error error;
    if (loam_plan_create(&plan->plan, &c->problem, &error)) {
        free(plan);
        raise_status(c, &error);
        return NULL;
    }
    memcpy(&plan->problem, &c->problem, sizeof plan->problem);
    plan->used = ++module->clock;
    plan->owners = 2;
    release_plan(module->plans[oldest]);
    module->plans[oldest] = plan;
    return plan;
}
