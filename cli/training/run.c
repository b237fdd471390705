/* SPDX-License-Identifier: MIT */
#include "cli/training/run.h"

#include "cli/progress.h"
#include "cli/training/state.h"
#include "train/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* Work is told in thousandths of a second. */
static const double parts = 1000;
/* Seconds that the stack at hand is given, however late it is: a run in short pieces comes to its end too. */
static const double least = 0.05;

static double seconds_left(const runner *with) { return with->seconds - (trainer_clock() - with->begun); }

/* ---- the plan */

static void tell_stack(const plan *p, plan_stack stack, const pace *at)
{
    const plan_run run = plan_run_at(p, stack.first);
    const plan_cell *cell = &p->cells[run.cell];
    const trainer_options options = plan_options(p, stack);
    const double tokens = (double)(stack.count * plan_tokens(p, cell)) / pace_step(at, p, stack);
    printf("%-14s %6" PRId64 " %7" PRId64 " %8" PRId64 " %11.3g %9.0f\n", options.row->name, cell->length,
           stack.count, options.steps, tokens, pace_left(at, p, stack, 0));
}

int runner_plan(const runner *with, const plan *p, pace *at, double *left, bool told, io_error *error)
{
    *left = 0;
    if (told)
        printf("%-14s %6s %7s %8s %11s %9s\n", "mechanism", "length", "models", "steps", "tokens/s",
               "seconds");
    for (int64_t first = 0; first < plan_runs(p);) {
        const plan_stack stack = plan_stack_at(p, first);
        first += stack.count;
        if (training_state_has(with->directory, p, stack)) continue;
        const int status = pace_measure(at, p, with->on, stack.first, error);
        if (status != EXIT_OK) return status;
        *left += pace_left(at, p, stack, 0);
        if (told) tell_stack(p, stack, at);
    }
    if (told) printf("About %.1f minutes left of training.\n\n", *left / 60);
    fflush(stdout);
    return EXIT_OK;
}

/* ---- the stacks */

typedef struct watcher {
    const runner *with;
    plan_stack stack;
    progress *bar;
    double step; /* parts of a second */
    int64_t seen;
    int status; /* of what is told of tests */
    io_error error;
} watcher;

static void tell_step(void *with, const trainer *t, bool tested)
{
    watcher *w = with;
    progress_add(w->bar, llround(w->step * (double)(t->step - w->seen)));
    w->seen = t->step;
    if (tested && w->with->tested && w->status == EXIT_OK)
        w->status = w->with->tested(w->with->with, w->stack, t, &w->error);
}

static int train_stack(const runner *with, results *r, plan_stack stack, watcher *w, bool *finished,
                       io_error *error)
{
    const plan *p = r->plan;
    const trainer_options options = plan_options(p, stack);
    char path[STATE_PATH];
    trainee each[PLAN_STACK];
    trainer t;
    loam_error cause;
    plan_trainees(p, stack, each);
    training_state_checkpoint(with->directory, p, stack, path);
    if (trainer_open(&t, with->on, &options, each, stack.count, &cause))
        return io_fail(error, EXIT_USAGE, "%s", cause.text);
    t.watch = tell_step, t.with = w;
    int status = with->opened ? with->opened(with->with, stack, &t, error) : EXIT_OK;
    if (status == EXIT_OK)
        status = checkpoint_run(&t, path, with->interval, fmax(least, seconds_left(with)), error);
    if (status == EXIT_OK && w->status != EXIT_OK) *error = w->error, status = w->status;
    *finished = trainer_finished(&t);
    if (status == EXIT_OK && *finished) status = training_state_save(with->directory, r, stack, &t, error);
    if (status == EXIT_OK && *finished && !with->keep) remove(path);
    trainer_close(&t);
    return status;
}

static int run_stack(const runner *with, const pace *at, results *r, plan_stack stack, progress *bar,
                     bool *finished, io_error *error)
{
    const int status = training_state_load(with->directory, r, stack, finished, error);
    if (status != EXIT_OK || *finished) return status;
    watcher w = { .with = with, .stack = stack, .bar = bar, .step = parts * pace_step(at, r->plan, stack) };
    return train_stack(with, r, stack, &w, finished, error);
}

int runner_run(const runner *with, const pace *at, results *r, bool *whole, io_error *error)
{
    double left = 0;
    progress bar;
    int status = EXIT_OK;
    *whole = true;
    for (int64_t first = 0; first < plan_runs(r->plan);) {
        const plan_stack stack = plan_stack_at(r->plan, first);
        left += pace_left(at, r->plan, stack, 0);
        first += stack.count;
    }
    progress_begin(&bar, "experiment", llround(parts * left));
    for (int64_t first = 0; first < plan_runs(r->plan) && status == EXIT_OK && *whole;) {
        const plan_stack stack = plan_stack_at(r->plan, first);
        status = run_stack(with, at, r, stack, &bar, whole, error);
        first += stack.count;
    }
    progress_end(&bar);
    return status;
}
