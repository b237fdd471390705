/* SPDX-License-Identifier: MIT
 * The data of the trained experiments, example by example. An example is a function of (seed, split, its
 * number) and of the shape of its task; the mechanism, the learning rate and the batch have no part in it. */
#ifndef LOAM_TRAIN_DATA_H
#define LOAM_TRAIN_DATA_H

#include "random/random.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum train_task {
    TRAIN_REGRESSION = 1,
    TRAIN_RECALL,
    TRAIN_SWAPS,
    TRAIN_WEIGHTS,
    TRAIN_TEXT
} train_task;
typedef enum train_split { TRAIN_SPLIT_TRAIN, TRAIN_SPLIT_TEST } train_split;

/* The random numbers of one purpose in one example: no shape is part of it, so that cells of an experiment
 * share theirs. */
random_stream train_stream(uint64_t seed, train_task task, train_split split, int purpose, int64_t example);

/* order[0 .. n - 1]: the training examples 0 .. n - 1 as this epoch has them, Fisher-Yates from the end. */
void train_epoch_order(uint64_t seed, train_task task, int64_t epoch, int64_t n, int32_t *order);

/* ---- regression in context: pairs (k, A_c k + noise) of segments c, shuffled, then queries */

typedef struct regression_shape {
    int64_t length, segment; /* segment 2^m = length, m <= dim_x */
    int64_t dim_x, dim_y, queries;
    double noise; /* standard deviation on the values of the context; the targets have none */
} regression_shape;

/* Bytes of scratch of regression_example. */
int64_t regression_scratch(const regression_shape *shape);
/* x: [length + queries][dim_x + dim_y], pairs side by side, queries with zeros for y; y: [queries][dim_y]. */
void regression_example(const regression_shape *shape, uint64_t seed, train_split split, int64_t example,
                        double *x, double *y, void *scratch);

/* ---- associative recall: k1 v1 k2 v2 ..., then each key once more among other words */

typedef struct recall_shape {
    int64_t length, pairs; /* length even, 4 pairs <= length */
    int64_t words;         /* keys are 1 .. words / 2 - 1, values words / 2 .. words - 1 */
    bool fill;             /* random words between; else word 0 */
} recall_shape;

int64_t recall_scratch(const recall_shape *shape);
/* tokens: [length]; at, target: [pairs], the positions of the keys asked for and their values. */
void recall_example(const recall_shape *shape, uint64_t seed, train_split split, int64_t example,
                    int32_t *tokens, int32_t *at, int32_t *target, void *scratch);

/* ---- text: windows of a corpus, in which each token predicts the next */

/* Training examples are windows drawn from (seed, example) anywhere in the training text; the test has its
 * text in windows one after another. */
typedef struct text_shape {
    int64_t length, words;     /* tokens of a window; tokens are below `words` */
    const uint16_t *tokens[2]; /* of each train_split */
    int64_t count[2];          /* > length, where there are examples */
    uint64_t sum;              /* of the tokens: tells texts apart */
} text_shape;

/* How many windows the test has. */
int64_t text_windows(const text_shape *shape);
/* tokens, target: [length]. */
void text_example(const text_shape *shape, uint64_t seed, train_split split, int64_t example, int32_t *tokens,
                  int32_t *target);

/* ---- swaps: p1 = a1 , ... # i1 j1 , ... # q1 = o1 , ...: which item a place holds in the end */

enum {
    SWAPS_HASH,
    SWAPS_EQUALS,
    SWAPS_COMMA,
    SWAPS_PAD,
    SWAPS_PLACE,       /* place p is word SWAPS_PLACE + p */
    SWAPS_ITEM = 128,  /* item a is word SWAPS_ITEM + a */
    SWAPS_QUERIES = 8, /* places asked for */
    SWAPS_MOST = SWAPS_ITEM - SWAPS_PLACE
};

typedef struct swaps_shape {
    int64_t places; /* 8 .. SWAPS_MOST */
    int64_t items;
} swaps_shape;

int64_t swaps_length(const swaps_shape *shape);
int64_t swaps_scratch(const swaps_shape *shape);
/* tokens: [swaps_length]; at, target: [SWAPS_QUERIES]. */
void swaps_example(const swaps_shape *shape, uint64_t seed, train_split split, int64_t example,
                   int32_t *tokens, int32_t *at, int32_t *target, void *scratch);

#endif
