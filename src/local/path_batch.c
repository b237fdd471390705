/* SPDX-License-Identifier: MIT
 * PaTH for any probe: the workspace, the problems of the rows, and the sequence of back end operations. */
#include "src/local/path_batch.h"

enum { LEAST_GROUP = 8, MOST_GROUP = 64 };

static size_t step_bytes(const loam_problem *p)
{
    const bool backward = p->pass == LOAM_BACKWARD;
    const size_t channels = (size_t)(backward ? 2 * p->dim_qk + p->dim_v : p->dim_qk);
    return size_mul(size_mul((size_t)p->heads_kv, (size_t)p->len_kv), channels * sizeof(float));
}

static batch_shape shape_of(const batch_backend *backend, const loam_problem *p)
{
    const size_t each = step_bytes(p), room = backend->group_bytes / (each > 0 ? each : 1);
    batch_shape x;
    x.steps = p->len_q > p->len_kv ? p->len_q : p->len_kv;
    x.group = sequence_clamp((int64_t)room, LEAST_GROUP, MOST_GROUP);
    x.group = x.group < x.steps ? x.group : x.steps > 0 ? x.steps : 1;
    x.groups = (x.steps + x.group - 1) / x.group;
    x.no_rows = x.steps - p->len_q;
    return x;
}

/* Forward transforms one frame in place. Backward stores the first frame, those between it and a group, each
 * at half the remaining distance, and one that the reflections of the group write. */
static size_t frame_slots(const loam_problem *p, int64_t groups)
{
    size_t slots = p->pass == LOAM_BACKWARD ? 2 : 1;
    for (; p->pass == LOAM_BACKWARD && groups > 0; groups /= 2)
        slots++;
    return slots;
}

static void carve_outputs(const loam_problem *p, batch_arrays *w, arena *pool)
{
    const size_t rows = size_mul((size_t)w->shape.group, (size_t)p->heads_q), f32 = sizeof(float);
    const size_t pairs = p->pass == LOAM_FORWARD ? size_mul(rows, (size_t)p->len_kv) : 0;
    const size_t states = p->pass == LOAM_DECODE ? size_mul(rows, local_state_doubles(p)) : 0;
    w->o = arena_take(pool, size_mul(rows, (size_t)p->dim_v), f32);
    w->lse = arena_take(pool, rows, f32);
    w->rho = arena_take(pool, size_mul(rows, (size_t)p->dim_qk), f32);
    w->weights = arena_take(pool, pairs, f32);
    w->info = arena_take(pool, rows, sizeof(loam_row_info));
    w->states = arena_take(pool, states, sizeof(double));
}

static void carve_backward(const loam_problem *p, batch_arrays *w, arena *pool)
{
    const size_t group = (size_t)w->shape.group, rows = size_mul(group, (size_t)p->heads_q);
    const size_t keys = size_mul((size_t)p->heads_kv, (size_t)p->len_kv),
                 pairs = p->decay ? size_mul((size_t)p->heads_q, (size_t)p->len_kv) : 0;
    const size_t d = (size_t)p->dim_qk, dv = (size_t)p->dim_v, f32 = sizeof(float), f64 = sizeof(double);
    const size_t tiles = ((size_t)p->len_kv + BATCH_KEYS - 1) / BATCH_KEYS;
    w->grad_o = arena_take(pool, size_mul(rows, dv), f32);
    w->grad_q = arena_take(pool, size_mul(rows, d), f32);
    w->grad_probe = arena_take(pool, p->mechanism == LOAM_PARALLAX ? size_mul(rows, d) : 0, f32);
    w->grad_ridge = arena_take(pool, p->mechanism == LOAM_LLA ? size_mul(rows, d) : 0, f32);
    w->grad_k = arena_take(pool, size_mul(size_mul(group, keys), d), f32);
    w->grad_v = arena_take(pool, size_mul(size_mul(group, keys), dv), f32);
    w->columns = arena_take(pool, size_mul(group, pairs), f32);
    w->sum_k = arena_take(pool, size_mul(keys, d), f64);
    w->sum_v = arena_take(pool, size_mul(keys, dv), f64);
    w->sum_columns = arena_take(pool, pairs, f64);
    w->parts = arena_take(pool, size_mul(size_mul((size_t)p->heads_kv, tiles), size_mul(group, d + 1)), f64);
    w->sums = local_row_sums_carve(p, pool);
    w->head_sums = arena_take(pool, 2 * (size_t)p->heads_q, f64);
}

