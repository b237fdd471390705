/* SPDX-License-Identifier: MIT
 * Degrees of freedom of all heads of a model, from texts that it reads. A sink (lm/capture.h) takes a sample
 * of queries and keys of each head, and sums up the degrees of freedom of its attention. */
#ifndef LOAM_DOF_HEADS_H
#define LOAM_DOF_HEADS_H

#include "dof/degrees.h"
#include "lm/capture.h"

typedef struct dof_options {
    bool modes[DOF_MODES];
    double lambda;
    int64_t samples; /* of the queries and keys of a head, drawn without replacement by the seed */
    int64_t skip;    /* as many tokens at the head of each window are in no sample */
    uint64_t seed;
    int threads;
} dof_options;

typedef struct dof_heads dof_heads;

/* For windows of such lengths. The model must live as long. On failure *made is NULL. */
int dof_heads_open(dof_heads **made, const lm_model *m, const dof_options *options, const int64_t *lengths,
                   int64_t windows, io_error *error);
void dof_heads_close(dof_heads *h); /* NULL is allowed */

/* The next window begins: each has to, in order. */
void dof_heads_window(dof_heads *h);
lm_sink dof_heads_sink; /* its first argument is a dof_heads */

/* After all windows: what the samples tell. `told`, unless NULL, is called with `to` after each head, one
 * call at a time. */
int dof_heads_solve(dof_heads *h, void (*told)(void *to), void *to, io_error *error);

/* Of all heads, [layers][heads_q]; of a mode that was asked for. */
const dof_value *dof_heads_values(const dof_heads *h, dof_mode mode);
/* The mean of |x|^2 over the sample of each, x times the root of the scale of scores. */
const double *dof_heads_squares(const dof_heads *h);

#endif
