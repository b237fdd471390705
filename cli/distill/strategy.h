/* SPDX-License-Identifier: MIT
 * How many features each layer, or each head, has, at one total. */
#ifndef LOAM_CLI_DISTILL_STRATEGY_H
#define LOAM_CLI_DISTILL_STRATEGY_H

#include "cli/distill/fit.h"
#include "dof/budget.h"

/* A row of the table of strategies. */
typedef struct strategy strategy;
const strategy *strategy_at(int index); /* NULL beyond the last */
const char *strategy_name(int index);   /* NULL beyond the last */

enum { STRATEGY_POINTS = 6 }; /* numbers of features that are measured: a unit, then twice as many each */

/* What is measured, and where it is kept in between. */
typedef struct strategy_measured {
    int64_t windows; /* the first of the calibration, which are predicted */
    /* How features are trained before; options.steps may be 0. path: what names of checkpoints begin with. */
    fit fit;
    double *rises; /* [layers][STRATEGY_POINTS] of -log p; NaN: not yet known */
    /* Called when some became known; NULL: nothing is kept. */
    int (*keep)(void *to, io_error *error);
    void *to;
} strategy_measured;

typedef struct strategy_problem {
    const strategy *how;
    dof_budget budget;
    distillation *from;
    uint64_t seed;
    strategy_measured measured; /* of the strategy that measures */
} strategy_problem;

typedef struct shares {
    int64_t heads;     /* of a layer that have features */
    bool alike;        /* all have the same */
    int64_t *features; /* [layers] */
    int64_t *used;     /* [layers][heads] where heads of a layer differ; else NULL */
    double rise;       /* what layers with these features lose, one at a time, in all; NaN: not measured */
} shares;

/* *whole: the time was enough; else *s is all zero, as on failure. */
int strategy_share(const strategy_problem *p, shares *s, bool *whole, io_error *error);
void shares_close(shares *s);
/* A line, where they may differ; of heads, one for each layer. */
void shares_print(const shares *s, int64_t layers);

#endif
