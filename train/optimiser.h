/* SPDX-License-Identifier: MIT
 * A step of training after the gradients: clipping, the rate's schedule, then AdamW (Loshchilov, Hutter
 * 2019) or, for the matrices of mixers, Muon (Jordan et al. 2024). Norms, rates and clip factors are
 * each model's own. */
#ifndef LOAM_TRAIN_OPTIMISER_H
#define LOAM_TRAIN_OPTIMISER_H

#include "train/machine.h"
#include "train/parameter.h"

enum { OPTIMISER_ARRAYS = 2048 }; /* most */

typedef struct optimiser_options {
    int64_t warm, steps; /* of the schedule: warm-up, and all */
    double least;        /* share of the highest rate that is left in the end */
    double beta_v;       /* of AdamW's second moments; 0: 0.999 */
    double decay;        /* of what decays */
    double clip;         /* the longest that the gradient of a model may be */
    bool muon;
    /* Steps 0.2 sqrt(max(in, out)) long, which AdamW's rates fit, and not sqrt(max(1, out/in)). */
    bool muon_rms;
} optimiser_options;

typedef struct optimiser {
    const machine *on;
    optimiser_options options;
    parameter *list;
    int count;
    int64_t step;            /* steps taken */
    int64_t *at;             /* the same in the machine's memory */
    matrix peak[2], rate[2]; /* of AdamW and of Muon, a number for each model */
    matrix squares, factor;  /* of the gradients of a model, before clipping */
    matrix u, y, a, b, size; /* of Muon: two as large as any of its matrices, two of the shorter side */
    memory room;
} optimiser;

/* peak, muon_peak: [models], the highest rates; muon_peak may be NULL without options.muon. False where
 * memory runs out. `on` and `list` must outlive it. */
bool optimiser_open(optimiser *o, const machine *on, parameter *list, int count,
                    const optimiser_options *options, const double *peak, const double *muon_peak);
void optimiser_close(optimiser *o);
/* Goes on from this many steps. */
void optimiser_resume(optimiser *o, int64_t step);
/* From now on no parameter of this model changes. */
void optimiser_hold(optimiser *o, int64_t model);
/* Takes the gradients in `list`. */
void optimiser_step(optimiser *o);

#endif
