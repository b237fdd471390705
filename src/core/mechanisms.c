/* SPDX-License-Identifier: MIT
 * What each mechanism fits and reads (loam_mechanism_at). */
#include "src/core/mechanisms.h"

#include "src/core/family.h"

typedef struct mechanism_text {
    const char *objective, *regulariser, *update, *output, *cost;
} mechanism_text;

#define LOCAL_TEXT(id, name, ...) [LOAM_##id] = { __VA_ARGS__ },
#define RECURRENT_TEXT(id, name, gate, beta, delta, ...) [LOAM_##id] = { __VA_ARGS__ },

static const mechanism_text texts[] = { LOCAL_MECHANISMS(LOCAL_TEXT) RECURRENT_MECHANISMS(RECURRENT_TEXT) };

loam_status loam_mechanism_at(int index, loam_mechanism_info *info)
{
    if (index < 0 || index >= MECHANISM_COUNT || !info) return LOAM_EARG;
    const loam_mechanism mechanism = (loam_mechanism)index;
    const mechanism_text *t = &texts[index];
    *info = (loam_mechanism_info){ .name = loam_mechanism_name(mechanism),
                                   .objective = t->objective,
                                   .regulariser = t->regulariser,
                                   .update = t->update,
                                   .output = t->output,
                                   .cost = t->cost };
    family_of(mechanism)->describe(mechanism, info);
    return LOAM_OK;
}
