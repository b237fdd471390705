/* SPDX-License-Identifier: MIT */
#include "cli/ridge/engine.h"

#include "cli/lm/lm.h"

#include <math.h>
#include <stdlib.h>

struct engine {
    const ridge_plan *plan;
    const lm_model *model;
    const machine *on;
    scorer *scorer; /* of what predicts */
    lm_text *text;  /* the scorer's, or an encoder's own */
    memory room;
    matrix stream, x; /* the residual stream at the input of layer `at` under softmax; of an arm */
    int32_t *inputs;
    double *nll;
    float *base, *vector, *fetched; /* an encoder's, [windows] of softmax, of an arm; rows in host memory */
    const ridge_window *windows;
    int64_t count;    /* windows, read side by side */
    int64_t at, rows; /* rows in `stream` */
};

static void take_all(engine *e)
{
    const lm_config *c = lm_model_config(e->model);
    const int64_t rows = e->plan->together * e->plan->choice.context;
    e->stream = memory_matrix(&e->room, e->on->dtype, 1, rows, c->width);
    e->x = memory_matrix(&e->room, e->on->dtype, 1, rows, c->width);
}

static int open_text(engine *e, io_error *error)
{
    const int64_t length = e->plan->choice.context, together = e->plan->together;
    int status = 0;
    if (e->plan->encoder) {
        status = lm_text_open_batch(&e->text, e->model, together, length, error);
    } else {
        status = scorer_open_batch(&e->scorer, e->model, together, length, error);
        if (!status) e->text = scorer_text(e->scorer);
    }
    return status;
}

int engine_open(engine **made, const ridge_plan *p, const lm_model *m, io_error *error)
{
    const size_t length = (size_t)p->choice.context, width = (size_t)lm_model_config(m)->width;
    const size_t together = (size_t)p->together;
    *made = NULL;
    engine *e = calloc(1, sizeof *e);
    if (!e) return io_fail(error, EXIT_INTERNAL, "out of memory for the experiment");
    e->plan = p, e->model = m, e->on = lm_model_machine(m);
    e->inputs = calloc(together * length, sizeof *e->inputs);
    e->nll = calloc(length, sizeof *e->nll);
    e->base = calloc(together, width * sizeof *e->base);
    e->vector = calloc(width, sizeof *e->vector);
    e->fetched = calloc(length, width * sizeof *e->fetched);
    take_all(e);
    bool there = e->inputs && e->nll && e->base && e->vector && e->fetched && memory_open(&e->room, e->on);
    if (there) take_all(e);
    const int status = there ? open_text(e, error)
                             : io_fail(error, EXIT_INTERNAL, "out of memory for windows");
    if (status)
        engine_close(e);
    else
        *made = e;
    return status;
}

void engine_close(engine *e)
{
    if (!e) return;
    if (e->scorer)
        scorer_close(e->scorer);
    else
        lm_text_close(e->text);
    memory_close(&e->room);
    free(e->inputs);
    free(e->nll);
    free(e->base);
    free(e->vector);
    free(e->fetched);
    free(e);
}

const lm_model *engine_model(const engine *e) { return e->model; }

/* ---- layers */

/* The stream of the window's first rows at the input of a layer, under softmax. */
static int advance(engine *e, int64_t layer, int64_t rows, io_error *error)
{
    const lm_options softmax = lm_options_default();
    const matrix stream = matrix_rows(e->stream, 0, rows);
    int status = 0;
    lm_text_batch(e->text, e->count);
    if (e->at < 0 || e->at > layer || e->rows != rows) {
        e->at = -1, e->rows = rows;
        status = lm_text_enter(e->text, e->inputs, rows, stream, error);
        if (!status) e->at = 0;
    }
    if (status || e->at == layer) return status;
    status = lm_text_attention(e->text, &softmax, error);
    if (!status) status = lm_text_layers(e->text, e->at, layer, stream, error);
    e->at = status ? -1 : layer;
    return status;
}

