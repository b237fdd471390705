/* SPDX-License-Identifier: MIT
 * Multiple choice: which of several texts a model takes to be the likeliest. */
#ifndef LOAM_CLI_LM_CHOOSE_H
#define LOAM_CLI_LM_CHOOSE_H

#include "cli/lm/lm.h"

typedef struct choose_request {
    const char *path, *form, *out; /* out: NULL, or a CSV file of all sums */
    const char *subject;           /* of mmlu's questions; NULL: as the file says */
    const lm_model *other;         /* NULL, or the model with the attention to compare with */
} choose_request;

/* Prints accuracies, by sums of log p and, where choices are texts of their own, by sums over characters;
 * with another attention also what changes, question by question. */
int choose_run(lm_session *s, const choose_request *r, io_error *error);

#endif
