/* SPDX-License-Identifier: MIT
 * A Transformer that reads texts. One description of a block (lm/config.h) serves the four architectures; its
 * attention is any mechanism of the local family. */
#ifndef LOAM_LM_MODEL_H
#define LOAM_LM_MODEL_H

#include "lm/weights.h"

/* The attention of a query head, where each has its own. */
typedef struct lm_head {
    double ridge; /* LOAM_LLA with it; INFINITY: softmax */
    double inverse_temperature;
} lm_head;

/* Positive random features in the place of a layer's softmax (docs/features.md), arrays of float in the
 * machine's memory. Heads are those of the queries or, shared, of the keys. */
typedef struct lm_features {
    int64_t features; /* of each head; 0: the layer has softmax */
    bool shared;
    /* Queries and keys have features of their own: heads of the arrays have twice the channels, and queries
     * are followed by zeros, keys come after as many. */
    bool untied;
    const float *z;                      /* [heads][features][head_dim] */
    const float *log_alpha;              /* [heads][features] */
    const float *shift;                  /* [heads][head_dim] */
    const float *balance, *balance_keys; /* [heads][head_dim][head_dim] */
    const float *gain;                   /* [heads_q]: of features beside a window, or NULL: 0 */
} lm_features;

typedef struct lm_options {
    loam_dtype weights; /* in memory: LOAM_F32, or 16-bit */
    /* LOAM_SOFTMAX, LOAM_LLA, LOAM_PARALLAX, whose probe is 0, or LOAM_LINEAR of elu + 1, normalised, which
     * reads texts in one go. */
    loam_mechanism mechanism;
    double ridge; /* LOAM_LLA */
    loam_ridge_unit ridge_unit;
    /* What the model was trained with instead of these, `heads` and `features`, by its own arrays. */
    bool own;
    /* The one layer, and the one query head of a layer, with this mechanism; the others have softmax.
     * -1: all. */
    int64_t only, only_head;
    /* Scores are multiplied by it: 1.027 is a softmax that is as much sharper. */
    double inverse_temperature;
    /* [layers][heads_q], in the place of all above but weights and ridge_unit; it must live as long as what
     * was opened with it. NULL: none. */
    const lm_head *heads;
    /* [layers], in the place of the mechanism, by a model that sees what came before; it must live as long,
     * too. NULL: none. Texts of a model that was opened with them have states, and are read in any pieces;
     * others are read in one go. */
    const lm_features *features;
    /* Softmax over the first `sinks` tokens and the last `window` alone, the query's own too; window 0: over
     * all. Layers with features have these for the tokens between, under one normaliser. Texts are read in
     * one go, and without features one by one; of a model that has both in its files in any pieces. */
    int64_t sinks, window;
} lm_options;

lm_options lm_options_default(void);
/* Has the model such layers and heads, and are their numbers in range? */
int lm_options_check(const lm_options *o, const lm_config *c, io_error *error);

typedef struct lm_model lm_model;

/* `on` and `f` must live as long. On failure *made is NULL. */
int lm_model_open(lm_model **made, const machine *on, const lm_files *f, const lm_options *options,
                  io_error *error);
void lm_model_close(lm_model *m); /* NULL is allowed */

const lm_config *lm_model_config(const lm_model *m);
const machine *lm_model_machine(const lm_model *m);
/* Of all weights, as they lie in memory: what a token reads in decoding. */
int64_t lm_model_bytes(const lm_model *m);
loam_dtype lm_model_type(const lm_model *m); /* of weights */

/* Dense rows of the machine's memory, float32 or bf16, as float32 in host memory `to`, which on a CPU may be
 * the same. Of a GPU it waits for them, and fails with what went wrong there since the last time. */
int lm_model_fetch(const lm_model *m, float *to, matrix rows, io_error *error);

/* A text that a model reads: keys and values of its tokens so far; of a layer with features their states. */
typedef struct lm_text lm_text;

/* room: tokens at most; chunk <= room: at most so many at a time. On failure *made is NULL. A model is
 * constant: several texts may be read at once. */
int lm_text_open(lm_text **made, const lm_model *m, int64_t room, int64_t chunk, io_error *error);
/* For up to `most` texts of `length` tokens each, which are read side by side, each as it is alone. */
int lm_text_open_batch(lm_text **made, const lm_model *m, int64_t most, int64_t length, io_error *error);
void lm_text_close(lm_text *t); /* NULL is allowed */

int64_t lm_text_length(const lm_text *t);
/* Forgets all tokens but the first `length`; with features all or none. */
void lm_text_rewind(lm_text *t, int64_t length);

/* From now on so many texts of one length are read at once and whole: their tokens and rows follow each
 * other, text by text. 1: one text, in any pieces. What was read is forgotten. */
void lm_text_batch(lm_text *t, int64_t texts);

/* From now on its attention is that of these options; weights stay, and so does what was read, but where
 * features come or go. LOAM_PARALLAX only where the model has it. */
int lm_text_attention(lm_text *t, const lm_options *options, io_error *error);

/* Reads the next `count` tokens, 1 .. chunk; BERT: a whole text. *hidden [1][count][width], in the machine's
 * memory, is what the last layer and norm make of them, valid until the next call. */
int lm_text_read(lm_text *t, const int32_t *tokens, int64_t count, matrix *hidden, io_error *error);
/* lm_text_read in steps, to share layers between attentions, with the residual stream in a matrix of the
 * caller, x [1][count][width] in the machine's memory: tokens enter it, layers first .. end - 1 change it and
 * take their keys and values from it, and what leaves has been read. Layers with features that tokens came
 * before take them into their states, and are run once. Layers read the tokens that entered
 * last, where the text is as long as it was then. */
int lm_text_enter(lm_text *t, const int32_t *tokens, int64_t count, matrix x, io_error *error);
int lm_text_layers(lm_text *t, int64_t first, int64_t end, matrix x, io_error *error);
matrix lm_text_leave(lm_text *t, matrix x);
/* What the attention of a layer had and made of so many tokens, right after it was the last to run: rows of
 * heads, those of k and v from the first token of the text on, where query head h reads key head
 * h / (heads_q / heads_kv). */
typedef struct lm_heads {
    matrix q, k, v, o;
} lm_heads;
lm_heads lm_text_heads(const lm_text *t, int64_t layer, int64_t count);

/* logits [1][rows][vocabulary] of such rows, in the machine's memory. Not of BERT. */
void lm_text_logits(const lm_text *t, matrix hidden, matrix logits);

#endif