/* x: a copy of it, that layers first .. end - 1 change with this attention. */
static int branch(engine *e, const lm_options *options, int64_t first, int64_t end, int64_t rows, matrix *x,
                  io_error *error)
{
    int status = advance(e, first, rows, error);
    if (!status) status = lm_text_attention(e->text, options, error);
    if (status) return status;
    *x = matrix_rows(e->x, 0, rows);
    e->on->op->copy(e->on, *x, matrix_rows(e->stream, 0, rows));
    return lm_text_layers(e->text, first, end, *x, error);
}

/* The windows' rows, one behind the other. */
static int hidden_of(engine *e, const ridge_arm *a, matrix *hidden, io_error *error)
{
    const lm_options options = ridge_options(a);
    const int64_t first = a->layer < 0 ? 0 : a->layer, rows = e->count * e->windows->at.inputs;
    const int status = branch(e, &options, first, e->plan->layers, rows, hidden, error);
    if (!status) *hidden = lm_text_leave(e->text, *hidden);
    return status;
}

int engine_heads(engine *e, int64_t layer, double ridge, int64_t rows, lm_heads *heads, io_error *error)
{
    const ridge_arm a = { .kind = isinf(ridge) ? ARM_SOFTMAX : ARM_LLA,
                          .ridge = ridge,
                          .inverse_temperature = 1,
                          .layer = -1,
                          .head = -1 };
    const lm_options options = ridge_options(&a);
    matrix x;
    const int status = branch(e, &options, layer, layer + 1, rows, &x, error);
    if (!status) *heads = lm_text_heads(e->text, layer, rows);
    return status;
}

/* ---- values */

static matrix rows_of(const engine *e, matrix hidden, int64_t window)
{
    const int64_t rows = e->windows->at.inputs;
    return matrix_rows(hidden, window * rows, rows);
}

int engine_begin(engine *e, int64_t first, int64_t count, io_error *error)
{
    const size_t width = (size_t)lm_model_config(e->model)->width;
    matrix hidden;
    e->windows = &e->plan->windows[first], e->count = count, e->at = -1;
    for (int64_t n = 0; n < count; n++)
        ridge_inputs(e->plan, &e->windows[n], e->inputs + n * e->windows->at.inputs);
    if (!e->plan->encoder) return 0;
    int status = hidden_of(e, &e->plan->arms[0], &hidden, error);
    for (int64_t n = 0; !status && n < count; n++)
        status = lm_mean_row(e->model, rows_of(e, hidden, n), e->fetched, e->base + (size_t)n * width, error);
    return status;
}

/* Of vectors of length 1, without the cancellation of 1 - cosine. */
static double away(const engine *e, int64_t window)
{
    const int64_t width = lm_model_config(e->model)->width;
    double sum = 0;
    for (int64_t c = 0; c < width; c++) {
        const double difference = (double)e->vector[c] - (double)e->base[window * width + c];
        sum += difference * difference;
    }
    return sum / 2;
}

/* Of one window. */
static int value_of(engine *e, int64_t window, matrix hidden, double *value, io_error *error)
{
    const ridge_window *w = &e->windows[window];
    int status;
    *value = 0;
    if (e->plan->encoder) {
        status = lm_mean_row(e->model, hidden, e->fetched, e->vector, error);
        if (!status) *value = away(e, window);
        return status;
    }
    status = scorer_rows(e->scorer, hidden, ridge_targets(e->plan, w), w->at.scored, e->nll, error);
    for (int64_t i = 0; !status && i < w->at.scored; i++)
        *value += e->nll[i];
    return status;
}

int engine_values(engine *e, const ridge_arm *a, double *values, io_error *error)
{
    matrix hidden;
    int status = hidden_of(e, a, &hidden, error);
    for (int64_t n = 0; !status && n < e->count; n++)
        status = value_of(e, n, rows_of(e, hidden, n), &values[n], error);
    return status;
}
