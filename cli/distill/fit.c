/* SPDX-License-Identifier: MIT */
#include "cli/distill/fit.h"

#include "cli/lm/lm.h"
#include "distill/cascade.h"
#include "distill/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>

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

static int run(const machine *on, const activations *of, student *s, const fit *f, bool *whole,
               io_error *error)
{
    training_options options = f->options;
    training t = { 0 };
    bool found = false;
    options.threads = on->threads, options.gpu = on->gpu ? on : NULL;
    int status = training_open(&t, s, of, &options, error);
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

int fit_run(const distillation *d, student *s, const fit *f, bool *whole, io_error *error)
{
    return run(&d->session->on, &d->of, s, f, whole, error);
}

/* ---- a cascade */

static int fit_layer(const machine *on, cascade *c, const fit *f, bool *whole, io_error *error)
{
    /* Layers draw for themselves: each is the first of a student of its own. */
    const uint64_t seed = f->options.seed + ((uint64_t)c->layer << 32);
    char path[4096];
    fit its = *f;
    if (f->path)
        snprintf(path, sizeof path, "%s-%" PRId64 ".safetensors", f->path, c->layer), its.path = path;
    int status = cascade_look(c, error);
    if (!status) status = student_calibrate(&c->one, &c->at, true, on->threads, error);
    if (!status) status = student_begin(&c->one, &c->at, STUDENT_PAIRS, seed, on->threads, error);
    if (!status) status = run(on, &c->at, &c->one, &its, whole, error);
    return !status && *whole ? cascade_pass(c, error) : status;
}

int fit_cascade(const distillation *d, student *s, const fit *f, bool *whole, io_error *error)
{
    cascade c;
    int status = cascade_open(&c, d->session->model, s, &d->of, d->ids, error);
    *whole = !status;
    while (!status && *whole && c.layer < s->layers)
        status = fit_layer(&d->session->on, &c, f, whole, error);
    cascade_close(&c);
    *whole = !status && *whole;
    return status;
}
