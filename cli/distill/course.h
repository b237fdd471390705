/* SPDX-License-Identifier: MIT
 * What the experiment on distillation does with a model, from its options. */
#ifndef LOAM_CLI_DISTILL_COURSE_H
#define LOAM_CLI_DISTILL_COURSE_H

#include "cli/distill/strategy.h"
#include "cli/experiment/options.h"

enum { COURSE_STRATEGIES = 8, COURSE_LOSSES = 3, COURSE_LINE = 1024 };

/* Students by the softmax loss: each strategy's; beside windows, Fix, in the memory of Fix; Fix again, one
 * layer after the other and through the model, of the first seed. */
typedef enum course_student {
    COURSE_TRAINED,
    COURSE_HYBRID,
    COURSE_CASCADE,
    COURSE_DIRECT,
    COURSE_STUDENTS
} course_student;

typedef struct course {
    const char *calibration, *texts;    /* paths with commas between */
    bool strategies[COURSE_STRATEGIES]; /* by their places in the table; all are trained by softmax.. */
    bool losses[COURSE_LOSSES];         /* ..and the first also by these */
    bool students[COURSE_STUDENTS];
    number_list seeds;                /* the first also shares features out */
    int64_t context, tokens, windows; /* of the calibration so many windows */
    int64_t measured_windows, measured_steps;
    int64_t direct_steps;      /* through the model */
    training_options training; /* steps, batch and rates */
    dof_budget budget;
} course;

/* "softmax", "l2row", "l2": as feature_loss_kind; NULL beyond the last */
const char *course_loss(int index);
/* "trained", "hybrid", "cascade", "direct"; NULL beyond the last */
const char *course_student_name(int index);
/* Numbers that are 0, or steps below 0, become those of the reduced experiment, or of the tiny one. */
void course_fill(course *c, bool reduced);
/* Of models but the first: Fix and the two degrees of freedom, by the softmax loss, of the first seed. */
course course_brief(const course *c);
/* Of an encoder, heads of so many channels: lines in the place of windows, as many features as channels, and
 * no students beside windows or through the model. */
course course_of_encoder(const course *c, int64_t channels);
/* All that a cell depends on but model, texts' tokens and machine. */
void course_describe(const course *c, char line[COURSE_LINE]);

#endif
