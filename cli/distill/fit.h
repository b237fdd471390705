/* SPDX-License-Identifier: MIT
 * A training of a student's features, from its checkpoint on and as far as the time goes. */
#ifndef LOAM_CLI_DISTILL_FIT_H
#define LOAM_CLI_DISTILL_FIT_H

#include "cli/distill/distillation.h"
#include "distill/training.h"

typedef struct fit {
    training_options options; /* threads and GPU are the session's */
    const char *path;         /* of the checkpoint; NULL: none */
    double interval;          /* seconds between checkpoints */
    double end;               /* of lm_seconds, when it stops; INFINITY: never */
    void (*told)(void *to);   /* after each step; NULL: nobody is told */
    void *to;
} fit;

/* *whole: all steps are taken; else the checkpoint has those that were. */
int fit_run(const distillation *d, student *s, const fit *f, bool *whole, io_error *error);

/* Likewise layer by layer, as many steps each, of a student that has its numbers of features alone
 * (distill/cascade.h); "cascade" as the path makes cascade-0.safetensors and so
 * on. */
int fit_cascade(const distillation *d, student *s, const fit *f, bool *whole, io_error *error);

#endif
