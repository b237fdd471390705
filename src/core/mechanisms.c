/* SPDX-License-Identifier: MIT
 * What each mechanism fits and reads (loam_mechanism_at). */
#include "src/core/mechanisms.h"
#include "src/core/plan.h"

#include <math.h>

typedef struct mechanism_text {
    const char *objective, *regulariser, *update, *output, *cost;
} mechanism_text;

#define LOCAL_TEXT(id, name, ...) [LOAM_##id] = { __VA_ARGS__ },
#define RECURRENT_TEXT(id, name, gate, beta, delta, ...) [LOAM_##id] = { __VA_ARGS__ },

static const mechanism_text texts[] = { LOCAL_MECHANISMS(LOCAL_TEXT) RECURRENT_MECHANISMS(RECURRENT_TEXT) };

static loam_decay_axes decay_axes(const recurrent_form *form)
{
    switch (form->gate) {
    case GATE_HEAD: return LOAM_DECAY_HEAD;
    case GATE_TOKEN: return LOAM_DECAY_TOKEN;
    case GATE_CHANNEL: return LOAM_DECAY_CHANNEL;
    case GATE_NONE: break;
    }
    return LOAM_DECAY_NONE;
}

static void local_reads(loam_mechanism mechanism, loam_mechanism_info *info)
{
    info->family = LOAM_FAMILY_LOCAL;
    info->probe = mechanism == LOAM_PARALLAX;
    info->sink = mechanism == LOAM_SOFTMAX;
    info->beta_most = 2;
    if (mechanism == LOAM_LLA) {
        info->ridge_axes = 1u << LOAM_RIDGE_NUMBER | 1u << LOAM_RIDGE_HEAD | 1u << LOAM_RIDGE_TOKEN |
                           1u << LOAM_RIDGE_CHANNEL;
        info->ridge_units = 1u << LOAM_RIDGE_NORMALISED | 1u << LOAM_RIDGE_MAX | 1u << LOAM_RIDGE_TRACE;
    }
}

static void recurrent_reads(const recurrent_form *form, loam_mechanism_info *info)
{
    info->family = LOAM_FAMILY_RECURRENT;
    info->log_decay = decay_axes(form);
    info->beta = form->beta;
    info->beta_most = form->delta ? 2 : HUGE_VAL;
    info->delta = form->delta;
    info->normalise = !form->delta && !form->solved;
    if (form->solved) {
        info->ridge_axes = 1u << LOAM_RIDGE_NUMBER | 1u << LOAM_RIDGE_HEAD | 1u << LOAM_RIDGE_HEAD_CHANNEL;
        info->ridge_units = 1u << LOAM_RIDGE_NORMALISED;
        info->ridge_positive = 1;
    }
}

loam_status loam_mechanism_at(int index, loam_mechanism_info *info)
{
    if (index < 0 || index >= MECHANISM_COUNT || !info) {
        return LOAM_EARG;
    }
    const mechanism_text *t = &texts[index];
    const recurrent_form *form = recurrent_form_of((loam_mechanism)index);
    *info = (loam_mechanism_info){ .name = loam_mechanism_name((loam_mechanism)index),
                                   .objective = t->objective,
                                   .regulariser = t->regulariser,
                                   .update = t->update,
                                   .output = t->output,
                                   .cost = t->cost };
    if (form) {
        recurrent_reads(form, info);
    } else {
        local_reads((loam_mechanism)index, info);
    }
    return LOAM_OK;
}
