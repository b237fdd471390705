/* SPDX-License-Identifier: MIT
 * The losses of train/feature_loss.h of many heads at once, on a GPU in float32. A pair whose features leave
 * less than e^-80 of what the block of 64 keys could have has no gradient; of l2row and l2 those below e^-46,
 * and a k that is above e^17 times its unit counts as that. Bits depend on nothing else that is computed. */
#ifndef LOAM_TRAIN_FEATURE_LOSSES_H
#define LOAM_TRAIN_FEATURE_LOSSES_H

#include "train/feature_loss.h"
#include "train/machine.h"

/* Arrays of the machine. */
typedef struct feature_head {
    const float *z, *log_alpha;     /* [features, channels], [features] */
    float *grad_z, *grad_log_alpha; /* likewise */
    int64_t features;
    int64_t place; /* among the heads as they were given */
} feature_head;

typedef struct feature_losses {
    const machine *on;
    feature_loss_kind kind;
    bool causal;
    int64_t tokens, channels; /* T, d */
    int64_t heads, queries;   /* query heads of each that fit the same features */
    int64_t windows, batch;   /* sequences, and those that a loss is the mean of */
    int64_t sinks, window;    /* as of one loss; the gain is of each query head */
    const float *gain;        /* [heads][queries], of host memory; needed until it is open */
    /* The rest is made by feature_losses_open; arrays of the machine. */
    int64_t row;         /* channels, up to a multiple of 4 with zeros */
    int64_t most;        /* features of any head */
    feature_head *list;  /* [heads], those with most features first */
    float *x, *y;        /* [heads][queries][windows][T][row], [heads][windows][T][row] */
    float *exact;        /* [heads][queries][windows][T]: log sum e^{x . y}; l2: the largest x . y */
    float *near, *gains; /* beside a window: the same of what is near, and the gains */
    float *largest;      /* [heads] */
    float *losses;       /* [heads] */
    int32_t *chosen;     /* [batch] */
    float *scratch, *parts;
    memory room;
} feature_losses;

/* *l has its first members; head [heads], of host memory, whose places are set here. False where memory runs
 * out, and *l is all zero. */
bool feature_losses_open(feature_losses *l, feature_head *head);
void feature_losses_close(feature_losses *l);

/* Rows of queries or keys of a head: factor (x - shift) m^T of what lies in the machine's memory. */
typedef struct feature_rows {
    const float *x;
    int64_t row, count;          /* the stride, and how many */
    const float *shift, *matrix; /* [channels] or NULL, [channels, channels] */
    double factor;
} feature_rows;

/* x of all windows, of a head's n-th query head, or, n < 0, y. */
void feature_losses_rows(const feature_losses *l, int64_t head, int64_t n, const feature_rows *from);
/* Once, after all rows are there. */
void feature_losses_prepare(const feature_losses *l);
/* Losses and gradients of these windows [batch], means over them and over the queries. Launched, not waited
 * for. */
void feature_losses_run(const feature_losses *l, const int32_t *windows);

#endif