static batch_arrays carve(const batch_backend *backend, const loam_problem *p, arena *pool)
{
    batch_arrays w = { .shape = shape_of(backend, p), .own = *p, .end = p->len_kv };
    w.own.dtype = LOAM_F32;
    w.own.batch = w.shape.group, w.own.len_q = 1, w.own.total_q = w.own.total_kv = -1;
    w.frame = p->heads_kv * p->len_kv * p->dim_qk;
    const size_t group = (size_t)w.shape.group, rows = size_mul(group, (size_t)p->heads_q);
    const size_t keys = size_mul((size_t)p->heads_kv, (size_t)p->len_kv),
                 pairs = p->decay ? size_mul((size_t)p->heads_q, (size_t)p->len_kv) : 0;
    const size_t d = (size_t)p->dim_qk, f32 = sizeof(float), f64 = sizeof(double);
    const size_t frames = size_mul(frame_slots(p, w.shape.groups), size_mul(keys, d));
    size_t saved = 0;
    local_saved_carve(&w.own, NULL, &saved);
    w.values = arena_take(pool, size_mul(keys, (size_t)p->dim_v), f32);
    w.decay = arena_take(pool, p->decay ? size_add(pairs, LOCAL_DECAY_SPARE) : 0, sizeof(local_decay_pair));
    w.frames = arena_take(pool, frames, f64);
    w.turns = arena_take(pool, size_mul(size_mul((size_t)p->heads_kv, group), d + 1), f64);
    w.keys = arena_take(pool, size_mul(size_mul(group, keys), d), f32);
    w.lens = arena_take(pool, group, sizeof(int64_t));
    w.q = arena_take(pool, size_mul(rows, d), f32);
    w.probe = arena_take(pool, p->mechanism == LOAM_PARALLAX ? size_mul(rows, d) : 0, f32);
    w.ridge = arena_take(pool, p->mechanism == LOAM_LLA ? size_mul(rows, d) : 0, f32);
    w.saved = arena_take(pool, p->pass == LOAM_DECODE ? 0 : saved, 1);
    w.work = arena_take(pool, backend->work(&w.own), 1);
    if (p->pass == LOAM_BACKWARD)
        carve_backward(p, &w, pool);
    else
        carve_outputs(p, &w, pool);
    return w;
}

/* ------------------------------------------------------------------ the problems of the rows */

static loam_const_view by_keys(const void *data, const loam_problem *p, int64_t heads, int64_t width,
                               bool of_group)
{
    return (loam_const_view){ data, of_group ? heads * p->len_kv * width : 0, p->len_kv * width, width };
}

static loam_view by_keys_out(void *data, const loam_problem *p, int64_t heads, int64_t width)
{
    return (loam_view){ data, heads * p->len_kv * width, p->len_kv * width, width };
}

static int64_t ridge_width(const loam_problem *p)
{
    return p->ridge_axes == LOAM_RIDGE_CHANNEL ? p->dim_qk : 1;
}

