/* SPDX-License-Identifier: MIT
 * The loop: a stack of models of one mixer and one shape, trained side by side on examples of their own. What
 * a model becomes, and what is recorded of it, does not depend on what stands beside it.
 *
 *     trainer_options options = trainer_options_default(mixer_find("lla"));
 *     options.steps = 14976, options.test_every = 468;
 *     trainee models[] = { { .seed = 1, .from = source, .rate = 5e-4 }, { .seed = 1, .from = source, ... } };
 *     trainer t;
 *     if (trainer_open(&t, &on, &options, models, 2, &error)) ...
 *     while (!trainer_finished(&t))
 *         if (trainer_advance(&t, INT64_MAX, 10, &error)) ...       for 10 seconds, or checkpoint_run
 *     ... t.tested[m] records from trainer_record(&t, m, 0) on ...
 *     trainer_close(&t);
 */
#ifndef LOAM_TRAIN_TRAINER_H
#define LOAM_TRAIN_TRAINER_H

#include "train/model.h"
#include "train/optimiser.h"

/* One model of a stack. Its source may differ from the others' in segment and noise of a regression alone. */
typedef struct trainee {
    uint64_t seed; /* of its weights and of its data */
    train_source from;
    double rate, muon_rate; /* the highest of AdamW and, with options.muon, of Muon */
} trainee;

typedef struct trainer_options {
    const mixer *row;
    mixer_options mixing;
    model_shape shape; /* but for `from` and `models`, which are the trainees' */
    int64_t steps;     /* of the schedule */
    int64_t warm;      /* steps of warm-up; 0: 1 % of them all, but at least 100 */
    /* Batches of a step, whose gradients are averaged: as one that is as many times as large, in less memory.
     * 0: one; more than one: of examples with as many answers each. */
    int64_t batches;
    int64_t test_every; /* steps from one test to the next, one follows the last step too; 0: that alone */
    double least;       /* share of the highest rate that is left in the end */
    double beta_v;      /* of AdamW; 0: 0.999 */
    double decay, clip;
    bool muon, muon_rms; /* as in optimiser_options */
    /* What names the values that arrays are given before the first step; NULL: those of the seeds. */
    const char *pretrained;
    double stop; /* a model whose accuracy has reached it is left as it is; 0: none is. Words only */
} trainer_options;

/* The paper's: 2 layers, width 128, 2 heads, batch 256, decay 0.1, clipping at 1; `steps` must be set. */
trainer_options trainer_options_default(const mixer *row);

enum { TRAIN_SOLVERS = LOAM_SOLVER_GRAM + 1 };

/* What a test finds; all of it numbers, so that a record is a row of a table. */
typedef struct train_record {
    double step;                  /* steps taken before it */
    double train_loss;            /* mean over the answers of all batches since the record before */
    double test_loss;             /* mean over the answers of all test examples */
    double part[RECALL_PARTS];    /* share of right answers by part of the source, 0 where it has none;
                                     regression: part[0] is the mean squared error */
    double error[RECALL_PARTS];   /* its standard error over the test examples */
    double gradient;              /* length of the last step's, before clipping */
    double solved[TRAIN_SOLVERS]; /* LLA: share of the rows of the test that each loam_solver solved */
    double iterations;            /* LLA: mean over these rows */
} train_record;

enum { RECORD_NUMBERS = sizeof(train_record) / sizeof(double) };

typedef struct trainer trainer;
/* Told after each step, and of the test after it; train_model is then of that step, or test. */
typedef void trainer_watch(void *with, const trainer *t, bool tested);

struct trainer {
    const machine *on;
    trainer_options options; /* its shape filled in, and `warm` */
    trainee *each;           /* [shape.models] */
    train_model *net;
    int64_t step;          /* steps taken */
    int64_t *tested;       /* [models] records, fewer of a model that stopped */
    train_record *records; /* [models][most] */
    double *times;         /* [most] ns a token of the stack, training alone, before each test */
    int64_t most;          /* records of a model that goes to the end */
    trainer_watch *watch;  /* NULL: none */
    void *with;

    /* Since the last test: sums of loss and of right answers over the training answers, and their number. */
    matrix sums, last; /* [models][1][1 or 2] */
    int64_t *answers;  /* [models] */
    double seconds;
    parameter *learned; /* the model's, with the mean gradients of a step's batches */
    optimiser opt;
    train_batch data;
    int32_t *order;              /* [models][examples] of the epoch at hand */
    int64_t epoch;               /* that `order` is of; -1: none */
    int32_t *examples;           /* [batch] of a test */
    char *host;                  /* what was read from the machine */
    bool launched;               /* a step, which then can be recorded */
    machine_recording *recorded; /* NULL: not yet, of a CPU, or of steps of several batches */
    memory room, host_room;
};

/* `on` must outlive it; the trainees are copied. On failure there is nothing to close. */
loam_status trainer_open(trainer *t, const machine *on, const trainer_options *options, const trainee *each,
                         int64_t models, loam_error *error);
void trainer_close(trainer *t);

/* Goes on until it is finished, `steps` more have been taken, or `seconds` have passed. How a run is cut
 * changes no bit of it. */
loam_status trainer_advance(trainer *t, int64_t steps, double seconds, loam_error *error);
/* Of one just opened: its step, records, sums and arrays were set to those of another with these options. */
void trainer_resume(trainer *t);
/* Seconds of a clock that never goes back. */
double trainer_clock(void);
/* All steps taken, or all models stopped. */
bool trainer_finished(const trainer *t);

const train_record *trainer_record(const trainer *t, int64_t model, int64_t test);
/* Mean over the parts of the source; of words. */
double trainer_accuracy(const trainer *t, const train_record *record);
/* It has reached options.stop. */
bool trainer_stopped(const trainer *t, int64_t model);

#endif
