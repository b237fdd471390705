/* SPDX-License-Identifier: MIT
 * The two estimators of the task that loam.h does not have yet, for one causal sequence whose queries are
 * its keys, in float64. */
#ifndef LOAM_CLI_EXPERIMENT_BASELINES_H
#define LOAM_CLI_EXPERIMENT_BASELINES_H

#include <stddef.h>
#include <stdint.h>

typedef struct baseline_sequence {
    const double *keys, *values; /* [length, dim] */
    int64_t length, dim;
    int hidden; /* 1: position i sees the pairs before i only; 0: its own pair too */
} baseline_sequence;

/* Doubles of scratch that either needs. */
size_t baseline_scratch(int64_t dim);

/* Linear attention: o_i = (sum_j v_j k_j^T) q_i / n, with n the number of pairs seen; 0 where n is 0. */
void baseline_linear(const baseline_sequence *in, double *outputs, double *scratch);

/* MesaNet: o_i = (sum_j v_j k_j^T) (sum_j k_j k_j^T + ridge I)^-1 q_i, ridge > 0. */
void baseline_mesa(const baseline_sequence *in, double ridge, double *outputs, double *scratch);

#endif
