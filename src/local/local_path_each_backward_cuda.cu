/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs, rows as problems of their own: backward, from the last group to the first. */
#include "src/local/local_path_each_cuda.cuh"

/* Frames before groups; slot n holds that of group[n]. Slot 0 is before the first step, where there are no keys. */
enum { MOST_FRAMES = 64 };
struct frame_stack {
    int64_t group[MOST_FRAMES];
    int count;
};

static loam_status run_group(const loam_args *own, const each_arrays *w, loam_error *error)
{
    const loam_problem *p = &w->own;
    if (p->mechanism != LOAM_SOFTMAX) {
        TRY(local_probe_gradient_cuda(p, own, &w->rows, error));
    }
    if (p->mechanism == LOAM_LLA) {
        TRY(local_adjoint_all64_cuda(p, own, &w->rows, w->solver, error));
    }
    TRY(local_query_gradient_wide_cuda(p, own, &w->rows, error));
    return p->len_kv > 0 ? local_key_gradient_wide_cuda(p, own, &w->rows, error) : LOAM_OK;
}

static loam_args backward_args(const loam_problem *p, const loam_args *a, const each_arrays *w)
{
    const int64_t keys = p->len_kv, d = p->dim_qk, dv = p->dim_v;
    loam_args x = each_args(p, a, w);
    x.grad_o = loam_dense(w->grad_o, p->heads_q, 1, dv);
    x.grad_q = loam_dense_out(w->grad_q, p->heads_q, 1, d);
    x.grad_k = loam_view{ w->grad_k, p->heads_kv * keys * d, keys * d, d };
    x.grad_v = loam_view{ w->grad_v, p->heads_kv * keys * dv, keys * dv, dv };
    if (p->mechanism == LOAM_PARALLAX) {
        x.grad_probe = loam_dense_out(w->grad_probe, p->heads_q, 1, d);
    }
    if (p->mechanism == LOAM_LLA && p->ridge_axes >= LOAM_RIDGE_TOKEN) {
        x.grad_ridge = loam_dense_out(w->grad_ridge, p->heads_q, 1,
                                      p->ridge_axes == LOAM_RIDGE_CHANNEL ? d : 1);
    }
    if (p->decay) {
        x.grad_log_decay = loam_view{ w->columns, p->heads_q * keys, keys, 1 };
    }
    return x;
}

static void add_outputs(each_moves *moves, const loam_problem *p, const loam_args *a, const each_arrays *w)
{
    const local_row_sums *all = &w->all.sums, *own = &w->rows.sums;
    each_add_rows(moves, a->grad_q.data, p->dtype, a->grad_q.batch, a->grad_q.head, a->grad_q.token,
                  p->dim_qk, w->grad_q);
    each_add_rows(moves, a->grad_probe.data, p->dtype, a->grad_probe.batch, a->grad_probe.head,
                  a->grad_probe.token, p->dim_qk, w->grad_probe);
    if (p->ridge_axes >= LOAM_RIDGE_TOKEN) {
        each_add_rows(moves, a->grad_ridge.data, LOAM_F32, a->grad_ridge.batch, a->grad_ridge.head,
                      a->grad_ridge.token, p->ridge_axes == LOAM_RIDGE_CHANNEL ? p->dim_qk : 1,
                      w->grad_ridge);
    }
    each_add_line(moves, p, all->scale, LOAM_F64, 1, own->scale);
    each_add_line(moves, p, all->ridge, LOAM_F64, p->mechanism == LOAM_LLA, own->ridge);
    each_add_line(moves, p, all->inner, LOAM_F64, p->decay, own->inner);
}

/* The rows of a group, whose keys lie in w->keys. */
static loam_status backward_rows(const loam_problem *p, const loam_args *a, each_arrays *w, int64_t b,
                                 int64_t first, int64_t count, loam_error *error)
{
    each_moves in = {}, out = {};
    w->own.batch = count;
    w->own.len_kv = each_keys_before(p, w, first + count);
    const loam_args own = backward_args(p, a, w);
    each_add_inputs(&in, p, a, w);
    each_add_saved(&in, p, a->saved, w);
    each_add_rows(&in, (void *)a->grad_o.data, p->dtype, a->grad_o.batch, a->grad_o.head, a->grad_o.token,
                  p->dim_v, w->grad_o);
    add_outputs(&out, p, a, w);
    TRY(each_move_cuda(p, a, w, &in, true, b, first, count, error));
    TRY(run_group(&own, w, error));
    TRY(each_move_cuda(p, a, w, &out, false, b, first, count, error));
    return w->own.len_kv > 0 ? each_add_cuda(p, a, w, w->own.len_kv, count, error) : LOAM_OK;
}

/* The frame before group n becomes the last of the stack. */
static loam_status push_frame(frame_stack *frames, const loam_problem *p, const loam_args *a,
                              const each_arrays *w, int64_t b, int64_t n, loam_error *error)
{
    while (frames->group[frames->count - 1] < n) {
        const int64_t from = frames->group[frames->count - 1], to = from + (n - from + 1) / 2;
        TRY(each_turn_cuda(p, a, w, b, from * w->shape.group, (to - from) * w->shape.group, frames->count - 1,
                           frames->count, false, error));
        frames->group[frames->count++] = to;
    }
    return LOAM_OK;
}

static loam_status backward_group(const loam_problem *p, const loam_args *a, each_arrays *w,
                                  frame_stack *frames, int64_t b, int64_t n, loam_error *error)
{
    const int64_t first = n * w->shape.group, left = w->shape.steps - first,
                  count = left < w->shape.group ? left : w->shape.group;
    const bool rows = first + count > w->shape.no_rows;
    TRY(push_frame(frames, p, a, w, b, n, error));
    TRY(each_turn_cuda(p, a, w, b, first, count, frames->count - 1, frames->count, true, error));
    if (rows) {
        TRY(backward_rows(p, a, w, b, first, count, error));
    }
    TRY(each_turn_back_cuda(p, a, w, b, first, count, frames->count - 1, rows, error));
    frames->count -= n > 0;
    return LOAM_OK;
}

extern "C" size_t local_path_each_backward_sm80_work(const loam_problem *p)
{
    arena pool = {};
    each_arrays_carve(p, &pool);
    return pool.used;
}

extern "C" loam_status local_path_each_backward_sm80(const loam_problem *p, const loam_args *a,
                                                     loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    each_arrays w = each_arrays_carve(p, &pool);
    for (int64_t b = 0; b < p->batch; b++) {
        frame_stack frames = { { 0 }, 1 };
        TRY(each_begin_cuda(p, a, &w, b, error));
        for (int64_t n = w.shape.groups - 1; n >= 0; n--) {
            TRY(backward_group(p, a, &w, &frames, b, n, error));
        }
        TRY(each_finish_cuda(p, a, &w, b, error));
    }
    return local_row_sums_cuda(p, a, &w.all, error);
}
