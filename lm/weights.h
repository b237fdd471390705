/* SPDX-License-Identifier: MIT
 * The weights of a model in a machine's memory. */
#ifndef LOAM_LM_WEIGHTS_H
#define LOAM_LM_WEIGHTS_H

#include "lm/files.h"
#include "train/machine.h"

/* Matrices [1][out][in] of the type that was asked for; vectors [1][1][n], tables of positions and token
 * types in float32. Parts that a model has none of are without data. */
typedef struct lm_weights {
    matrix of_model[LM_NORM_1];               /* by their part */
    matrix (*of_layer)[LM_PARTS - LM_NORM_1]; /* [layers], by their part from LM_NORM_1 on */
    memory room;
    int64_t bytes; /* of all */
} lm_weights;

/* dtype: LOAM_F32, LOAM_BF16 or LOAM_F16. What f maps in this type is not copied: f must live as long. On
 * failure *made is all zero. */
int lm_weights_open(lm_weights *made, const machine *on, const lm_files *f, loam_dtype dtype,
                    io_error *error);
void lm_weights_close(lm_weights *w);

static inline matrix lm_weight(const lm_weights *w, int64_t layer, lm_part part)
{
    return part < LM_NORM_1 ? w->of_model[part] : w->of_layer[layer][part - LM_NORM_1];
}

#endif
