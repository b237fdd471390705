/* SPDX-License-Identifier: MIT
 * Pretraining of a language model into a folder, with the same bytes however it is cut into pieces:
 *
 *     state.safetensors   what a run goes on from
 *     best.safetensors    the arrays that did best on the validation text, by their names in train/
 *     loss.csv            losses, a line for each validation
 *     times.csv           their times, which alone differ from run to run
 *     held.csv            once finished: how well the best predicts what was held out
 *     model.safetensors, config.json, tokenizer.json
 *                         once finished: the best as a model, where lm/ reads such attention
 */
#ifndef LOAM_LM_PRETRAIN_H
#define LOAM_LM_PRETRAIN_H

#include "lm/recipe.h"
#include "lm/shards.h"

/* Told after each step, and of the validation after it. */
typedef void lm_watch(void *with, const trainer *t, bool tested);

typedef struct lm_pretraining {
    const lm_recipe *recipe;
    const lm_shards *shards;
    const machine *on;
    const char *data, *folder; /* the tokenizer's, and that of the run, which exists */
    double interval, seconds;  /* between saves of the state, and of all of it */
    lm_watch *watch;           /* NULL: none */
    void *with;
} lm_pretraining;

/* What the best model finds in a corpus: nats a token. */
typedef struct lm_held_loss {
    int64_t tokens;
    double nll, bits; /* bits for each byte of the text */
} lm_held_loss;

/* Trains until it is finished or the seconds have passed. *finished: then held [corpora] is filled in and all
 * files are there. */
int lm_pretrain(const lm_pretraining *p, lm_held_loss *held, bool *finished, io_error *error);

#endif
