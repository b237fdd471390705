/* SPDX-License-Identifier: MIT */
#include "src/core/family.h"

#include "src/core/mechanisms.h"

#define LOCAL(id, ...) [LOAM_##id] = &family_local,
#define RECURRENT(id, ...) [LOAM_##id] = &family_recurrent,

static const family *const families[] = { LOCAL_MECHANISMS(LOCAL) RECURRENT_MECHANISMS(RECURRENT) };

const family *family_of(loam_mechanism mechanism)
{
    return (size_t)mechanism < MECHANISM_COUNT ? families[mechanism] : NULL;
}
