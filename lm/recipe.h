/* SPDX-License-Identifier: MIT
 * What is pretrained, and how: a recipe as a model's configuration, and as the trainer's options. The blocks
 * are those of train/model.h, whose linear maps have no biases: the files of architectures that have some
 * hold zeros. */
#ifndef LOAM_LM_RECIPE_H
#define LOAM_LM_RECIPE_H

#include "lm/config.h"
#include "train/trainer.h"

typedef struct lm_recipe {
    lm_architecture architecture; /* but LM_BERT */
    const char *mechanism;        /* one that lm_recipe_mechanism names */
    int64_t layers, width, heads, context;
    double ridge_least, ridge_most; /* of "lla" */
    loam_ridge_unit ridge_unit;
    /* batch: windows of a step, in pieces of `piece`, of which it is a multiple; every: steps between
     * validations */
    int64_t steps, batch, piece, warm, every;
    double rate, decay;
    uint64_t seed;
} lm_recipe;

/* The mechanisms; NULL beyond the last. */
const char *lm_recipe_mechanism(int index);

/* Whether the model's files can tell its attention: lm_config_attention. */
bool lm_recipe_has_files(const lm_recipe *r);

/* Of a vocabulary, whose end_token begins and ends texts. Sizes that do not fit are refused by name. */
int lm_recipe_config(lm_config *out, const lm_recipe *r, int64_t vocabulary, int32_t end_token,
                     io_error *error);
trainer_options lm_recipe_options(const lm_recipe *r, const lm_config *config);

#endif
