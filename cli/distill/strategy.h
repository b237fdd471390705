/* SPDX-License-Identifier: MIT
 * How many features each layer, or each head, has, at one total. */
#ifndef LOAM_CLI_DISTILL_STRATEGY_H
#define LOAM_CLI_DISTILL_STRATEGY_H

#include "cli/lm/lm.h"
#include "distill/training.h"
#include "dof/budget.h"

typedef enum strategy {
    STRATEGY_FIX,      /* all alike */
    STRATEGY_REL,      /* by degrees of freedom of the layer's largest head: DOF_REL */
    STRATEGY_ATTN,     /* DOF_ATTN */
    STRATEGY_HEAD,     /* DOF_ATTN, of each head */
    STRATEGY_CLIP,     /* as STRATEGY_ATTN, and at most as many as a head has channels: spends less */
    STRATEGY_MEASURED, /* by how the model predicts the calibration when one layer has features */
    STRATEGIES
} strategy;
const char *strategy_name(int index); /* NULL beyond the last */

typedef struct strategy_problem {
    strategy how;
    dof_budget budget;
    const activations *of;
    bool shared;
    /* The rest is for STRATEGY_MEASURED: the first windows of these texts are predicted, with features that
     * were trained for so many steps. */
    const lm_session *session;
    const char *calibration;
    int64_t context, windows, steps;
    training_options training;
} strategy_problem;

typedef struct shares {
    strategy how;
    int64_t heads;     /* of a layer that have features */
    int64_t *features; /* [layers] */
    int64_t *used;     /* [layers][heads] of STRATEGY_HEAD; else NULL */
    double rise;       /* of STRATEGY_MEASURED: what layers with these features lose, one at a time, in all */
} shares;

/* On failure *s is all zero. */
int strategy_share(const strategy_problem *p, shares *s, io_error *error);
void shares_close(shares *s);
/* A line, where they may differ; of heads, one for each layer. */
void shares_print(const shares *s, const activations *of);

#endif
