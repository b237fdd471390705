/* SPDX-License-Identifier: MIT */
#include "lm/window.h"

#include <stdlib.h>

void window_close(window_room *w, const machine *on)
{
    memory work = { .gpu = on->gpu, .base = w->work };
    loam_plan_destroy(w->plan);
    memory_close(&work);
    memory_close(&w->room);
    *w = (window_room){ 0 };
}

static void take(window_room *w, const machine *on, int64_t width)
{
    w->k = memory_matrix(&w->room, on->operand, w->tokens, w->seen, width);
    w->v = memory_matrix(&w->room, on->operand, w->tokens, w->seen, width);
    w->counts = memory_take(&w->room, w->tokens, sizeof *w->counts);
}

static bool open_work(window_room *w, const machine *on)
{
    memory room = { .gpu = on->gpu };
    (void)memory_take(&room, (int64_t)loam_plan_work_bytes(w->plan), 1);
    if (!memory_open(&room, on)) return false;
    w->work = room.base;
    return true;
}

static bool open_room(window_room *w, const machine *on, int64_t width)
{
    take(w, on, width);
    if (!memory_open(&w->room, on)) return false;
    take(w, on, width);
    int64_t *const counts = malloc((size_t)w->tokens * sizeof *counts);
    if (!counts) return false;
    for (int64_t i = 0; i < w->tokens; i++)
        counts[i] = i < w->seen ? i + 1 : w->seen;
    machine_upload(on, w->counts, counts, (size_t)w->tokens * sizeof *counts);
    free(counts);
    return true;
}

static int open_window(window_room *w, const machine *on, const lm_options *options, matrix q, matrix k,
                       int64_t d, double scale, io_error *error)
{
    loam_error reason;
    loam_problem p = loam_problem_default(LOAM_SOFTMAX, LOAM_FORWARD);
    *w = (window_room){ .tokens = q.rows, .seen = options->sinks + options->window, .scale = scale };
    p.dtype = on->operand, p.backend = machine_backend(on), p.threads = on->threads;
    p.batch = w->tokens, p.len_q = 1, p.len_kv = w->seen, p.causal = 0;
    p.heads_q = q.width / d, p.heads_kv = k.width / d;
    p.dim_qk = p.dim_v = d;
    p.scale = scale;
    int status = loam_plan_create(&w->plan, &p, &reason) ? io_fail(error, EXIT_INTERNAL, "%s", reason.text)
                                                         : 0;
    if (!status && (!open_work(w, on) || !open_room(w, on, k.width)))
        status = io_fail(error, EXIT_INTERNAL, "out of memory for windows of keys");
    if (status) window_close(w, on);
    return status;
}

/* `count` rows of each text from `first` on: of text i row i `step` + `row` and those after it. */
static void gather(const machine *on, matrix to, matrix from, int64_t texts, int64_t first_text,
                   int64_t first, int64_t count, int64_t row, int64_t step)
{
    matrix out = to, x = matrix_rows(from, row, count);
    out.data = (char *)out.data + first_text * out.model * matrix_bytes_each(out);
    out = matrix_rows(out, first, count);
    out.models = x.models = texts, x.model = step * from.row;
    if (texts > 0 && count > 0) on->op->copy(on, out, x);
}

/* The first `seen` tokens see all before them; those after them the sinks, then their window. */
static void gather_all(const window_room *w, const machine *on, const lm_options *o, matrix to, matrix from)
{
    const int64_t first = w->tokens < w->seen ? w->tokens : w->seen, rest = w->tokens - first;
    gather(on, to, from, first, 0, 0, first, 0, 0);
    gather(on, to, from, rest, first, 0, o->sinks, 0, 0);
    gather(on, to, from, rest, first, o->sinks, o->window, o->sinks + 1, 1);
}

int window_attend(window_room *w, const machine *on, const lm_options *options, int64_t d, double scale,
                  matrix o, matrix q, matrix k, matrix v, io_error *error)
{
    loam_error reason;
    const bool same = w->plan && w->tokens == q.rows && w->seen == options->sinks + options->window &&
                      !(w->scale < scale) && !(w->scale > scale);
    if (!same) {
        window_close(w, on);
        const int status = open_window(w, on, options, q, k, d, scale, error);
        if (status) return status;
    }
    gather_all(w, on, options, w->k, matrix_rows(k, 0, q.rows));
    gather_all(w, on, options, w->v, matrix_rows(v, 0, q.rows));
    const loam_args args = { .q = { q.data, q.row, d, q.row },
                             .k = { w->k.data, w->k.model, d, w->k.row },
                             .v = { w->v.data, w->v.model, d, w->v.row },
                             .o = { o.data, o.row, d, o.row },
                             .lens_kv = w->counts,
                             .work = w->work,
                             .stream = machine_stream(on) };
    return loam_run(w->plan, &args, &reason) ? io_fail(error, EXIT_INTERNAL, "%s", reason.text) : 0;
}
