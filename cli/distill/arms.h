/* SPDX-License-Identifier: MIT
 * The attentions that are measured in the place of softmax, a row of one table each. */
#ifndef LOAM_CLI_DISTILL_ARMS_H
#define LOAM_CLI_DISTILL_ARMS_H

#include "distill/student.h"

typedef enum arm_form {
    FORM_SOFTMAX, /* the model as it is */
    FORM_LINEAR,  /* elu + 1 as the features of queries and keys */
    FORM_WINDOW,  /* softmax over the first tokens and the last alone */
    FORM_DRAWN,   /* features as they start */
    FORM_TRAINED, /* features that were fitted from there */
    FORM_UNTIED,  /* likewise, with z of their own for keys */
    FORM_CASCADE, /* as FORM_TRAINED, layer by layer to what the model makes with those before it */
    FORM_HYBRID,  /* fitted beside exact attention to the first tokens and a window */
    FORM_DIRECT   /* as FORM_TRAINED, and then through the model */
} arm_form;

typedef struct distill_arm {
    const char *name;
    arm_form form;
    student_start start; /* of features */
    bool balanced;       /* after shift and balance */
    int eighths;         /* of a window of equal memory, in a hybrid: features have the rest */
} distill_arm;

const distill_arm *distill_arm_at(int index); /* in the order of tables; NULL beyond the last */
int distill_arm_find(const char *name);       /* -1: none is called so */

/* Does a student make it? */
bool distill_arm_has_features(const distill_arm *a);
/* Does it depend on a seed? */
bool distill_arm_draws(const distill_arm *a);

#endif
