/* SPDX-License-Identifier: MIT */
#include "lm/hybrid.h"

#include "lm/manner.h"

int64_t hybrid_rows(const lm_config *c) { return c->head_dim + 3; }

void hybrid_close(hybrid_room *w)
{
    memory_close(&w->room);
    *w = (hybrid_room){ 0 };
}

static bool make_room(hybrid_room *w, const machine *on, size_t bytes)
{
    if (bytes <= w->bytes) return true;
    hybrid_close(w);
    w->room.gpu = on->gpu;
    (void)memory_take(&w->room, (int64_t)bytes, 1);
    if (!memory_open(&w->room, on)) return false;
    w->work = memory_take(&w->room, (int64_t)bytes, 1), w->bytes = bytes;
    return true;
}

static loam_problem problem_of(const machine *on, const lm_options *options, const lm_config *c,
                               int64_t layer, int64_t texts, int64_t tokens, loam_pass pass)
{
    loam_problem p = loam_problem_default(LOAM_LINEAR, pass);
    p.dtype = on->operand, p.backend = machine_backend(on), p.threads = on->threads;
    p.heads_q = c->heads_q, p.heads_kv = c->heads_kv;
    p.batch = texts, p.len_q = tokens, p.dim_qk = p.dim_v = c->head_dim;
    p.scale = options->inverse_temperature * lm_config_scale(c, layer);
    manner_features_problem(manner_features(options, layer), &p);
    return p;
}

/* Of rows of a text each. */
static loam_const_view heads_of(matrix x, int64_t d, int64_t rows)
{
    return (loam_const_view){ x.data, rows * x.row, d, x.row };
}

static loam_const_view state_of(const hybrid_kept *kept, const lm_features *f, const lm_config *c)
{
    return loam_dense(kept->state.data, manner_features_heads(f, c), hybrid_rows(c), f->features + 1);
}

/* What the call leaves. */
static void keep(const hybrid_kept *kept, const lm_options *options, const lm_config *c, const lm_features *f,
                 loam_args *args, loam_hybrid_args *more)
{
    const int64_t slots = options->sinks + options->window;
    args->state_out = loam_dense_out(kept->state.data, manner_features_heads(f, c), hybrid_rows(c),
                                     f->features + 1);
    more->keys = loam_dense_out(kept->keys.data, c->heads_kv, slots, c->head_dim);
    more->values = loam_dense_out(kept->values.data, c->heads_kv, slots, c->head_dim);
}

int hybrid_attend(hybrid_room *w, const machine *on, const lm_options *options, const lm_config *c,
                  int64_t layer, int64_t texts, matrix o, matrix q, matrix k, matrix v,
                  const hybrid_kept *kept, io_error *error)
{
    const int64_t d = c->head_dim, rows = q.rows / texts;
    const lm_features *f = manner_features(options, layer);
    const bool goes_on = kept && !kept->begins;
    const loam_problem p = problem_of(on, options, c, layer, texts, rows,
                                      goes_on ? LOAM_DECODE : LOAM_FORWARD);
    loam_hybrid_args more = { .gain = f->gain };
    loam_args args = { .q = heads_of(q, d, rows),
                       .k = heads_of(k, d, rows),
                       .v = heads_of(v, d, rows),
                       .o = { o.data, rows * o.row, d, o.row },
                       .stream = machine_stream(on) };
    if (f->untied) return io_fail(error, EXIT_USAGE, "a window beside untied features: expected one of them");
    loam_hybrid *call;
    loam_error reason;
    if (loam_hybrid_create(&call, &p, options->sinks, options->window, &reason))
        return io_fail(error, EXIT_INTERNAL, "%s", reason.text);
    manner_features_args(f, c, &args);
    if (kept) keep(kept, options, c, f, &args, &more);
    if (goes_on) args.state_in = state_of(kept, f, c), more.seen = kept->seen;
    int status = make_room(w, on, loam_hybrid_work_bytes(call))
                     ? 0
                     : io_fail(error, EXIT_INTERNAL, "out of memory for sinks, windows and features");
    args.work = w->work;
    if (!status && loam_hybrid_run(call, &args, &more, &reason))
        status = io_fail(error, EXIT_INTERNAL, "%s", reason.text);
    loam_hybrid_destroy(call);
    return status;
}
