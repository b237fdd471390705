/* SPDX-License-Identifier: MIT
 * Students layer by layer, each fitted to the queries and keys that the model makes with the students of the
 * layers before it. */
#ifndef LOAM_DISTILL_CASCADE_H
#define LOAM_DISTILL_CASCADE_H

#include "distill/student.h"

typedef struct cascade {
    const lm_model *model;
    const int32_t *ids;
    lm_text *text;
    memory room;
    matrix stream, x; /* what enters the layer, of all windows; of one window */
    student *s;
    int64_t layer; /* whose turn it is; s->layers: of none */
    /* The student's layer, and its queries and keys, as of a model of one layer. */
    student one;
    activations at;
} cascade;

/* Of windows like those of `shape`, whose ids follow each other. Model, student and ids must live as long,
 * and layers of s have features. On failure *c is all zero. */
int cascade_open(cascade *c, const lm_model *m, student *s, const activations *shape, const int32_t *ids,
                 io_error *error);
void cascade_close(cascade *c);

/* Fills c->at; then c->one is calibrated, begun and trained like any student. */
int cascade_look(cascade *c, io_error *error);
/* The windows pass the layer by c->one, and it is the turn of the next. */
int cascade_pass(cascade *c, io_error *error);

#endif
