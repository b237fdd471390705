/* SPDX-License-Identifier: MIT
 * Softmax over a text's first tokens, its sinks, and the last ones before each query: each query is a
 * sequence of its own, with the keys and values that it sees side by side. */
#ifndef LOAM_LM_WINDOW_H
#define LOAM_LM_WINDOW_H

#include "lm/model.h"

/* Room for texts of one length; all zero before the first. */
typedef struct window_room {
    memory room;
    matrix k, v;     /* [tokens][seen][heads_kv head_dim] */
    int64_t *counts; /* [tokens]: keys in use */
    loam_plan *plan;
    void *work;
    int64_t tokens, seen;
    double scale;
} window_room;

/* o of the rows of q, k and v, a whole text in heads of d, by o->sinks and o->window. */
int window_attend(window_room *w, const machine *on, const lm_options *options, int64_t d, double scale,
                  matrix o, matrix q, matrix k, matrix v, io_error *error);
void window_close(window_room *w, const machine *on);

#endif
