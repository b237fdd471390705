/* SPDX-License-Identifier: MIT */
#include "cli/training/pace.h"

#include <stdint.h>

enum { STEPS = 20, PART = 10 };  /* of a run at most a tenth */
static const double longest = 2; /* seconds of steps that are measured */

/* Cells of one length share theirs. */
static int slot_of(const plan *p, plan_run run)
{
    int cell = 0;
    while (p->cells[cell].length != p->cells[run.cell].length)
        cell++;
    return cell;
}

/* Steps, and what a GPU still does of them. */
static loam_status advance(trainer *t, int64_t steps, loam_error *error)
{
    float some;
    const loam_status status = trainer_advance(t, steps, longest, error);
    return status ? status : machine_download(t->on, &some, t->sums.data, sizeof some, error);
}

/* After a first step, in which memory is touched for the first time. */
static loam_status measure(trainer *t, int64_t steps, double *seconds, loam_error *error)
{
    loam_status status = advance(t, 1, error);
    const int64_t begun = t->step;
    const double before = trainer_clock();
    if (!status) status = advance(t, steps, error);
    if (status) return status;
    const double tokens = (double)((t->step - begun) * t->options.shape.models * t->options.shape.batch *
                                   source_length(&t->options.shape.from));
    *seconds = (trainer_clock() - before) / tokens;
    return LOAM_OK;
}

int pace_measure(pace *at, const plan *p, const machine *on, int64_t first, io_error *error)
{
    const plan_run run = plan_run_at(p, first);
    double *seconds = &at->token[run.mechanism][slot_of(p, run)];
    if (*seconds > 0) return EXIT_OK;
    const plan_stack stack = plan_stack_at(p, first);
    trainer_options options = plan_options(p, stack);
    trainee each[PLAN_STACK];
    trainer t;
    loam_error cause;
    plan_trainees(p, stack, each);
    const int64_t part = options.steps / PART + 1, steps = part < STEPS ? part : STEPS;
    /* No test among the steps. */
    options.steps = 10 * STEPS, options.test_every = 0;
    loam_status status = trainer_open(&t, on, &options, each, stack.count, &cause);
    if (status) return io_fail(error, EXIT_USAGE, "%s", cause.text);
    status = measure(&t, steps, seconds, &cause);
    trainer_close(&t);
    return status ? io_fail(error, EXIT_INTERNAL, "%s", cause.text) : EXIT_OK;
}

double pace_step(const pace *at, const plan *p, plan_stack stack)
{
    const plan_run run = plan_run_at(p, stack.first);
    return at->token[run.mechanism][slot_of(p, run)] *
           (double)(stack.count * plan_tokens(p, &p->cells[run.cell]));
}

double pace_left(const pace *at, const plan *p, plan_stack stack, int64_t done)
{
    return pace_step(at, p, stack) * (double)(plan_options(p, stack).steps - done);
}
