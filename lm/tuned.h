/* SPDX-License-Identifier: MIT
 * A pretrained model as training left it, to be written. */
#ifndef LOAM_LM_TUNED_H
#define LOAM_LM_TUNED_H

#include "lm/files.h"
#include "train/model.h"

/* The part that was asked for last, [in][out] as in train/, in host memory; NULL: none. */
typedef struct lm_tuned_part {
    float *x;
    lm_part part;
    int64_t layer;
} lm_tuned_part;

/* What moved is that of the first model of a stack, the rest as the files have it. */
typedef struct lm_tuned {
    train_model *net;
    const machine *on;
    const lm_files *files;
    lm_tuned_part *last; /* all zero in the beginning */
} lm_tuned;

/* An lm_reader (lm/write.h), from an lm_tuned: W + A B where A and B stand beside W. */
int lm_tuned_read(const void *tuned, lm_part part, int64_t layer, int64_t first, int64_t count,
                  loam_dtype dtype, void *out, io_error *error);
void lm_tuned_close(const lm_tuned *t);

#endif
