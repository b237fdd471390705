/* SPDX-License-Identifier: MIT */
#include "cli/distill/trial.h"

#include <math.h>
#include <stdlib.h>

int trial_open(trial *t, const ridge_plan *p, const lm_model *m, io_error *error)
{
    const size_t length = (size_t)p->choice.context;
    *t = (trial){ .plan = p };
    t->inputs = calloc(length, sizeof *t->inputs);
    t->nll = calloc(length, sizeof *t->nll);
    const int status = t->inputs && t->nll ? scorer_open(&t->scorer, m, p->choice.context, error)
                                           : io_fail(error, EXIT_INTERNAL, "out of memory for windows");
    if (status) trial_close(t);
    return status;
}

void trial_close(trial *t)
{
    for (int i = 0; i < t->count; i++)
        free(t->sums[i]);
    scorer_close(t->scorer);
    free(t->inputs);
    free(t->nll);
    *t = (trial){ 0 };
}

static int read_window(trial *t, int64_t n, io_error *error)
{
    const ridge_window *w = &t->plan->windows[n];
    ridge_inputs(t->plan, w, t->inputs);
    const int status = scorer_run(t->scorer, t->inputs, w->at.inputs, ridge_targets(t->plan, w), w->at.scored,
                                  t->nll, error);
    for (int64_t i = 0; !status && i < w->at.scored; i++)
        t->sums[t->count - 1][n] += t->nll[i];
    return status;
}

int trial_run(trial *t, const char *name, const lm_options *options, void (*told)(void *to), void *to,
              io_error *error)
{
    int status = lm_text_attention(scorer_text(t->scorer), options, error);
    if (status) return status;
    double *const sums = calloc((size_t)t->plan->window_count, sizeof *sums);
    if (!sums) return io_fail(error, EXIT_INTERNAL, "out of memory for values");
    t->names[t->count] = name, t->sums[t->count++] = sums;
    for (int64_t n = 0; !status && n < t->plan->window_count; n++) {
        status = read_window(t, n, error);
        if (told) told(to);
    }
    return status;
}

void trial_drop(trial *t) { free(t->sums[--t->count]); }

/* Of the ratio of sums over windows: windows with more tokens weigh more. */
trial_value trial_value_of(const trial *t, int arm)
{
    const int64_t windows = t->plan->window_count;
    double sum = 0, more = 0, count = 0, squares = 0;
    for (int64_t n = 0; n < windows; n++) {
        sum += t->sums[arm][n], more += t->sums[arm][n] - t->sums[0][n];
        count += (double)t->plan->windows[n].at.scored;
    }
    for (int64_t n = 0; n < windows; n++)
        squares += pow(t->sums[arm][n] - t->sums[0][n] - more / count * (double)t->plan->windows[n].at.scored,
                       2);
    const double error = sqrt(squares * (double)windows / (double)(windows - 1)) / count;
    return (trial_value){ sum / count, more / count, windows > 1 ? error : NAN };
}
