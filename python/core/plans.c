/* SPDX-License-Identifier: MIT
 * Plans of the last problems. */
#include "python/core/core.h"

#include <stdlib.h>

void release_plan(cached_plan *plan)
{
    if (!plan || --plan->owners > 0) return;
    loam_plan_destroy(plan->plan);
    loam_interpolation_destroy(plan->interpolation);
    loam_hybrid_destroy(plan->hybrid);
    free(plan);
}

static bool is_of(const cached_plan *plan, const call *c)
{
    /* Unlike padding would only make a plan once more. */
    return plan->sinks == c->sinks && plan->window == c->window &&
           memcmp((const char *)&plan->problem, (const char *)&c->problem, sizeof plan->problem) == 0 &&
           memcmp((const char *)&plan->linear, (const char *)&c->linear, sizeof plan->linear) == 0;
}

static loam_status make_plan(cached_plan *to, const call *c, loam_error *error)
{
    memcpy(&to->problem, &c->problem, sizeof to->problem);
    memcpy(&to->linear, &c->linear, sizeof to->linear);
    to->sinks = c->sinks, to->window = c->window;
    const loam_plan *states = NULL;
    if (is_interpolation(c)) {
        if (loam_interpolation_create(&to->interpolation, &c->problem, &c->linear, error))
            return error->status;
        states = loam_interpolation_recurrent(to->interpolation);
        to->work_bytes = loam_interpolation_work_bytes(to->interpolation);
        to->saved_bytes = loam_interpolation_saved_bytes(to->interpolation);
    } else if (c->hybrid) {
        if (loam_hybrid_create(&to->hybrid, &c->problem, c->sinks, c->window, error)) return error->status;
        states = loam_hybrid_read(to->hybrid);
        to->work_bytes = loam_hybrid_work_bytes(to->hybrid);
        to->saved_bytes = loam_hybrid_saved_bytes(to->hybrid);
    } else {
        if (loam_plan_create(&to->plan, &c->problem, error)) return error->status;
        states = to->plan;
        to->work_bytes = loam_plan_work_bytes(to->plan);
        to->saved_bytes = loam_plan_saved_bytes(to->plan);
    }
    to->state_rows = loam_plan_state_rows(states);
    return LOAM_OK;
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
        if (is_of(plan, c)) {
            plan->used = ++module->clock;
            plan->owners++;
            return plan;
        }
        if (plan->used < module->plans[oldest]->used) oldest = i;
    }
    cached_plan *plan = calloc(1, sizeof *plan);
    if (!plan) return (cached_plan *)PyErr_NoMemory();
    loam_error error;
    if (make_plan(plan, c, &error)) {
        free(plan);
        raise_status(c, &error);
        return NULL;
    }
    plan->used = ++module->clock;
    plan->owners = 2;
    release_plan(module->plans[oldest]);
    module->plans[oldest] = plan;
    return plan;
}
