/* SPDX-License-Identifier: MIT
 * Training through a pretrained model, or a student: what moves, by what loss, and which state is kept. */
#ifndef LOAM_CLI_TUNE_RUN_H
#define LOAM_CLI_TUNE_RUN_H

#include "cli/graft/plan.h"

/* z and log alpha of a student's features; A and B beside W_q, W_k, W_v and W_o; both; all that can move. */
typedef enum tune_kind { TUNE_FEATURES, TUNE_LORA, TUNE_BOTH, TUNE_ALL } tune_kind;
enum { TUNE_KINDS = TUNE_ALL + 1 };
/* "features"; NULL beyond the last. */
const char *tune_name(int kind);
/* Do features move, and do weights? */
bool tune_has_features(tune_kind kind);
bool tune_has_weights(tune_kind kind);
double tune_usual_rate(tune_kind kind);

typedef struct tune_choice {
    tune_kind kind;
    int64_t steps, warm, every, batch, piece, rank, seed;
    double rate, weight; /* the highest of AdamW; of the divergence from the teacher */
} tune_choice;

typedef struct tune_request {
    tune_choice choice;
    const machine *on;
    const graft_plan *texts;
    const lm_files *files, *teacher; /* NULL: none */
    const char *from;                /* what names both in checkpoints */
    const char *directory;           /* of the checkpoint and of the best state */
    double interval, seconds;        /* between checkpoints; of all */
    bool restart;                    /* what is there is discarded */
    bool quiet;                      /* losses on the way are not printed */
} tune_request;

/* Means over the tokens that are held out: -log p, and the divergence from the teacher, 0 without one. */
typedef struct tune_loss {
    double nll, divergence;
} tune_loss;

typedef struct tune_run {
    const tune_request *as;
    trainer t;
    train_model *teacher;
    tune_loss start, end;
    int64_t kept; /* the step of the state that is kept: of those that were tested the best, 0: the start */
    int status;   /* of what is kept on the way */
    io_error *error;
} tune_run;

/* A trainer with the model's arrays, taught, and its loss as it is. On failure there is nothing to close. */
int tune_open(tune_run *r, const tune_request *as, io_error *error);
void tune_close(tune_run *r);
/* Trains from the checkpoint on, where there is one, until all steps are taken, or the time is over. Then the
 * trainer has what is kept. *finished: all steps were taken. */
int tune_train(tune_run *r, bool *finished);
/* Weighted as it was trained by. */
double tune_total(const tune_run *r, tune_loss loss);
/* Seconds a step, tests left out, since the start of the run. */
double tune_step_seconds(const tune_run *r);
/* Removes checkpoint and best state. */
void tune_discard(const tune_request *as);

#endif
