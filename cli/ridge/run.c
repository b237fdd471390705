/* SPDX-License-Identifier: MIT */
#include "cli/ridge/run.h"

#include "cli/lm/lm.h"
#include "cli/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct runner {
    const ridge_runner *with;
    engine *engine;
    ridge_results *results;
    double *values; /* of a group */
    progress bar;
    double begun, saved;
    bool over, told;
    io_error *error;
} runner;

/* About proportional to the time: layers that are run, those with LLA longer. */
static int64_t cost_of(const runner *run, int64_t window, int arm)
{
    const ridge_plan *p = run->results->plan;
    const int64_t layer = p->arms[arm].layer, rows = p->windows[window].at.inputs;
    const double lla = lm_model_machine(engine_model(run->engine))->gpu ? 2.5 : 1.5;
    const double longer = p->arms[arm].kind == ARM_LLA ? lla : 1;
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
            if (is_left(run, window, arm)) cost += cost_of(run, window, arm);
    return cost;
}

/* What is left, as tokens that are read through all layers. */
static void tell_plan(const runner *run)
{
    const ridge_plan *p = run->results->plan;
    double read = 0, lla = 0;
    for (int64_t window = 0; window < p->window_count; window++)
        for (int arm = 0; arm < p->arm_count; arm++) {
            const ridge_arm *a = &p->arms[arm];
            if (!is_left(run, window, arm)) continue;
            const double share = a->layer < 0 ? 1 : (double)(p->layers - a->layer) / (double)p->layers;
            read += share * (double)p->windows[window].at.inputs;
            lla += a->kind == ARM_LLA ? (double)p->windows[window].at.inputs : 0;
        }
    if (read > 0)
        printf("To read: %.4g tokens through all layers, %.4g of them with LLA in all.\n", read, lla);
    fflush(stdout);
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

/* Windows first .. first + count - 1, a group. */
static int measure(runner *run, int64_t first, int64_t count, int arm, bool *begun)
{
    ridge_results *r = run->results;
    const int64_t arms = r->plan->arm_count;
    const double before = lm_seconds();
    int status = *begun ? 0 : engine_begin(run->engine, first, count, run->error);
    *begun = true;
    if (!status) status = engine_values(run->engine, &r->plan->arms[arm], run->values, run->error);
    for (int64_t n = 0; !status && n < count; n++)
        if (!isfinite(run->values[n]))
            status = io_fail(run->error, EXIT_INTERNAL, "window %" PRId64 ", setting %d: the value is %g",
                             first + n, arm, run->values[n]);
    const double seconds = (lm_seconds() - before) / (double)count;
    for (int64_t n = 0; !status && n < count; n++) {
        const int64_t place = (first + n) * arms + arm;
        if (is_left(run, first + n, arm)) progress_add(&run->bar, cost_of(run, first + n, arm));
        r->values[place] = run->values[n], r->seconds[place] = seconds;
    }
    return status;
}

static int run_arm(runner *run, int64_t first, int64_t count, int arm, bool *begun)
{
    const int status = measure(run, first, count, arm, begun);
    if (status) return status;
    run->over = lm_seconds() - run->begun >= run->with->seconds;
    return run->over || lm_seconds() - run->saved >= run->with->interval ? save(run) : 0;
}

/* The curve first, then what is asked of layers, then of heads. */
typedef enum stage { STAGE_CURVE, STAGE_LAYERS, STAGE_HEADS, STAGES } stage;

static stage stage_of(const ridge_arm *a)
{
    return a->kind == ARM_HEAD ? STAGE_HEADS : a->kind == ARM_LAYER ? STAGE_LAYERS : STAGE_CURVE;
}

static int run_group(runner *run, int64_t first, int64_t count, stage at)
{
    const ridge_plan *p = run->results->plan;
    bool begun = false;
    int status = 0;
    for (int arm = 0; !status && !run->over && arm < p->arm_count; arm++) {
        bool left = false;
        for (int64_t n = 0; n < count; n++)
            left |= is_left(run, first + n, arm);
        if (stage_of(&p->arms[arm]) == at && left) status = run_arm(run, first, count, arm, &begun);
    }
    if (!status && begun) tell(run, run->bar.total - run->bar.done);
    return status;
}

static int run_stage(runner *run, stage at)
{
    const ridge_plan *p = run->results->plan;
    int64_t count;
    int status = 0;
    for (int64_t first = 0; !status && !run->over && first < p->window_count; first += count) {
        count = ridge_group(p, first);
        status = run_group(run, first, count, at);
    }
    return status;
}

int ridge_run(const ridge_runner *with, engine *e, ridge_results *r, bool *whole, io_error *error)
{
    runner run = { .with = with, .engine = e, .results = r, .error = error };
    run.values = calloc((size_t)r->plan->together, sizeof *run.values);
    int status = run.values ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for values");
    run.begun = run.saved = lm_seconds();
    tell_plan(&run);
    progress_begin(&run.bar, "experiment", cost_left(&run));
    for (int at = STAGE_CURVE; !status && at < STAGES; at++)
        status = run_stage(&run, (stage)at);
    progress_end(&run.bar);
    if (!status) status = save(&run);
    *whole = !status && cost_left(&run) == 0;
    free(run.values);
    return status;
}
