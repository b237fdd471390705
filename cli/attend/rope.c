/* SPDX-License-Identifier: MIT
 * Rotary positions: queries and keys turn before anything else, their gradients turn back after it. On the
 * host, whatever the back end. */
#include "cli/attend/attend.h"

#include <stdlib.h>

/* The last query stands where the last key does. */
static int turn(attend_run *run, array *a, int64_t position, const int64_t *positions, int inverse,
                io_error *error)
{
    const attend_options *o = run->options;
    loam_rope rope = loam_rope_default(a->dtype);
    if (!a->data) return 0;
    const attend_sizes sizes = attend_sizes_of(run, a);
    rope.batch = sizes.batch, rope.heads = sizes.heads, rope.tokens = sizes.tokens;
    rope.channels = sizes.channels, rope.dim = o->rope_dim, rope.base = o->rope;
    rope.layout = (loam_rope_layout)o->choice.rope_layout;
    rope.offset = o->rope_offset + position, rope.positions = positions;
    rope.inverse = inverse, rope.threads = (int)o->threads;
    const loam_view view = attend_view(run, a);
    const loam_const_view from = { view.data, view.batch, view.head, view.token };
    loam_error reason;
    return loam_rope_apply(&rope, &from, &view, &reason)
               ? io_fail(error, EXIT_USAGE, "--rope: %s", reason.text)
               : 0;
}

static int turn_packed(attend_run *run, array *a, bool keys, int inverse, io_error *error)
{
    int64_t *positions = attend_packed_positions(run, keys);
    if (!positions) return io_fail(error, EXIT_INTERNAL, "out of memory for the positions of the tokens");
    const int status = turn(run, a, 0, positions, inverse, error);
    free(positions);
    return status;
}

static int turn_both(attend_run *run, array *q, array *k, int inverse, io_error *error)
{
    const int64_t first = run->problem.len_kv - run->problem.len_q;
    const bool packed = run->cu_q.at != NULL;
    if (run->options->rope == 0) return 0;
    const int status = packed ? turn_packed(run, q, false, inverse, error)
                              : turn(run, q, first, NULL, inverse, error);
    if (status) return status;
    return packed ? turn_packed(run, k, true, inverse, error) : turn(run, k, 0, NULL, inverse, error);
}

int attend_rope_inputs(attend_run *run, io_error *error)
{
    return turn_both(run, &run->in[IN_Q], &run->in[IN_K], 0, error);
}

int attend_rope_gradients(attend_run *run, io_error *error)
{
    return turn_both(run, &run->out[OUT_DQ], &run->out[OUT_DK], 1, error);
}
