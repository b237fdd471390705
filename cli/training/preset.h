/* SPDX-License-Identifier: MIT
 * The plans of the experiments: a test that takes a minute, one sized for an hour's part of one GPU, and the
 * paper's (Zuo et al. 2025, section 4). */
#ifndef LOAM_CLI_TRAINING_PRESET_H
#define LOAM_CLI_TRAINING_PRESET_H

#include "cli/training/plan.h"

/* Without mechanisms and cells, which are added one by one. */
void preset_plan(plan *p, train_task task, plan_preset preset);

/* False where there are too many. */
bool preset_train(plan *p, const mixer *row);
/* The preset's own; `all`: linear attention, Parallax and MesaNet too. */
void preset_mechanisms(plan *p, bool all);

/* Of a run, but where a mechanism needs more. */
int64_t preset_steps(train_task task, plan_preset preset);

/* The lengths of regression and recall, or the places of swaps, as many as *count says. */
const int64_t *preset_lengths(train_task task, plan_preset preset, int *count);
/* S or N of a length. */
int preset_sizes(train_task task, plan_preset preset, int64_t length, int64_t *sizes);

/* Cells of one length: of a regression one for each size; of recall one that mixes the sizes, RECALL_PARTS at
 * most, or with `separate` one for each. False where there are too many. */
bool preset_add(plan *p, int64_t length, const int64_t *sizes, int count, bool fill, bool separate);

/* Leaves out what can best be spared from a plan that takes too long, and says in words what that was; NULL:
 * there is no more. */
const char *preset_drop(plan *p);

#endif