static loam_args own_inputs(const loam_problem *p, const loam_args *a, const batch_arrays *w)
{
    return (loam_args){
        .q = loam_dense(w->q, p->heads_q, 1, p->dim_qk),
        .k = by_keys(w->keys, p, p->heads_kv, p->dim_qk, true),
        .v = by_keys(w->values, p, p->heads_kv, p->dim_v, false),
        .probe = loam_dense(w->probe, p->heads_q, 1, p->dim_qk),
        .ridge = p->ridge_axes >= LOAM_RIDGE_TOKEN ? loam_dense(w->ridge, p->heads_q, 1, ridge_width(p))
                                                   : a->ridge,
        .lens_kv = w->lens,
        .log_decay = by_keys(w->decay, p, p->heads_q, 1, false),
        .stream = a->stream,
        .work = w->work,
        .saved = p->pass == LOAM_BACKWARD || a->saved ? w->saved : NULL,
    };
}

static loam_args forward_args(const loam_problem *p, const loam_args *a, const batch_arrays *w)
{
    loam_args x = own_inputs(p, a, w);
    x.o = loam_dense_out(w->o, p->heads_q, 1, p->dim_v);
    if (a->lse.data) x.lse = loam_dense_out(w->lse, p->heads_q, 1, 1);
    if (a->rho.data) x.rho = loam_dense_out(w->rho, p->heads_q, 1, p->dim_qk);
    if (a->info.data) x.info = loam_dense_out(w->info, p->heads_q, 1, 1);
    if (a->weights.data) x.weights = loam_dense_out(w->weights, p->heads_q, 1, p->len_kv);
    return x;
}

static loam_args backward_args(const loam_problem *p, const loam_args *a, const batch_arrays *w)
{
    loam_args x = own_inputs(p, a, w);
    x.grad_o = loam_dense(w->grad_o, p->heads_q, 1, p->dim_v);
    x.grad_q = loam_dense_out(w->grad_q, p->heads_q, 1, p->dim_qk);
    x.grad_k = by_keys_out(w->grad_k, p, p->heads_kv, p->dim_qk);
    x.grad_v = by_keys_out(w->grad_v, p, p->heads_kv, p->dim_v);
    if (p->mechanism == LOAM_PARALLAX) x.grad_probe = loam_dense_out(w->grad_probe, p->heads_q, 1, p->dim_qk);
    if (p->mechanism == LOAM_LLA && p->ridge_axes >= LOAM_RIDGE_TOKEN)
        x.grad_ridge = loam_dense_out(w->grad_ridge, p->heads_q, 1, ridge_width(p));
    if (p->decay) x.grad_log_decay = by_keys_out(w->columns, p, p->heads_q, 1);
    return x;
}

/* ------------------------------------------------------------------ rows to copy */

static void add_rows(batch_moves *moves, void *data, loam_dtype dtype, int64_t batch, int64_t head,
                     int64_t token, int64_t width, void *own)
{
    if (data && width > 0)
        moves->rows[moves->count++] = (batch_rows){ data, dtype, batch, head, token, width, own };
}

static void add_input(batch_moves *moves, const loam_const_view *view, loam_dtype dtype, int64_t width,
                      float *own)
{
    add_rows(moves, (void *)(uintptr_t)view->data, dtype, view->batch, view->head, view->token, width, own);
}

/* scale: elements of dtype per element of the view. */
static void add_output(batch_moves *moves, const loam_view *view, loam_dtype dtype, int64_t scale,
                       int64_t width, void *own)
{
    add_rows(moves, view->data, dtype, scale * view->batch, scale * view->head, scale * view->token, width,
             own);
}

/* An array over rows in the order of local_row. */
static void add_line(batch_moves *moves, const loam_problem *p, void *data, loam_dtype dtype, int64_t width,
                     void *own)
{
    const bool packed = sequence_packed(p);
    add_rows(moves, data, dtype, packed ? 0 : p->heads_q * p->len_q * width,
             (packed ? p->total_q : p->len_q) * width, width, width, own);
}

