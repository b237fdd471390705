/* SPDX-License-Identifier: MIT
 * Which array of a model of train/ is which part of a model in files. */
#ifndef LOAM_LM_ARRAYS_H
#define LOAM_LM_ARRAYS_H

#include "lm/files.h"
#include "train/model.h"

/* A part's array, and whether it lies turned: [in][out] in train/, [out][in] in files. */
typedef struct lm_array {
    const char *name; /* of the model; NULL: of a layer, or none */
    role role;        /* of a layer; ROLES: none */
    bool turned;
} lm_array;

lm_array lm_array_of(lm_part part);

enum { LM_ARRAY_TEXT = 48 };
/* "layer3.W_q"; "" of a part that has no array. */
const char *lm_array_text(lm_part part, int64_t layer, char text[LM_ARRAY_TEXT]);
/* The array of this name; NULL: there is none. */
const parameter *lm_array_find(train_model *net, const char *name);

#endif
