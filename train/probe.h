/* SPDX-License-Identifier: MIT
 * What is said of Parallax's probe beside softmax, measured in the layers of a model: rows of attention
 * after a pass, and stable ranks of weights. Of any machine: what is needed of a model is brought to host
 * memory, and measured there in the machine's dtype. */
#ifndef LOAM_TRAIN_PROBE_H
#define LOAM_TRAIN_PROBE_H

#include "train/model.h"

/* Means over the rows: queries of all heads and sequences of a model. p are the weights of softmax on the
 * same scores, vbar = sum p v, and lengths are over the channels of a head. */
typedef struct probe_rows {
    double correction; /* mean |o - vbar| / mean |vbar| */
    double probe;      /* root mean square of the channels of the probe */
    double negative;   /* share of the weights p (1 - u) of visible keys that are below 0 */
    double entropy;    /* -sum p log p */
    double first;      /* p of token 0 */
    double gate;       /* on the probe; NaN where there is none */
} probe_rows;

/* Of the last pass, which ran one of the mixers softmax, Parallax and LLA. */
loam_status probe_measure(const train_model *m, int64_t model, int64_t layer, probe_rows *rows,
                          loam_error *error);

/* ranks[heads] = |W|^2 / sigma^2, Frobenius norm and largest singular value, of each head's columns of W_q,
 * W_k, W_v or W_R, or rows of W_o; 0 where these are 0, NaN where the mixer has no such array. */
loam_status probe_stable_ranks(const train_model *m, int64_t model, int64_t layer, role which, double *ranks,
                               loam_error *error);

#endif
