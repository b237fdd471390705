/* SPDX-License-Identifier: MIT
 * The next token from its logits. */
#ifndef LOAM_LM_SAMPLE_H
#define LOAM_LM_SAMPLE_H

#include "io/error.h"

#include <stdint.h>

typedef struct sampling {
    double temperature; /* >= 0; 0: the largest logit, the first of equals */
    int64_t top_k;      /* only so many of the likeliest; 0: all */
    double top_p;       /* of those, the fewest whose probabilities add up to it; 1: all */
    uint64_t seed;
} sampling;

typedef struct sampler sampler;

/* Room to sort `vocabulary` tokens. On failure *made is NULL. */
int sampler_open(sampler **made, const sampling *how, int64_t vocabulary, io_error *error);
void sampler_close(sampler *s); /* NULL is allowed */

/* Token number 0, 1, ... of a text: the same for the same seed, number and logits. Tokens whose logits are
 * NaN or -infinity are never taken. -1: there is no other. */
int32_t sampler_next(sampler *s, const float *logits, int64_t number);

#endif
