/* SPDX-License-Identifier: MIT */
#include "cli/distill/measure.h"

#include "cli/progress.h"
#include "distill/reading.h"

static void count_one(void *bar) { progress_add(bar, 1); }

int measure_arm_of(const distillation *from, trial *t, const distill_arm *arm, const student *s,
                   int64_t layer, int64_t window, io_error *error)
{
    reading r = { 0 };
    progress bar;
    int status = s ? reading_open(&r, s, &from->session->on, error) : 0;
    if (status) return status;
    lm_options options = distillation_options(arm, lm_model_config(t->model), &from->choice, r.layers);
    options.only = layer;
    if (window > 0) options.sinks = DISTILL_SINKS, options.window = window;
    progress_begin(&bar, arm->name, t->plan->window_count);
    status = trial_run(t, arm->name, &options, count_one, &bar, error);
    progress_end(&bar);
    reading_close(&r);
    return status;
}
