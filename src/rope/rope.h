/* SPDX-License-Identifier: MIT
 * Rotary positions (Su et al. 2021, eq. 34): what the code for host memory and that for device memory share.
 */
#ifndef LOAM_ROPE_ROPE_H
#define LOAM_ROPE_ROPE_H

#include "src/base/dtype.h"
#include "src/base/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The two channels of plane c. */
typedef struct rope_plane {
    int64_t x, y;
} rope_plane;

LOAM_INLINE rope_plane rope_plane_of(const loam_rope *r, int64_t c)
{
    return r->layout == LOAM_ROPE_HALF ? (rope_plane){ c, c + r->dim / 2 } : (rope_plane){ 2 * c, 2 * c + 1 };
}

LOAM_INLINE int64_t rope_position(const loam_rope *r, int64_t b, int64_t t)
{
    return r->positions ? r->positions[b * r->positions_batch + t] : r->offset + t;
}

#define ROPE_AT(view, b, h, t) ((b) * (view)->batch + (h) * (view)->head + (t) * (view)->token)

/* Angle of each plane at position 1, in radians. Computed on the host for both back ends: a unit in the last
 * place of it is an error of 1e-10 radians at position 10^6. */
typedef struct rope_frequencies {
    double plane[LOAM_MAX_DIM / 2];
} rope_frequencies;

/* Launches the kernel. Options are checked and have their defaults filled in. */
loam_status rope_apply_cuda(const loam_rope *rope, const rope_frequencies *frequencies,
                            const loam_const_view *from, const loam_view *to, loam_error *error);

#ifdef __cplusplus
}
#endif

#endif
