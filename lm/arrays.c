/* SPDX-License-Identifier: MIT */
#include "lm/arrays.h"

#include <stdio.h>
#include <string.h>

static const lm_array arrays[LM_PARTS] = {
    [LM_EMBED] = { "E", ROLES, false },
    [LM_POSITIONS] = { "P", ROLES, false },
    [LM_TYPES] = { NULL, ROLES, false },
    [LM_EMBED_NORM] = { NULL, ROLES, false },
    [LM_EMBED_NORM_BIAS] = { NULL, ROLES, false },
    [LM_LAST_NORM] = { "gain", ROLES, false },
    [LM_LAST_NORM_BIAS] = { "bias", ROLES, false },
    [LM_HEAD] = { "W_logits", ROLES, false },
    [LM_NORM_1] = { NULL, ROLE_GAIN, false },
    [LM_NORM_1_BIAS] = { NULL, ROLE_NORM_BIAS, false },
    [LM_Q] = { NULL, ROLE_Q, true },
    [LM_Q_BIAS] = { NULL, ROLE_Q_BIAS, false },
    [LM_K] = { NULL, ROLE_K, true },
    [LM_K_BIAS] = { NULL, ROLE_K_BIAS, false },
    [LM_V] = { NULL, ROLE_V, true },
    [LM_V_BIAS] = { NULL, ROLE_V_BIAS, false },
    [LM_O] = { NULL, ROLE_OUT, true },
    [LM_O_BIAS] = { NULL, ROLE_OUT_BIAS, false },
    [LM_NORM_2] = { NULL, ROLE_MLP_GAIN, false },
    [LM_NORM_2_BIAS] = { NULL, ROLE_MLP_BIAS, false },
    [LM_GATE] = { NULL, ROLE_MLP_GATE, true },
    [LM_UP] = { NULL, ROLE_MLP_1, true },
    [LM_UP_BIAS] = { NULL, ROLE_MLP_1_BIAS, false },
    [LM_DOWN] = { NULL, ROLE_MLP_2, true },
    [LM_DOWN_BIAS] = { NULL, ROLE_MLP_2_BIAS, false },
    [LM_RIDGE] = { NULL, ROLE_RIDGE, true },
    [LM_PROBE] = { NULL, ROLE_PROBE, true },
    [LM_FORGET] = { NULL, ROLE_DECAY_1, true },
    [LM_FEATURE_Z] = { NULL, ROLE_Z, false },
    [LM_FEATURE_ALPHA] = { NULL, ROLE_LOG_ALPHA, false },
    [LM_FEATURE_SHIFT] = { NULL, ROLE_SHIFT, false },
    [LM_FEATURE_BALANCE] = { NULL, ROLE_BALANCE, false },
    [LM_FEATURE_BALANCE_KEYS] = { NULL, ROLE_BALANCE_KEYS, false },
};

lm_array lm_array_of(lm_part part) { return arrays[part]; }

const char *lm_array_text(lm_part part, int64_t layer, char text[LM_ARRAY_TEXT])
{
    const lm_array *a = &arrays[part];
    *text = '\0';
    if (a->name)
        snprintf(text, LM_ARRAY_TEXT, "%s", a->name);
    else if (a->role != ROLES)
        snprintf(text, LM_ARRAY_TEXT, "layer%lld.%s", (long long)layer, mixer_array_name(a->role));
    return text;
}

const parameter *lm_array_find(train_model *net, const char *name)
{
    int count;
    const parameter *list = model_parameters(net, &count);
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0) return &list[i];
    return NULL;
}
