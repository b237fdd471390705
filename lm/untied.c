/* SPDX-License-Identifier: MIT */
#include "lm/untied.h"

void untied_close(untied_room *r)
{
    memory_close(&r->room);
    *r = (untied_room){ 0 };
}

static void take(untied_room *r, const machine *on, int64_t most, matrix q, matrix k)
{
    r->q = memory_matrix(&r->room, on->operand, 1, most, 2 * q.width);
    r->k = memory_matrix(&r->room, on->operand, 1, most, 2 * k.width);
}

/* Memory of a machine begins as zeros, and halves that are not written stay so. */
static int open_room(untied_room *r, const machine *on, int64_t most, matrix q, matrix k, io_error *error)
{
    if (r->q.data) return 0;
    take(r, on, most, q, k);
    if (!memory_open(&r->room, on)) {
        *r = (untied_room){ 0 };
        return io_fail(error, EXIT_INTERNAL, "out of memory for untied features");
    }
    take(r, on, most, q, k);
    return 0;
}

/* Heads of d into one half, 0 or 1, of those of 2 d; what the library reads. */
static loam_const_view widen(const machine *on, matrix to, matrix x, int64_t d, int half, int64_t tokens)
{
    matrix out = matrix_columns(to, half * d, d);
    out.rows = x.rows;
    out.models = x.models = x.width / d, out.model = 2 * d, x.model = d, x.width = d;
    on->op->copy(on, out, x);
    return (loam_const_view){ to.data, tokens * to.row, 2 * d, to.row };
}

int untied_args(untied_room *r, const machine *on, int64_t most, int64_t tokens, int64_t d, matrix q,
                matrix k, loam_args *args, io_error *error)
{
    const int status = open_room(r, on, most, q, k, error);
    if (status) return status;
    args->q = widen(on, r->q, q, d, 0, tokens);
    args->k = widen(on, r->k, k, d, 1, tokens);
    return 0;
}
