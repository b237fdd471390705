/* SPDX-License-Identifier: MIT
 * Reads windows with any attention. Layers below the one that an attention changes are run once. */
#ifndef LOAM_CLI_RIDGE_ENGINE_H
#define LOAM_CLI_RIDGE_ENGINE_H

#include "cli/ridge/plan.h"

typedef struct engine engine;

/* Plan and model must live as long. On failure *made is NULL. */
int engine_open(engine **made, const ridge_plan *p, const lm_model *m, io_error *error);
void engine_close(engine *e); /* NULL is allowed */
const lm_model *engine_model(const engine *e);

/* The windows that the next calls are about: at most a group (ridge_group). */
int engine_begin(engine *e, int64_t first, int64_t count, io_error *error);
/* Of each the sum of -log p over what it scores; of an encoder 1 less the cosine to the vector under
 * softmax. Arms of layers are cheapest in the order of layers. */
int engine_values(engine *e, const ridge_arm *a, double *values, io_error *error);

/* What one layer's attention has and makes of the first rows of the window, where softmax is in those below
 * it, under LLA with this ridge; INFINITY: softmax. Valid until the next call. */
int engine_heads(engine *e, int64_t layer, double ridge, int64_t rows, lm_heads *heads, io_error *error);

#endif
