/* SPDX-License-Identifier: MIT */
#include "cli/distill/fit.h"

#include "cli/lm/lm.h"
#include "distill/checkpoint.h"

/* Saved are whole steps: what a checkpoint has does not depend on when it was written. */
static int run_steps(training *t, const fit *f, io_error *error)
{
    double saved = lm_seconds();
    int status = 0;
    while (!status && training_taken(t) < t->options.steps && lm_seconds() < f->end) {
        training_step(t);
        if (f->told) f->told(f->to);
        if (!f->path || lm_seconds() - saved < f->interval) continue;
        status = training_save(t, f->path, error);
        saved = lm_seconds();
    }
    return status ? status : training_fetch(t, error);
}

int fit_run(const distillation *d, student *s, const fit *f, bool *whole, io_error *error)
{
    const machine *on = &d->session->on;
    training_options options = f->options;
    training t = { 0 };
    bool found = false;
    options.threads = on->threads, options.gpu = on->gpu ? on : NULL;
    int status = training_open(&t, s, &d->of, &options, error);
    if (status) return status;
    if (f->path) status = training_load(&t, f->path, &found, error);
    const int64_t from = training_taken(&t);
    for (int64_t i = 0; !status && f->told && i < from; i++)
        f->told(f->to);
    if (!status) status = run_steps(&t, f, error);
    *whole = !status && training_taken(&t) == options.steps;
    if (!status && f->path && training_taken(&t) > from) status = training_save(&t, f->path, error);
    training_close(&t);
    return status;
}
