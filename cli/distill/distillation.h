/* SPDX-License-Identifier: MIT
 * What all students of a model share: queries and keys of calibration texts, and what is found from them. */
#ifndef LOAM_CLI_DISTILL_DISTILLATION_H
#define LOAM_CLI_DISTILL_DISTILLATION_H

#include "cli/distill/arms.h"
#include "cli/lm/lm.h"

enum { DISTILL_SINKS = 4 }; /* of the window */

typedef struct distillation_choice {
    const char *calibration;  /* paths with commas between */
    int64_t windows, context; /* windows of so many tokens; of an encoder lines of at most as many */
    int64_t features;         /* of a head in the mean */
    bool shared;              /* a state for the queries that share keys */
} distillation_choice;

typedef struct distillation {
    distillation_choice choice;
    const lm_session *session;
    activations of;
    int32_t *ids;       /* of the windows, one after another */
    uint64_t checksum;  /* of these */
    student calibrated; /* shift and balance of all heads; of layers 0 until one is wanted */
    double *needs[2];   /* [layers][heads_q] of DOF_REL and DOF_ATTN; NULL until they are wanted */
} distillation;

/* Is it a model that can be distilled? path: its name. */
int distillation_check(const lm_session *s, const char *path, io_error *error);
/* Reads the windows; session and choice's texts must live as long. On failure *d is all zero. */
int distillation_open(distillation *d, const lm_session *s, const distillation_choice *choice,
                      io_error *error);
void distillation_close(distillation *d);
int64_t distillation_heads(const distillation *d); /* of a layer that have features */

/* The features of an arm as they start: features [layers], used [layers][heads] or NULL. */
int distillation_begin(distillation *d, student *s, const distill_arm *arm, const int64_t *features,
                       const int64_t *used, uint64_t seed, io_error *error);
/* Degrees of freedom of all query heads, found once. */
int distillation_needs(distillation *d, dof_mode mode, uint64_t seed, const double **needs, io_error *error);

/* Tokens of a window whose keys and values are as many numbers as the states of a layer, M (d + 1) of a
 * head; at least one. */
int64_t distillation_window(const lm_config *c, const distillation_choice *choice);
/* How a text is read by an arm; features: of its student. The window is none of encoders. */
lm_options distillation_options(const distill_arm *arm, const lm_config *c, const distillation_choice *choice,
                                const lm_features *features);

#endif
