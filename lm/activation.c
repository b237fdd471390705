/* SPDX-License-Identifier: MIT */
#include "lm/activation.h"

#include <string.h>

/* The first name of each is the one that is written. */
static const struct {
    const char *name;
    lm_activation activation;
} names[] = { { "gelu", LM_GELU }, { "gelu_new", LM_GELU_TANH }, { "gelu_pytorch_tanh", LM_GELU_TANH },
              { "silu", LM_SILU }, { "swish", LM_SILU },         { "relu", LM_RELU } };
enum { NAMES = sizeof names / sizeof *names };

int lm_activation_of(const char *name)
{
    for (int i = 0; i < NAMES; i++)
        if (strcmp(name, names[i].name) == 0) return (int)names[i].activation;
    return -1;
}

const char *lm_activation_name(lm_activation activation)
{
    int i = 0;
    while (names[i].activation != activation)
        i++;
    return names[i].name;
}
