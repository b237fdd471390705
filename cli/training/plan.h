/* SPDX-License-Identifier: MIT
 * What an experiment trains: a run for each mechanism, cell, learning rate and seed, and which of them stand
 * side by side. */
#ifndef LOAM_CLI_TRAINING_PLAN_H
#define LOAM_CLI_TRAINING_PLAN_H

#include "train/trainer.h"

enum { PLAN_MECHANISMS = 16, PLAN_CELLS = 32, PLAN_RATES = 8, PLAN_SEEDS = 16, PLAN_STACK = 16 };

typedef enum plan_preset { PLAN_TINY, PLAN_REDUCED, PLAN_PAPER } plan_preset;

/* What a model is trained on. */
typedef struct plan_cell {
    train_source from;
    int64_t length; /* L: without the queries of a regression; of swaps all */
    double share;   /* of the steps: 1, but for recall with a model for each number of pairs */
} plan_cell;

typedef struct plan_mechanism {
    const mixer *row;
    int64_t steps;
} plan_mechanism;

typedef struct plan {
    const char *name; /* "context" */
    train_task task;
    plan_preset preset;
    plan_mechanism mechanisms[PLAN_MECHANISMS];
    plan_cell cells[PLAN_CELLS]; /* those of one length together */
    double rates[PLAN_RATES];    /* ascending */
    uint64_t seeds[PLAN_SEEDS];
    int mechanism_count, cell_count, rate_count, seed_count;
    trainer_options options; /* of all; `row`, `steps` and `test_every` are set for each stack */
    double adamw;            /* with options.muon: its rate, as `rates` are those of Muon */
    int64_t tests;           /* of a run that goes to its end; 0: one an epoch */
    int64_t stack;           /* models side by side at most; 0: by length */
} plan;

/* Runs are numbered by mechanism, then cell, rate, seed. */
typedef struct plan_run {
    int mechanism, cell, rate, seed;
} plan_run;

int64_t plan_runs(const plan *p);
plan_run plan_run_at(const plan *p, int64_t number);
int64_t plan_run_number(const plan *p, plan_run run);

/* Neighbouring runs of one mechanism whose shapes agree. */
typedef struct plan_stack {
    int64_t first, count; /* runs */
} plan_stack;

/* The stack that begins with this run. */
plan_stack plan_stack_at(const plan *p, int64_t first);
/* Options and models of a stack; each: [PLAN_STACK]. */
trainer_options plan_options(const plan *p, plan_stack stack);
void plan_trainees(const plan *p, plan_stack stack, trainee *each);
/* "lla-L128-0": the mechanism, the length and the number of the first run. */
void plan_stack_name(const plan *p, plan_stack stack, char name[64]);

int64_t plan_tokens(const plan *p, const plan_cell *cell); /* of a step of one model */
int64_t plan_steps(const plan *p, int mechanism, int cell);
int plan_parts(const plan *p, const plan_cell *cell);
/* S of a regression, N of the others. */
int64_t plan_size(const plan *p, const plan_cell *cell, int part);

#endif
