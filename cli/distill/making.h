/* SPDX-License-Identifier: MIT
 * The students of the experiment's cells, each from its checkpoints on and as far as the time goes. */
#ifndef LOAM_CLI_DISTILL_MAKING_H
#define LOAM_CLI_DISTILL_MAKING_H

#include "cli/distill/cells.h"
#include "cli/progress.h"

typedef struct making {
    const course *course;
    const char *directory;
    int number;           /* of the model, in the names of files */
    double interval, end; /* seconds between checkpoints; of lm_seconds, when it stops */
    distillation *from;
    cells *cells;
    shares by[COURSE_STRATEGIES];           /* as they are wanted */
    int (*keep)(void *to, io_error *error); /* what became known of `measured` */
    void *to;
    progress bar;
    bool over; /* the time is */
} making;

void making_close(making *m);

/* The numbers of features of a strategy into m->by; where m->over is set they are not there. */
int making_share(making *m, int how, io_error *error);
/* The student of a cell that has features; likewise. */
int making_student(making *m, const cell *one, student *of, io_error *error);
/* How many of the last tokens a hybrid sees exactly; 0 of other arms. */
int64_t making_window(const making *m, const distill_arm *arm);

/* Removes what a training of the cell, or of `measured`, left to go on from. */
int making_discard(const making *m, const cell *one, io_error *error);
int making_discard_measured(const making *m, io_error *error);

#endif
