/* SPDX-License-Identifier: MIT
 * A Transformer that reads texts. One description of a block (lm/config.h) serves the four architectures; its
 * attention is any mechanism of the local family. */
#ifndef LOAM_LM_MODEL_H
#define LOAM_LM_MODEL_H

#include "lm/weights.h"

typedef struct lm_options {
    loam_dtype weights;       /* in memory: LOAM_F32, or 16-bit */
    loam_mechanism mechanism; /* LOAM_SOFTMAX, LOAM_LLA, or LOAM_PARALLAX, whose probe is 0 */
    double ridge;             /* LOAM_LLA */
    loam_ridge_unit ridge_unit;
    int64_t only; /* the one layer with this mechanism, the others have softmax; -1: all have it */
    /* Scores are multiplied by it: 1.027 is a softmax that is as much sharper. */
    double inverse_temperature;
} lm_options;

lm_options lm_options_default(void);

typedef struct lm_model lm_model;

/* `on` and `f` must live as long. On failure *made is NULL. */
int lm_model_open(lm_model **made, const machine *on, const lm_files *f, const lm_options *options,
                  io_error *error);
void lm_model_close(lm_model *m); /* NULL is allowed */

const lm_config *lm_model_config(const lm_model *m);
const machine *lm_model_machine(const lm_model *m);
/* Of all weights, as they lie in memory: what a token reads in decoding. */
int64_t lm_model_bytes(const lm_model *m);

/* Dense rows of the machine's memory, in host memory `to`, which on a CPU may be the same. Of a GPU it waits
 * for them, and fails with what went wrong there since the last time. */
int lm_model_fetch(const lm_model *m, float *to, matrix rows, io_error *error);

/* A text that a model reads: keys and values of its tokens so far. */
typedef struct lm_text lm_text;

/* room: tokens at most; chunk <= room: at most so many at a time. On failure *made is NULL. A model is
 * constant: several texts may be read at once. */
int lm_text_open(lm_text **made, const lm_model *m, int64_t room, int64_t chunk, io_error *error);
void lm_text_close(lm_text *t); /* NULL is allowed */

int64_t lm_text_length(const lm_text *t);
/* Forgets all tokens but the first `length`. */
void lm_text_rewind(lm_text *t, int64_t length);

/* Reads the next `count` tokens, 1 .. chunk; BERT: a whole text. *hidden [1][count][width], in the machine's
 * memory, is what the last layer and norm make of them, valid until the next call. */
int lm_text_read(lm_text *t, const int32_t *tokens, int64_t count, matrix *hidden, io_error *error);
/* logits [1][rows][vocabulary] of such rows, in the machine's memory. Not of BERT. */
void lm_text_logits(const lm_text *t, matrix hidden, matrix logits);

#endif