/* The arrays that forward saves for backward. */
static void add_saved(batch_moves *moves, const loam_problem *p, void *saved, const batch_arrays *w)
{
    const local_saved all = local_saved_carve(p, saved, NULL),
                      own = local_saved_carve(&w->own, w->saved, NULL);
    const int64_t d = p->mechanism == LOAM_LLA ? p->dim_qk : 0, given = p->mechanism == LOAM_PARALLAX;
    if (saved) {
        add_line(moves, p, all.lse, LOAM_F32, 1, own.lse);
        add_line(moves, p, all.vbar, LOAM_F32, p->dim_v, own.vbar);
        add_line(moves, p, all.tbar, LOAM_F32, 2 * given, own.tbar);
        add_line(moves, p, all.value_shift, LOAM_F32, p->dim_v * given, own.value_shift);
        add_line(moves, p, all.kbar, LOAM_F32, d, own.kbar);
        add_line(moves, p, all.rho, LOAM_F32, d, own.rho);
    }
}

/* The rows that every pass reads. */
static void add_inputs(batch_moves *moves, const loam_problem *p, const loam_args *a, const batch_arrays *w)
{
    add_input(moves, &a->q, p->dtype, p->dim_qk, w->q);
    if (p->mechanism == LOAM_PARALLAX) add_input(moves, &a->probe, p->dtype, p->dim_qk, w->probe);
    if (p->mechanism == LOAM_LLA && p->ridge_axes >= LOAM_RIDGE_TOKEN)
        add_input(moves, &a->ridge, LOAM_F32, ridge_width(p), w->ridge);
}

static void add_results(batch_moves *moves, const loam_problem *p, const loam_args *a, const batch_arrays *w)
{
    const int words = sizeof(loam_row_info) / sizeof(float);
    add_output(moves, &a->o, p->dtype, 1, p->dim_v, w->o);
    add_output(moves, &a->lse, LOAM_F32, 1, 1, w->lse);
    add_output(moves, &a->rho, LOAM_F32, 1, p->dim_qk, w->rho);
    add_output(moves, &a->weights, LOAM_F32, 1, p->len_kv, w->weights);
    add_output(moves, &a->info, LOAM_F32, words, words, w->info);
    add_saved(moves, p, a->saved, w);
}

static void add_gradients(batch_moves *moves, const loam_problem *p, const loam_args *a,
                          const batch_arrays *w, const local_row_sums *own)
{
    add_output(moves, &a->grad_q, p->dtype, 1, p->dim_qk, w->grad_q);
    add_output(moves, &a->grad_probe, p->dtype, 1, p->dim_qk, w->grad_probe);
    if (p->ridge_axes >= LOAM_RIDGE_TOKEN)
        add_output(moves, &a->grad_ridge, LOAM_F32, 1, ridge_width(p), w->grad_ridge);
    add_line(moves, p, w->sums.scale, LOAM_F64, 1, own->scale);
    add_line(moves, p, w->sums.ridge, LOAM_F64, p->mechanism == LOAM_LLA, own->ridge);
    add_line(moves, p, w->sums.inner, LOAM_F64, p->decay, own->inner);
}

/* ------------------------------------------------------------------ groups */

static batch_steps group_at(const batch_arrays *w, int64_t b, int64_t n)
{
    const int64_t first = n * w->shape.group, left = w->shape.steps - first;
    const int64_t count = left < w->shape.group ? left : w->shape.group;
    return (batch_steps){ b, first, count, first + count > w->shape.no_rows };
}

/* Sets the problem of a group: the number of rows, and the most keys that they see. */
static void set_own(const loam_problem *p, batch_arrays *w, const batch_steps *steps)
{
    w->own.batch = steps->count;
    w->own.len_kv = batch_keys_before(p, w, steps->first + steps->count);
}

