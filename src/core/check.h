/* SPDX-License-Identifier: MIT
 * The checks that families share: of sizes, pointers and arrays. Arrays in device memory are not read. */
#ifndef LOAM_CORE_CHECK_H
#define LOAM_CORE_CHECK_H

#include "src/base/error.h"
#include "src/base/sequence.h"

/* The rows in use of an array [batch, heads, tokens, channels]: all or, where lens is given, the first
 * lens[b] tokens of batch entry b. */
typedef struct extent {
    int64_t batch, heads, tokens, channels;
    const int64_t *lens;
} extent;

static inline int64_t extent_rows(extent e) { return e.batch * e.heads * e.tokens; }

/* Of an array over the tokens of q, and of one over those of k. */
static inline extent extent_of_q(const loam_problem *p, int64_t heads, int64_t channels)
{
    return sequence_packed(p) ? (extent){ 1, heads, p->total_q, channels, NULL }
                              : (extent){ p->batch, heads, p->len_q, channels, NULL };
}

static inline extent extent_of_k(const loam_problem *p, int64_t heads, int64_t channels)
{
    return sequence_packed(p) ? (extent){ 1, heads, p->total_kv, channels, NULL }
                              : (extent){ p->batch, heads, p->len_kv, channels, NULL };
}

static inline bool on_device(const loam_problem *p) { return p->backend == LOAM_BACKEND_CUDA; }

loam_status check_size(const char *name, int64_t value, int64_t least, int64_t most, loam_error *error);
loam_status check_given(const void *data, const char *name, const char *why, loam_error *error);

/* Rows of an output do not overlap: that would be a race. */
loam_status check_output(const loam_view *view, const char *name, extent e, loam_error *error);
/* Every value of a real array is from `least` to `most`. */
loam_status check_range(const loam_problem *p, const loam_const_view *view, const char *name, extent e,
                        double least, double most, const char *expected, loam_error *error);
/* Every row of an array of the problem's type has length 1, to the rounding of that type, or 0. */
loam_status check_unit(const loam_problem *p, const loam_const_view *view, const char *name, extent e,
                       loam_error *error);
/* The offsets of packed sequences of at most `longest` tokens, `total` in all. */
loam_status check_ascending(const loam_problem *p, const int64_t *cu, const char *name, int64_t longest,
                            int64_t total, loam_error *error);

#endif
