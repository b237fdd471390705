/* SPDX-License-Identifier: MIT
 * The mechanisms of the recurrent family, one line each. */
#include "src/recurrent/recurrent.h"

static const recurrent_form forms[] = {
    [LOAM_LINEAR] = { .gate = GATE_NONE },
    [LOAM_RETENTION] = { .gate = GATE_HEAD },
    [LOAM_SSD] = { .gate = GATE_TOKEN, .beta = true },
    [LOAM_GLA] = { .gate = GATE_CHANNEL },
    [LOAM_DELTA] = { .gate = GATE_NONE, .beta = true, .delta = true },
    [LOAM_GATED_DELTA] = { .gate = GATE_TOKEN, .beta = true, .delta = true },
    [LOAM_KDA] = { .gate = GATE_CHANNEL, .beta = true, .delta = true },
    [LOAM_MESA] = { .gate = GATE_TOKEN, .beta = true, .solved = true },
};

const recurrent_form *recurrent_form_of(loam_mechanism mechanism)
{
    return mechanism >= LOAM_LINEAR && mechanism <= LOAM_MESA ? &forms[mechanism] : NULL;
}