static loam_status forward_group(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                                 batch_arrays *w, const batch_steps *steps, loam_error *error)
{
    batch_moves in = { .count = 0 }, out = { .count = 0 };
    TRY(backend->turn(p, a, w, steps, 0, 0, steps->rows, error));
    if (!steps->rows) return LOAM_OK;
    set_own(p, w, steps);
    const loam_args own = forward_args(p, a, w);
    add_inputs(&in, p, a, w);
    add_results(&out, p, a, w);
    TRY(backend->move(p, a, w, &in, true, steps, error));
    if (a->weights.data) { /* 0 for keys that a row does not see */
        const size_t pairs = (size_t)(steps->count * p->heads_q * p->len_kv);
        TRY(backend->clear(a, w->weights, pairs * sizeof(float), error));
    }
    TRY(backend->forward(w, &own, error));
    return backend->move(p, a, w, &out, false, steps, error);
}

/* The rows of a group, whose keys are in w->keys. */
static loam_status backward_rows(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                                 batch_arrays *w, const batch_steps *steps, loam_error *error)
{
    batch_moves in = { .count = 0 }, out = { .count = 0 };
    local_row_sums sums;
    set_own(p, w, steps);
    const loam_args own = backward_args(p, a, w);
    const int64_t keys = w->own.len_kv, stored = p->len_kv;
    add_inputs(&in, p, a, w);
    add_saved(&in, p, a->saved, w);
    add_input(&in, &a->grad_o, p->dtype, p->dim_v, w->grad_o);
    TRY(backend->move(p, a, w, &in, true, steps, error));
    if (p->decay) { /* 0 for keys that a row does not see */
        const size_t pairs = (size_t)(steps->count * p->heads_q * p->len_kv);
        TRY(backend->clear(a, w->columns, pairs * sizeof(float), error));
    }
    TRY(backend->backward(w, &own, &sums, error));
    add_gradients(&out, p, a, w, &sums);
    TRY(backend->move(p, a, w, &out, false, steps, error));
    if (p->decay && keys > 0)
        TRY(backend->add(a, w->sum_columns, w->columns, p->heads_q, stored, keys, 1, steps->count, error));
    return keys > 0 ? backend->add(a, w->sum_v, w->grad_v, p->heads_kv, stored, keys, p->dim_v, steps->count,
                                   error)
                    : LOAM_OK;
}

/* Slot n holds the frame before group[n]; slot 0 that before the first step, where there are no keys. */
enum { MOST_FRAMES = 64 };
typedef struct frame_stack {
    int64_t group[MOST_FRAMES];
    int count;
} frame_stack;

/* Pushes frames until the last one is that before group n. */
static loam_status push_frame(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                              const batch_arrays *w, frame_stack *frames, int64_t b, int64_t n,
                              loam_error *error)
{
    for (int64_t from = frames->group[frames->count - 1]; from < n; from = frames->group[frames->count - 1]) {
        const int64_t to = from + (n - from + 1) / 2, group = w->shape.group;
        const batch_steps steps = { b, from * group, (to - from) * group, false };
        TRY(backend->turn(p, a, w, &steps, frames->count - 1, frames->count, false, error));
        frames->group[frames->count++] = to;
    }
    return LOAM_OK;
}

static loam_status backward_group(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                                  batch_arrays *w, frame_stack *frames, int64_t b, int64_t n,
                                  loam_error *error)
{
    const batch_steps steps = group_at(w, b, n);
    TRY(push_frame(backend, p, a, w, frames, b, n, error));
    TRY(backend->turn(p, a, w, &steps, frames->count - 1, frames->count, true, error));
    if (steps.rows) TRY(backward_rows(backend, p, a, w, &steps, error));
    TRY(backend->turn_back(p, a, w, &steps, frames->count - 1, error));
    frames->count -= n > 0;
    return LOAM_OK;
}

/* ------------------------------------------------------------------ passes */

size_t local_path_batch_work(const batch_backend *backend, const loam_problem *p)
{
    arena pool = { 0 };
    carve(backend, p, &pool);
    return pool.used;
}

