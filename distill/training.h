/* SPDX-License-Identifier: MIT
 * Fits z and log alpha of all heads of all layers to the softmax of the same queries and keys, side by side:
 * the losses of train/feature_loss.h by AdamW without decay, rates along half a cosine to 0. Float64 on the
 * CPU, float32 on a GPU. */
#ifndef LOAM_DISTILL_TRAINING_H
#define LOAM_DISTILL_TRAINING_H

#include "distill/student.h"
#include "train/feature_loss.h"
#include "train/optimiser.h"

typedef struct training_options {
    feature_loss_kind loss;
    int64_t steps, batch; /* of windows; each pass over them is in an order of its own */
    double rate, rate_log_alpha;
    int64_t sinks, window; /* exact beside the features, with the student's gains; 0, 0: none. Softmax loss */
    uint64_t seed;         /* of the orders */
    int threads;           /* results do not depend on it */
    const machine *gpu;    /* where it is done; NULL: the CPU */
} training_options;

typedef struct training_gpu training_gpu;

typedef struct training {
    student *s;
    const activations *a;
    training_options options;
    machine on;
    bool untied;              /* the student is */
    parameter *z, *log_alpha; /* [layers], of host memory; x is the student's own */
    parameter *z_keys;        /* [layers] of untied students, behind z */
    training_gpu *gpu;        /* what is trained, and z and log alpha its copy; NULL: on the CPU */
    optimiser of_z, of_log_alpha;
    memory room;
    double *largest; /* [layers][heads]: of x . y, of the l2 loss */
    double *losses;  /* [layers][heads]: of the last step */
    double **work;   /* [threads] */
    int32_t *order, *table;
    int64_t *chosen; /* [batch]: windows of this step */
} training;

/* Steps 2000, batch 8, rates .02 and .05, the softmax loss. */
training_options training_options_default(void);

/* Student and activations must live as long, and *t stays where it is. On failure it is all zero. */
int training_open(training *t, student *s, const activations *a, const training_options *options,
                  io_error *error);
void training_close(training *t);

/* Steps taken. */
int64_t training_taken(const training *t);
/* The next step of all heads; t->losses are those before it, means over its windows. */
void training_step(training *t);
/* What a GPU has done since the last time comes into the student, the moments and t->losses; on the CPU it is
 * there already. Fails with what went wrong on the GPU. */
int training_fetch(training *t, io_error *error);

#endif
