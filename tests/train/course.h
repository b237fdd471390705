/* SPDX-License-Identifier: MIT
 * Short courses of training for the tests of the trainer and its checkpoints. */
#ifndef LOAM_TESTS_TRAIN_COURSE_H
#define LOAM_TESTS_TRAIN_COURSE_H

#include "train/trainer.h"

enum { COURSE_MODELS = 3 };

/* A stack, and how it is trained: 11 steps of 2 or 3 an epoch, a test after every 4 and the last. */
typedef struct course {
    machine on;
    trainer_options options;
    trainee each[COURSE_MODELS];
    int64_t models;
} course;

/* Recall of two parts, 12 tokens, 7 test examples for a batch of 4; models of other seeds and rates. */
course course_recall(const char *name, int64_t models);
/* Regression of 8 pairs, 5 test examples; models of other segments and seeds. */
course course_regression(const char *name, int64_t models);
/* Windows of 16 letters of a text, 5 in the test; models of other seeds and rates. */
course course_text(const char *name, int64_t models);
/* Recall that model 0 learns, so that it stops by itself at a test before the last of 120 steps, and that
 * model 1 does not. */
course course_stopping(void);
/* Model m of a course alone. */
course course_alone(const course *all, int64_t m);

/* Ends the test where it fails. */
void course_open(trainer *t, const course *c);
/* `steps` more, or all that are left. */
void course_advance(trainer *t, int64_t steps);
/* Ends the test where model a of t and model b of other do not have the same records and parameters, to the
 * bit; with `moments` these too. */
void course_same(const char *what, const trainer *t, int64_t a, const trainer *other, int64_t b,
                 bool moments);

#endif
