/* SPDX-License-Identifier: MIT
 * What the experiment on distillation measures of a model, cell by cell, and what is shown of it. */
#ifndef LOAM_CLI_DISTILL_CELLS_H
#define LOAM_CLI_DISTILL_CELLS_H

#include "cli/distill/course.h"
#include "cli/distill/trial.h"
#include "cli/ridge/results.h"

enum { CELL_LABEL = 64, CELL_LINE = 4096, SERIES = 32, CELLS = 2048, SPEEDS = 8 };

/* An arm; where it has features, shared out by a strategy; where it is trained, by a loss. */
typedef struct cell {
    int arm, strategy, loss; /* strategy -1: it has no features; loss -1: it is not trained */
    int64_t seed;            /* 0: it draws nothing */
    bool chosen;             /* else it is of an earlier run, and only kept */
    double *nll;             /* [windows]: sums over their tokens; NaN: not yet known */
    double *features;        /* [layers], behind these; 0: none */
    double *seconds;         /* behind these */
    double *far;             /* [far][TRIAL_PLACES], behind these: of longer windows; NaN: not read */
} cell;

/* Of one model. */
typedef struct cells {
    char model[LM_MODEL_NAME];
    char line[CELL_LINE]; /* all that results depend on, but the cells' own words and `checksum` */
    size_t bound; /* so many characters of it must be those of a file's line, which takes its place; 0: all */
    uint64_t checksum; /* of the calibration's tokens; 0: not yet read */
    bool encoder;      /* windows are lines, and nll 1 less the cosine to the vector under softmax */
    int64_t layers, windows, far; /* far: windows that are longer than those of the calibration */
    int64_t *tokens;              /* [windows]: that they predict */
    int *text;                    /* [windows]: the text that they are of */
    int64_t length;               /* of the longer ones */
    int64_t *places;              /* [far][TRIAL_PLACES]: tokens that they predict */
    double *rises;                /* [layers][STRATEGY_POINTS], of the strategy that measures */
    /* Seconds of a token behind so many others, with keys and values, and with states; NaN: not measured. */
    double speeds[2][SPEEDS];
    int64_t behind[SPEEDS], bytes[2]; /* 0: no more; of keys and values of a token, of all states */
    cell *list;                       /* it stays where it is */
    int count;
} cells;

/* Takes room for all that its numbers tell; on failure cells_close is due too. */
int cells_open(cells *c, int64_t layers, int64_t windows, int64_t far, io_error *error);
void cells_close(cells *c);

/* Are there times of tokens? */
bool cells_timed(const cells *c);
/* What nll is: "NLL", "1 - cosine". */
const char *cells_measure(const cells *c);

/* Those that a course wants, in the order in which they are run. */
int cells_choose(cells *c, const course *of, io_error *error);
/* One that is there, or a new one that is not chosen; NULL: out of memory, or more than CELLS. */
cell *cells_take(cells *c, int arm, int how, int loss, int64_t seed);
int64_t cell_numbers(const cells *c); /* from nll on */
bool cell_done(const cell *one);
bool cell_has_far(const cell *one);
/* From now on those that are not done are not wanted. */
void cells_end(cells *c);
int cells_left(const cells *c);                                 /* of those that are chosen */
const char *cell_label(const cell *one, char text[CELL_LABEL]); /* "pairs", "trained: fix, l2" */

/* ---- cells that differ by seed alone */

typedef struct series {
    const cell *cell[EXPERIMENT_LIST];
    int seeds;
} series;

/* Of all chosen cells, in their order; returns how many. */
int cells_series(const cells *c, series out[SERIES]);
/* NULL: it is not there. how and loss NULL: any. */
const series *series_find(const series *list, int count, const char *arm, const char *how, const char *loss);
/* -log p of a token, a mean over seeds, less that of b, in pairs of windows; b NULL: itself. */
paired series_difference(const cells *c, const series *a, const series *b);
/* Of a cell that read longer windows the same of their place, one of TRIAL_PLACES. */
paired cell_far(const cells *c, const cell *a, const cell *b, int place);
/* What is lost to softmax as a part of what features of N(0, I) lose; NaN where one of them is missing. */
double series_gap(const cells *c, const series *list, int count, const series *a);

#endif
