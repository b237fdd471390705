/* SPDX-License-Identifier: MIT */
#include "cli/ridge/run.h"

#include "cli/lm/lm.h"
#include "cli/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct runner {
    const ridge_runner *with;
    engine *engine;
    ridge_results *results;
    progress bar;
    double begun, saved;
    bool over, told;
    io_error *error;
} runner;

/* About proportional to the time: layers that are run, those with LLA a little longer. */
static int64_t cost_of(const ridge_plan *p, int64_t window, int arm)
{
    const int64_t layer = p->arms[arm].layer, rows = p->windows[window].at.inputs;
    const double longer = p->arms[arm].kind == ARM_LLA ? 1.5 : 1;
    return (int64_t)((double)rows * (1 + longer * (double)(p->layers - (layer < 0 ? 0 : layer))));
}

static bool is_left(const runner *run, int64_t window, int arm)
{
    const ridge_results *r = run->results;
    return ridge_has(r->plan, window, arm) && isnan(r->values[window * r->plan->arm_count + arm]);
}

static int64_t cost_left(const runner *run)
{
    const ridge_plan *p = run->results->plan;
    int64_t cost = 0;
    for (int64_t window = 0; window < p->window_count; window++)
        for (int arm = 0; arm < p->arm_count; arm++)
            if (is_left(run, window, arm)) cost += cost_of(p, window, arm);
    return cost;
}

/* Where standard error is no terminal that shows it, an estimate after the first window. */
static void tell(runner *run, int64_t left)
{
    const double seconds = lm_seconds() - run->begun;
    if (run->told || left == 0 || left == run->bar.total) return;
    run->told = true;
    printf("About %.1f minutes left.\n", seconds / 60 * (double)left / (double)(run->bar.total - left));
    fflush(stdout);
}

static int save(runner *run)
{
    const ridge_runner *with = run->with;
    run->saved = lm_seconds();
    return ridge_results_save(run->results, with->path, with->line, run->error);
}

static int run_arm(runner *run, int64_t window, int arm, bool *begun)
{
    ridge_results *r = run->results;
    const int64_t place = window * r->plan->arm_count + arm;
    const double before = lm_seconds();
    double value = 0;
    int status = *begun ? 0 : engine_begin(run->engine, window, run->error);
    *begun = true;
    if (!status) status = engine_value(run->engine, &r->plan->arms[arm], &value, run->error);
    if (!status && !isfinite(value))
        status = io_fail(run->error, EXIT_INTERNAL, "window %" PRId64 ", setting %d: the value is %g", window,
                         arm, value);
    if (status) return status;
    r->values[place] = value, r->seconds[place] = lm_seconds() - before;
    progress_add(&run->bar, cost_of(r->plan, window, arm));
    run->over = lm_seconds() - run->begun >= run->with->seconds;
    return run->over || lm_seconds() - run->saved >= run->with->interval ? save(run) : 0;
}

/* The curve first, then what is asked of layers, then of heads. */
typedef enum stage { STAGE_CURVE, STAGE_LAYERS, STAGE_HEADS, STAGES } stage;

static stage stage_of(const ridge_arm *a)
{
    return a->kind == ARM_HEAD ? STAGE_HEADS : a->kind == ARM_LAYER ? STAGE_LAYERS : STAGE_CURVE;
}

static int run_window(runner *run, int64_t window, stage at)
{
    const ridge_plan *p = run->results->plan;
    bool begun = false;
    int status = 0;
    for (int arm = 0; !status && !run->over && arm < p->arm_count; arm++)
        if (stage_of(&p->arms[arm]) == at && is_left(run, window, arm))
            status = run_arm(run, window, arm, &begun);
    if (!status && begun) tell(run, run->bar.total - run->bar.done);
    return status;
}

int ridge_run(const ridge_runner *with, engine *e, ridge_results *r, bool *whole, io_error *error)
{
    const ridge_plan *p = r->plan;
    runner run = { .with = with, .engine = e, .results = r, .error = error };
    int status = 0;
    run.begun = run.saved = lm_seconds();
    progress_begin(&run.bar, "experiment", cost_left(&run));
    for (int at = STAGE_CURVE; at < STAGES; at++)
        for (int64_t window = 0; !status && !run.over && window < p->window_count; window++)
            status = run_window(&run, window, (stage)at);
    progress_end(&run.bar);
    if (!status) status = save(&run);
    *whole = !status && cost_left(&run) == 0;
    return status;
}
