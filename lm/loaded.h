/* SPDX-License-Identifier: MIT
 * What a model that is read by texts consists of. */
#ifndef LOAM_LM_LOADED_H
#define LOAM_LM_LOADED_H

#include "lm/model.h"

struct lm_model {
    const machine *on;
    const lm_config *config;
    lm_options options;
    lm_weights weights;
    lm_features *features; /* [layers], of the weights; NULL: the files have none */
};

/* Options whose own attention is said in full: of features those of the files, and no longer `own`. */
lm_options loaded_options(const lm_model *m, const lm_options *options);

#endif
