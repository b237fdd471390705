/* SPDX-License-Identifier: MIT
 * The switches of each mechanism of the recurrent family. */
#include "src/recurrent/mechanisms.h"
#include "src/recurrent/recurrent.h"

#define FORM(id, ...) [LOAM_##id] = &(const recurrent_form){ __VA_ARGS__ },
#define DIRECT_FORM(id, name, gate, beta, delta, ...) FORM(id, gate, beta, delta, false)
#define SOLVED_FORM(id, name, gate, beta, delta, ...) FORM(id, gate, beta, delta, true)

static const recurrent_form *const forms[] = { RECURRENT_DIRECT(DIRECT_FORM) RECURRENT_SOLVED(SOLVED_FORM) };

const recurrent_form *recurrent_form_of(loam_mechanism mechanism)
{
    return (size_t)mechanism < sizeof forms / sizeof forms[0] ? forms[mechanism] : NULL;
}
