/* SPDX-License-Identifier: MIT */
#include "lm/capture.h"

#include <stdlib.h>

struct lm_capture {
    const lm_model *model;
    lm_text *text;
    memory room;
    matrix x; /* the residual stream, [1][length][width] */
};

static void take_stream(lm_capture *c, int64_t length)
{
    const machine *on = lm_model_machine(c->model);
    c->x = memory_matrix(&c->room, on->dtype, 1, length, lm_model_config(c->model)->width);
}

int lm_capture_open(lm_capture **made, const lm_model *m, int64_t length, io_error *error)
{
    *made = NULL;
    lm_capture *c = calloc(1, sizeof *c);
    if (!c) return io_fail(error, EXIT_INTERNAL, "out of memory for queries and keys");
    c->model = m;
    int status = lm_text_open(&c->text, m, length, length, error);
    if (!status) take_stream(c, length);
    if (!status && !memory_open(&c->room, lm_model_machine(m)))
        status = io_fail(error, EXIT_INTERNAL, "out of memory for windows of %lld tokens", (long long)length);
    if (!status) take_stream(c, length);
    if (status)
        lm_capture_close(c);
    else
        *made = c;
    return status;
}

void lm_capture_close(lm_capture *c)
{
    if (!c) return;
    lm_text_close(c->text);
    memory_close(&c->room);
    free(c);
}

int lm_capture_read(lm_capture *c, const int32_t *tokens, int64_t count, lm_sink *sink, void *to,
                    io_error *error)
{
    const int64_t layers = lm_model_config(c->model)->layers;
    const matrix x = matrix_rows(c->x, 0, count);
    /* No window leaves the layers: the text is empty for the next one. */
    int status = lm_text_enter(c->text, tokens, count, x, error);
    for (int64_t layer = 0; !status && layer < layers; layer++) {
        status = lm_text_layers(c->text, layer, layer + 1, x, error);
        if (status) break;
        const lm_heads heads = lm_text_heads(c->text, layer, count);
        status = sink(to, layer, &heads, error);
    }
    return status;
}
