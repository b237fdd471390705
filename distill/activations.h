/* SPDX-License-Identifier: MIT
 * Queries and keys of every layer and head of a model, of windows that it reads. */
#ifndef LOAM_DISTILL_ACTIVATIONS_H
#define LOAM_DISTILL_ACTIVATIONS_H

#include "dof/degrees.h"
#include "lm/capture.h"

typedef struct activations {
    int64_t layers, heads_q, heads_kv, channels;
    int64_t windows, tokens; /* of the longest */
    int64_t *begins;         /* [windows + 1]: the first row of each, and all rows */
    bool causal;
    double *scale; /* [layers]: of scores */
    /* [layers], each [rows][heads][channels], window after window, after bias and rotation. */
    float **q, **k;
} activations;

/* Reads `windows` texts, rows of ids [windows][tokens]. `read`, unless NULL, is called with `to` after each.
 * On failure *a is all zero. */
int activations_open(activations *a, const lm_model *m, const int32_t *ids, int64_t windows, int64_t tokens,
                     void (*read)(void *to), void *to, io_error *error);
/* Likewise of texts of any lengths [windows], whose ids follow each other. */
int activations_open_texts(activations *a, const lm_model *m, const int32_t *ids, const int64_t *lengths,
                           int64_t windows, void (*read)(void *to), void *to, io_error *error);
void activations_close(activations *a);

/* Are all windows of one length? */
bool activations_even(const activations *a);

/* A window of a query head, with the keys that it reads. */
dof_text activations_text(const activations *a, int64_t layer, int64_t head, int64_t window);

#endif
