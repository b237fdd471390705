/* SPDX-License-Identifier: MIT
 * The first order of LLA in one over the ridge, at the outputs of a model's attention:
 *   o_i = vbar_i + X_i (q_i - kbar_i) / ridge + O(ridge^-2)
 *   X_i = sum_j p_ij (v_j - vbar_i)(k_j - kbar_i)^T */
#ifndef LOAM_CLI_RIDGE_LAW_H
#define LOAM_CLI_RIDGE_LAW_H

#include "cli/ridge/engine.h"

enum { LAW_RIDGES = 3 };
extern const double law_ridges[LAW_RIDGES]; /* 1e4 first */

/* For each layer and ridge the norm of what the law leaves over what it says, ridge (o - vbar) against
 * X (q - kbar); [layers + 1][LAW_RIDGES], last those of all layers together. Of the first window. */
int law_measure(engine *e, const ridge_plan *p, double (*ratios)[LAW_RIDGES], io_error *error);

/* vbar and X (q - kbar), [dim] each, of query q with n keys and values, whose rows are `stride` apart; scale
 * is that of the scores. weights: room for n. */
void law_row(const float *q, const float *k, const float *v, int64_t n, int64_t stride, int64_t dim,
             double scale, double *weights, double *vbar, double *first);

#endif
