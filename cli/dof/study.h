/* SPDX-License-Identifier: MIT
 * What degrees of freedom say about a model: needs of layers, numbers of features by each strategy. */
#ifndef LOAM_CLI_DOF_STUDY_H
#define LOAM_CLI_DOF_STUDY_H

#include "dof/budget.h"
#include "dof/heads.h"

typedef struct study_mode {
    const dof_value *heads; /* [layers][heads_q] */
    double *needs;          /* [layers][heads_q] as plain numbers */
    double *layers;         /* the largest of a layer's heads */
    /* Features of a head: of each layer alike, cut to the head's channels, and each on its own. */
    int64_t *by_layer, *clipped, *by_head;
    double least, median, most;
    int64_t grows, large; /* heads whose half is off by more than a fifth; with more than a quarter of `of` */
} study_mode;

typedef struct study {
    const lm_config *config;
    dof_options options;
    dof_budget budget;
    const char *model, *lambda; /* as they were given */
    int64_t texts, windows, context, tokens;
    int64_t layers, per_layer, heads;
    study_mode modes[DOF_MODES];
    double rho[DOF_MODES][DOF_MODES]; /* rank correlation over heads */
    double squares[3];                /* quartiles of the mean |x|^2 of heads */
    bool sampled;
} study;

/* The other members are set; what the texts told is in `h`. On failure too it needs study_close. */
int study_fill(study *s, const dof_heads *h, io_error *error);
void study_close(study *s);

/* Numbers in memory for each text: of each head, features times one more than its channels. */
int64_t study_state(const study *s, const int64_t *of_layers, const int64_t *of_heads);

#endif
