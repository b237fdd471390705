/* SPDX-License-Identifier: MIT */
#include "tests/support/run.h"

#include "tests/support/kernels.h"

#include <stdio.h>
#include <string.h>

static outcome fail(outcome r, loam_status status)
{
    r.status = status;
    return r;
}

/* The kernel of the forward pass that goes with a backward row, so that a row is tested as a whole set of
 * one instruction set; "" leaves the choice to the library, on the same kind of memory. */
static void forward_of(spec *s)
{
    const char *place = strstr(s->kernel, "backward");
    char name[sizeof s->kernel + 16];
    loam_kernel_info info;
    if (place) {
        snprintf(name, sizeof name, "%.*sforward%s", (int)(place - s->kernel), s->kernel,
                 place + strlen("backward"));
        if (loam_kernel_at(kernel_find(name), &info) == LOAM_OK && strlen(name) < sizeof s->kernel &&
            kernel_lists(info.mechanisms, loam_mechanism_name((loam_mechanism)s->mechanism))) {
            memcpy(s->kernel, name, strlen(name) + 1);
            return;
        }
    }
    s->backend = kernel_on_device(s) ? LOAM_BACKEND_CUDA : s->backend;
    s->kernel[0] = '\0';
}

/* What the run on a device came to, once it is over. */
static loam_status settle(arrays *m, loam_status status, loam_error *error)
{
    const char *failed = status ? NULL : arrays_settle(m);
    if (failed) snprintf(error->text, sizeof error->text, "after the launch: %s", failed);
    return failed ? LOAM_ECUDA : status;
}

/* Fills m->saved by a forward run that asks for nothing else. */
static outcome run_forward_first(arrays *m, const values *v)
{
    outcome r = { LOAM_OK, { LOAM_OK, "" }, "" };
    values forward = *v;
    forward.spec.pass = LOAM_FORWARD;
    forward_of(&forward.spec);
    const loam_problem problem = values_problem(&forward);
    loam_plan *plan;
    const loam_status made = loam_plan_create(&plan, &problem, &r.error);
    if (made) return fail(r, made);
    arrays_saved(m, plan);
    arrays_work(m, plan);
    guard o = guard_make((size_t)slot_size(v, SLOT_O) * 8, 1);
    if (m->device) guard_to_device(&o, 1);
    loam_args args = m->args;
    const shape a = slot_shape(v, SLOT_O);
    loam_args_keep(&args, LOAM_FORWARD);
    args.o = loam_dense_out(guard_address(&o), a.heads, a.tokens, a.channels);
    r.status = settle(m, loam_run(plan, &args, &r.error), &r.error);
    guard_free(&o);
    loam_plan_destroy(plan);
    return r;
}

static outcome run_plan(arrays *m, values *v)
{
    outcome r = { LOAM_OK, { LOAM_OK, "" }, "" };
    const loam_problem problem = values_problem(v);
    loam_plan *plan;
    const loam_status made = loam_plan_create(&plan, &problem, &r.error);
    if (made) return fail(r, made);
    if (v->spec.pass == LOAM_FORWARD && !(v->spec.omit & SPEC_OMIT_SAVED)) arrays_saved(m, plan);
    arrays_work(m, plan);
    r.status = settle(m, loam_run(plan, &m->args, &r.error), &r.error);
    if (!r.status) {
        arrays_read(m, v);
        arrays_misuse(m, r.misuse, sizeof r.misuse);
    }
    loam_plan_destroy(plan);
    return r;
}

outcome run_values(values *v)
{
    arrays m;
    arrays_make(&m, v);
    outcome r = { LOAM_OK, { LOAM_OK, "" }, "" };
    if (v->spec.pass == LOAM_BACKWARD && !spec_recurrent(&v->spec)) r = run_forward_first(&m, v);
    if (!r.status) r = run_plan(&m, v);
    arrays_free(&m);
    return r;
}

void run_repeat_command(const spec *s, char *text, size_t bytes)
{
    char words[700];
    spec_print(s, words, sizeof words);
    snprintf(text, bytes, "loam-check%s%s --case '%s'", s->kernel[0] ? " -k " : "", s->kernel, words);
}
