/* SPDX-License-Identifier: MIT
 * Where sequences lie on the token axis: one for each batch entry, or packed one after another. */
#ifndef LOAM_BASE_SEQUENCE_H
#define LOAM_BASE_SEQUENCE_H

#include "loam.h"
#include "src/base/inline.h"

#include <stdbool.h>

LOAM_INLINE bool sequence_packed(const loam_problem *p) { return p->total_q >= 0; }

LOAM_INLINE int64_t sequence_clamp(int64_t x, int64_t lo, int64_t hi)
{
    return x < lo ? lo : x > hi ? hi : x;
}

/* Tokens `first` .. `first + len - 1` of the token axis. */
typedef struct sequence_span {
    int64_t first, len;
} sequence_span;

/* Sequence b of packed ones, of at most `longest` tokens. On a GPU the host has not checked cu: the span is
 * clamped to the `total` tokens of the arrays. */
LOAM_INLINE sequence_span sequence_span_at(const int64_t *cu, int64_t b, int64_t longest, int64_t total)
{
    const int64_t first = sequence_clamp(cu[b], 0, total), end = sequence_clamp(cu[b + 1], first, total);
    const sequence_span span = { first, sequence_clamp(end - first, 0, longest) };
    return span;
}

#endif
