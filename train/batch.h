/* SPDX-License-Identifier: MIT
 * Batches: examples of a task as the arrays that a model takes. */
#ifndef LOAM_TRAIN_BATCH_H
#define LOAM_TRAIN_BATCH_H

#include "train/data.h"
#include "train/machine.h"

enum { RECALL_PARTS = 3 };

/* A task with its shape. Of recall, examples come in parts with different numbers of pairs: first `examples`
 * of part 0, then those of part 1, ... All else is part 0. */
typedef struct train_source {
    train_task task;
    regression_shape regression; /* `noise` is that of training: tests have none */
    swaps_shape swaps;
    recall_shape recall; /* `pairs` is each part's */
    text_shape text;     /* its tokens must live as long */
    struct {
        int64_t pairs, examples[2]; /* of each train_split */
    } part[RECALL_PARTS];           /* unused ones have no examples */
} train_source;

int64_t source_length(const train_source *from);  /* tokens of an example */
int64_t source_answers(const train_source *from); /* targets of an example, at most */
/* How many words there are; 0: rows of real numbers. */
int64_t source_words(const train_source *from);
int64_t source_examples(const train_source *from, train_split split);
/* The part that an example lies in, and the targets of an example of a part. */
int source_part(const train_source *from, train_split split, int64_t example);
int64_t source_part_answers(const train_source *from, int part);

/* Whose examples a model has. */
typedef struct batch_request {
    uint64_t seed;
    int64_t segment; /* of regression */
    double noise;    /* likewise */
    int64_t split;
} batch_request;

/* What a step is made from. Arrays are [models][size * ...]; each example has as many places for answers as
 * any, so that shapes, and with them the order of sums, do not depend on the data. */
typedef struct batch_arrays {
    int64_t *counts;         /* [models] answers that are */
    batch_request *requests; /* [models]; of a GPU, which makes all that follows from them */
    int32_t *examples;       /* [size] */
    int32_t *tokens;         /* [size * length]; words */
    int32_t *at;             /* [size * answers] rows of the batch, -1: none */
    int32_t *targets;        /* [size * answers] words, -1: none */
    matrix x;                /* [size * length][dim_x + dim_y]; regression */
    matrix y;                /* [size * answers][dim_y]; regression */
} batch_arrays;

typedef struct train_batch {
    const machine *on;
    train_source from;
    int64_t models, size;
    batch_arrays there; /* in the machine's memory */
    batch_arrays here;  /* in host memory; of a CPU the same, of a GPU counts, requests and examples alone,
                           and where it makes no examples the tokens and what follows them */
    char *scratch;      /* of each thread */
    int64_t scratch_bytes;
    size_t sent;      /* bytes of what a GPU is told, from the counts on */
    int64_t segments; /* the most that a model asked for */
    memory room, host;
} train_batch;

/* False where memory runs out. `on` must outlive it. */
bool batch_open(train_batch *b, const machine *on, const train_source *from, int64_t models, int64_t size);
void batch_close(train_batch *b);
/* Once every model has been given examples: they are in the machine's memory when it gets there. */
void batch_send(train_batch *b);
/* Gives a model the examples[0 .. size - 1] of a seed, from a source as long and as wide as b->from. */
void batch_fill(train_batch *b, int64_t model, const train_source *from, uint64_t seed, train_split split,
                const int32_t *examples);

#endif
