/* SPDX-License-Identifier: MIT
 * Students that are trained on a GPU, in float32: the gradients of all heads at once, and copies to and from
 * the student. */
#ifndef LOAM_DISTILL_TRAINING_GPU_H
#define LOAM_DISTILL_TRAINING_GPU_H

#include "distill/training.h"
#include "train/feature_losses.h"

struct training_gpu {
    const machine *on;
    int64_t layers;
    parameter *z, *log_alpha; /* [layers], of the GPU */
    feature_head *head;       /* [layers][heads], as they were sorted */
    feature_losses losses;
    int32_t *chosen; /* [batch] */
    float *staged;   /* as many numbers as any array has */
    float *gain;     /* [layers][heads][queries] */
    memory room;
};

/* t->gpu, on t->options.gpu, from what the student is now. */
int training_gpu_open(training *t, io_error *error);
void training_gpu_close(training_gpu *g); /* NULL is allowed */
/* Of these windows [batch]; launched, not waited for. */
void training_gpu_gradients(training_gpu *g, const int64_t *windows);
/* z, log alpha and their moments to the GPU, and back, with the losses. */
void training_gpu_send(const training *t);
int training_gpu_fetch(training *t, io_error *error);

#endif
