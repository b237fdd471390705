/* SPDX-License-Identifier: MIT
 * PaTH scores on GPUs, rows as problems of their own: forward. */
#include "src/local/local_path_each_cuda.cuh"

/* The kernels of the family on the group: w->own, of its rows and the keys that they may see. */
static loam_status run_group(const loam_args *own, const each_arrays *w, loam_error *error)
{
    return w->own.mechanism == LOAM_LLA ? local_all64_cuda(&w->own, own, error)
                                        : local_given_cuda(&w->own, own, error);
}

static loam_args forward_args(const loam_problem *p, const loam_args *a, const each_arrays *w)
{
    loam_args x = each_args(p, a, w);
    x.o = loam_dense_out(w->o, p->heads_q, 1, p->dim_v);
    x.saved = a->saved ? w->saved : NULL;
    if (a->lse.data) {
        x.lse = loam_dense_out(w->lse, p->heads_q, 1, 1);
    }
    if (a->rho.data) {
        x.rho = loam_dense_out(w->rho, p->heads_q, 1, p->dim_qk);
    }
    if (a->info.data) {
        x.info = loam_dense_out(w->info, p->heads_q, 1, 1);
    }
    if (a->weights.data) {
        x.weights = loam_dense_out(w->weights, p->heads_q, 1, p->len_kv);
    }
    return x;
}

static void add_outputs(each_moves *moves, const loam_problem *p, const loam_args *a, const each_arrays *w)
{
    const int words = sizeof(loam_row_info) / sizeof(float);
    each_add_rows(moves, a->o.data, p->dtype, a->o.batch, a->o.head, a->o.token, p->dim_v, w->o);
    each_add_rows(moves, a->lse.data, LOAM_F32, a->lse.batch, a->lse.head, a->lse.token, 1, w->lse);
    each_add_rows(moves, a->rho.data, LOAM_F32, a->rho.batch, a->rho.head, a->rho.token, p->dim_qk, w->rho);
    each_add_rows(moves, a->weights.data, LOAM_F32, a->weights.batch, a->weights.head, a->weights.token,
                  p->len_kv, w->weights);
    each_add_rows(moves, a->info.data, LOAM_F32, words * a->info.batch, words * a->info.head,
                  words * a->info.token, words, w->info);
    each_add_saved(moves, p, a->saved, w);
}

/* Steps first .. first + count - 1 of sequence b. */
static loam_status forward_group(const loam_problem *p, const loam_args *a, each_arrays *w, int64_t b,
                                 int64_t first, int64_t count, loam_error *error)
{
    const bool rows = first + count > w->shape.no_rows;
    each_moves in = {}, out = {};
    TRY(each_turn_cuda(p, a, w, b, first, count, 0, 0, rows, error));
    if (!rows) {
        return LOAM_OK;
    }
    w->own.batch = count;
    w->own.len_kv = each_keys_before(p, w, first + count);
    const loam_args own = forward_args(p, a, w);
    each_add_inputs(&in, p, a, w);
    add_outputs(&out, p, a, w);
    TRY(each_move_cuda(p, a, w, &in, true, b, first, count, error));
    if (a->weights.data) { /* of keys that a row does not see */
        TRY(cuda_check(cudaMemsetAsync(w->weights, 0,
                                       (size_t)(count * p->heads_q * p->len_kv) * sizeof(float),
                                       (cudaStream_t)a->stream),
                       "weights", error));
    }
    TRY(run_group(&own, w, error));
    return each_move_cuda(p, a, w, &out, false, b, first, count, error);
}

extern "C" size_t local_path_each_forward_sm80_work(const loam_problem *p)
{
    arena pool = {};
    each_arrays_carve(p, &pool);
    return pool.used;
}

extern "C" loam_status local_path_each_forward_sm80(const loam_problem *p, const loam_args *a,
                                                    loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    each_arrays w = each_arrays_carve(p, &pool);
    for (int64_t b = 0; p->len_q > 0 && b < p->batch; b++) {
        TRY(each_begin_cuda(p, a, &w, b, error));
        for (int64_t first = 0; first < w.shape.steps; first += w.shape.group) {
            const int64_t left = w.shape.steps - first;
            TRY(forward_group(p, a, &w, b, first, left < w.shape.group ? left : w.shape.group, error));
        }
    }
    return loam_succeed(error);
}
