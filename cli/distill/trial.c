/* SPDX-License-Identifier: MIT */
#include "cli/distill/trial.h"

#include "cli/lm/lm.h"

#include <math.h>
#include <stdlib.h>

/* A text and vectors of lines. */
static int open_encoder(trial *t, io_error *error)
{
    const size_t width = (size_t)lm_model_config(t->model)->width;
    const int64_t length = t->plan->choice.context;
    t->base = calloc((size_t)t->plan->window_count + 1, width * sizeof *t->base);
    t->vector = calloc(width, sizeof *t->vector);
    t->rows = calloc((size_t)length * width, sizeof *t->rows);
    if (!t->base || !t->vector || !t->rows)
        return io_fail(error, EXIT_INTERNAL, "out of memory for vectors of lines");
    return lm_text_open(&t->text, t->model, length, length, error);
}

int trial_open(trial *t, const ridge_plan *p, const lm_model *m, io_error *error)
{
    const size_t length = (size_t)p->choice.context;
    *t = (trial){ .plan = p, .model = m };
    t->inputs = calloc((size_t)p->together * length, sizeof *t->inputs);
    t->nll = calloc(length, sizeof *t->nll);
    int status = t->inputs && t->nll ? 0 : io_fail(error, EXIT_INTERNAL, "out of memory for windows");
    if (!status && p->encoder) status = open_encoder(t, error);
    if (!status && !p->encoder)
        status = scorer_open_batch(&t->scorer, m, p->together, p->choice.context, error);
    if (!status && t->scorer) t->text = scorer_text(t->scorer);
    if (status) trial_close(t);
    return status;
}

void trial_close(trial *t)
{
    for (int i = 0; i < t->count; i++)
        free(t->sums[i]);
    if (!t->scorer) lm_text_close(t->text);
    scorer_close(t->scorer);
    free(t->inputs);
    free(t->nll);
    free(t->base);
    free(t->vector);
    free(t->rows);
    *t = (trial){ 0 };
}

static int read_line(trial *t, int64_t n, io_error *error)
{
    const int64_t width = lm_model_config(t->model)->width;
    float *const base = t->base + n * width, *const vector = t->count == 1 ? base : t->vector;
    double cosine = 0;
    matrix hidden;
    ridge_inputs(t->plan, &t->plan->windows[n], t->inputs);
    lm_text_rewind(t->text, 0);
    int status = lm_text_read(t->text, t->inputs, t->plan->windows[n].at.inputs, &hidden, error);
    if (!status) status = lm_mean_row(t->model, hidden, t->rows, vector, error);
    for (int64_t c = 0; !status && c < width; c++)
        cosine += (double)base[c] * (double)vector[c];
    if (t->count > 1) t->sums[t->count - 1][n] = 1 - cosine;
    return status;
}

int64_t trial_place(const ridge_plan *p, int64_t window, int64_t i)
{
    const score_window *w = &p->windows[window].at;
    return (w->inputs - w->scored + i) * TRIAL_PLACES / p->choice.context;
}

/* hidden: of its tokens. */
static int score_window_of(trial *t, int64_t n, matrix hidden, io_error *error)
{
    const ridge_window *w = &t->plan->windows[n];
    const int status = scorer_rows(t->scorer, hidden, ridge_targets(t->plan, w), w->at.scored, t->nll, error);
    for (int64_t i = 0; !status && i < w->at.scored; i++) {
        t->sums[t->count - 1][n] += t->nll[i];
        if (t->places) t->places[n * TRIAL_PLACES + trial_place(t->plan, n, i)] += t->nll[i];
    }
    return status;
}

/* Windows of one length, side by side. */
static int read_windows(trial *t, int64_t first, int64_t count, io_error *error)
{
    const ridge_window *w = &t->plan->windows[first];
    const int64_t rows = w->at.inputs;
    matrix hidden;
    for (int64_t n = 0; n < count; n++)
        ridge_inputs(t->plan, &w[n], t->inputs + n * rows);
    lm_text_batch(t->text, count);
    int status = lm_text_read(t->text, t->inputs, count * rows, &hidden, error);
    for (int64_t n = 0; !status && n < count; n++)
        status = score_window_of(t, first + n, matrix_rows(hidden, n * rows, rows), error);
    return status;
}

int trial_run(trial *t, const char *name, const lm_options *options, void (*told)(void *to), void *to,
              io_error *error)
{
    const bool alone = t->plan->encoder || (options->window > 0 && !options->features);
    int status = lm_text_attention(t->text, options, error);
    if (status) return status;
    double *const sums = calloc((size_t)t->plan->window_count, sizeof *sums);
    if (!sums) return io_fail(error, EXIT_INTERNAL, "out of memory for values");
    t->names[t->count] = name, t->sums[t->count++] = sums;
    for (int64_t n = 0, count; !status && n < t->plan->window_count; n += count) {
        count = alone ? 1 : ridge_group(t->plan, n);
        status = t->plan->encoder ? read_line(t, n, error) : read_windows(t, n, count, error);
        for (int64_t i = 0; told && i < count; i++)
            told(to);
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
