/* SPDX-License-Identifier: MIT
 * What a run keeps in its directory until it is done: the line of options that it is of, the checkpoint of
 * the stack at hand, and the records of each stack that is finished. */
#ifndef LOAM_CLI_TRAINING_STATE_H
#define LOAM_CLI_TRAINING_STATE_H

#include "cli/training/results.h"

enum { STATE_PATH = 4096 };

/* `line` names everything that results depend on; *drops, which is 0 where there was nothing, is what is kept
 * beside it. A directory of another line is an error. */
int training_state_open(const char *directory, const char *line, bool *found, int *drops, io_error *error);
int training_state_begin(const char *directory, const char *line, int drops, io_error *error);
/* Removes what a run of this program has left there, and the directory where nothing else is in it. */
void training_state_remove(const char *directory);

/* The place of a stack's checkpoint, and of what the probe's measurements are kept in. */
void training_state_checkpoint(const char *directory, const plan *p, plan_stack stack, char path[STATE_PATH]);
void training_state_probe(const char *directory, const plan *p, plan_stack stack, char path[STATE_PATH]);
/* Whether a stack is finished, and its records. */
bool training_state_has(const char *directory, const plan *p, plan_stack stack);
int training_state_load(const char *directory, results *r, plan_stack stack, bool *found, io_error *error);
/* Of a trainer that is finished, to `r` and to a file. */
int training_state_save(const char *directory, results *r, plan_stack stack, const trainer *t,
                        io_error *error);

#endif
