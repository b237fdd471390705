/* SPDX-License-Identifier: MIT
 * How well a model predicts a text. */
#ifndef LOAM_LM_SCORE_H
#define LOAM_LM_SCORE_H

#include "lm/model.h"

/* What a window of a text is: `inputs` tokens are read from `begin` on, after the prefix where begin is -1;
 * the last `scored` of them predict the next one each. */
typedef struct score_window {
    int64_t begin, inputs, scored;
} score_window;

/* Window `index` of a text of `tokens`: they do not overlap in what they score, and all but the last score
 * `length`; the last begins earlier, so that it reads as many. False beyond the last. prefix: a token goes
 * before the first, which is then scored too. */
bool score_window_at(score_window *w, int64_t tokens, int64_t length, bool prefix, int64_t index);

typedef struct scorer scorer;

/* For windows of at most `length` tokens. The model must live as long. On failure *made is NULL. */
int scorer_open(scorer **made, const lm_model *m, int64_t length, io_error *error);
/* The same, whose text is one of up to `most` texts of `length` tokens each (lm_text_open_batch). */
int scorer_open_batch(scorer **made, const lm_model *m, int64_t most, int64_t length, io_error *error);
void scorer_close(scorer *s); /* NULL is allowed */

/* nll[i] = -log p of target i, in nats, for the last `scored` of `count` tokens that are read: targets
 * [scored]. */
int scorer_run(scorer *s, const int32_t *tokens, int64_t count, const int32_t *targets, int64_t scored,
               double *nll, io_error *error);

/* The same of two models with one vocabulary, on one machine: nll of each, and the divergence of s from the
 * teacher, the sum of p log(p / q) over the next word, p by the teacher and q by s. */
typedef struct score_pair {
    double *nll, *teacher, *divergence; /* [scored] */
} score_pair;
int scorer_run_pair(scorer *s, scorer *teacher, const int32_t *tokens, int64_t count, const int32_t *targets,
                    int64_t scored, score_pair to, io_error *error);

/* The text that it reads, and nll of the targets of the last `scored` rows of `hidden`, where layers are run
 * one by one. */
lm_text *scorer_text(const scorer *s);
int scorer_rows(scorer *s, matrix hidden, const int32_t *targets, int64_t scored, double *nll,
                io_error *error);

#endif