loam_status local_path_batch_forward(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                                     loam_error *error)
{
    arena pool = { a->work, 0 };
    batch_arrays w = carve(backend, p, &pool);
    for (int64_t b = 0; p->len_q > 0 && b < p->batch; b++) {
        TRY(backend->begin(p, a, &w, b, error));
        for (int64_t n = 0; n < w.shape.groups; n++) {
            const batch_steps steps = group_at(&w, b, n);
            TRY(forward_group(backend, p, a, &w, &steps, error));
        }
    }
    return loam_succeed(error);
}

static loam_status clear_sums(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                              const batch_arrays *w, loam_error *error)
{
    const size_t keys = (size_t)(p->heads_kv * p->len_kv) * sizeof(double);
    const size_t pairs = p->decay ? (size_t)(p->heads_q * p->len_kv) * sizeof(double) : 0;
    TRY(backend->clear(a, w->sum_k, keys * (size_t)p->dim_qk, error));
    TRY(backend->clear(a, w->sum_v, keys * (size_t)p->dim_v, error));
    return backend->clear(a, w->sum_columns, pairs, error);
}

loam_status local_path_batch_backward(const batch_backend *backend, const loam_problem *p, const loam_args *a,
                                      loam_error *error)
{
    arena pool = { a->work, 0 };
    batch_arrays w = carve(backend, p, &pool);
    for (int64_t b = 0; b < p->batch; b++) {
        frame_stack frames = { { 0 }, 1 };
        TRY(backend->begin(p, a, &w, b, error));
        TRY(clear_sums(backend, p, a, &w, error));
        for (int64_t n = w.shape.groups - 1; n >= 0; n--)
            TRY(backward_group(backend, p, a, &w, &frames, b, n, error));
        TRY(backend->finish(p, a, &w, b, error));
    }
    return backend->reduce(p, a, &w, error);
}

/* Copies the states of the group to their places among all rows. */
static void put_states(const loam_problem *p, const loam_args *a, const batch_arrays *w,
                       const batch_steps *steps, double *states)
{
    const local_seq s = local_seq_at(p, a, steps->b);
    const size_t doubles = local_state_doubles(p);
    for (int64_t row = 0; row < steps->count * p->heads_q; row++) {
        const int64_t i = batch_step_at(&w->shape, &s, steps->first + row / p->heads_q).query;
        if (i >= 0) {
            double *to = states + local_row(p, &s, row % p->heads_q, i) * (int64_t)doubles;
            memcpy(to, w->states + row * (int64_t)doubles, doubles * sizeof *to);
        }
    }
}

loam_status local_path_batch_partial(const batch_backend *backend, kernel_partial_fn *partial,
                                     const loam_problem *p, const loam_args *a, int64_t first, int64_t count,
                                     double *states, loam_error *error)
{
    arena pool = { a->work, 0 };
    batch_arrays w = carve(backend, p, &pool);
    w.first = first, w.end = first + count;
    for (int64_t b = 0; p->len_q > 0 && b < p->batch; b++) {
        TRY(backend->begin(p, a, &w, b, error));
        for (int64_t n = 0; n < w.shape.groups; n++) {
            const batch_steps steps = group_at(&w, b, n);
            batch_moves in = { .count = 0 };
            TRY(backend->turn(p, a, &w, &steps, 0, 0, steps.rows, error));
            if (!steps.rows) continue;
            set_own(p, &w, &steps);
            w.own.len_kv = p->len_kv; /* the slice may lie beyond the keys that the rows see */
            loam_args own = own_inputs(p, a, &w);
            own.k.data = w.keys + first * p->dim_qk, own.v.data = w.values + first * p->dim_v;
            add_inputs(&in, p, a, &w);
            TRY(backend->move(p, a, &w, &in, true, &steps, error));
            TRY(partial(&w.own, &own, first, count, w.states, error));
            put_states(p, a, &w, &steps, states);
        }
    }
    return loam_succeed(error);
}
