/* SPDX-License-Identifier: MIT */
#include "src/local/decay.h"

#include <math.h>

size_t local_decay_work(const loam_problem *p)
{
    return p->decay && p->backend != LOAM_BACKEND_REFERENCE
               ? size_of(size_add(size_mul((size_t)local_keys(p), (size_t)p->heads_q), LOCAL_DECAY_SPARE),
                         sizeof(double))
               : 0;
}

static void sum_head(const loam_problem *p, const loam_args *a, const loam_const_view *sums,
                     const local_seq *s, int64_t h)
{
    double sum = 0;
    for (int64_t j = 0; j < s->nk; j++) {
        const int64_t at = LOCAL_AT(*sums, s->b, h, s->k0 + j);
        sum += fmax(
            element_load(a->log_decay.data, dtype_real(p->dtype), LOCAL_AT(a->log_decay, s->b, h, s->k0 + j)),
            LOCAL_LEAST_DECAY);
        const float hi = (float)sum;
        ((local_decay_pair *)(uintptr_t)sums->data)[at] = (local_decay_pair){ hi, (float)(sum - (double)hi) };
    }
}

loam_status local_decay_begin(const loam_problem *p, const loam_args *a, loam_args *ready, loam_error *error)
{
    *ready = *a;
    if (!p->decay || p->backend == LOAM_BACKEND_REFERENCE) return LOAM_OK;
    const int64_t keys = sequence_packed(p) ? p->total_kv : p->len_kv;
    ready->log_decay = (loam_const_view){ a->work, p->heads_q * keys, keys, 1 };
    ready->work = (char *)a->work + local_decay_work(p);
    if (p->backend == LOAM_BACKEND_CUDA) {
#ifdef LOAM_HAVE_CUDA
        return local_decay_sums_cuda(p, a, &ready->log_decay, error);
#endif
    }
#pragma omp parallel for collapse(2) num_threads(p->threads) schedule(dynamic, 1)
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            const local_seq s = local_seq_at(p, a, b);
            sum_head(p, a, &ready->log_decay, &s, h);
        }
    }
    (void)error;
    return LOAM_OK;
}

/* In place: grad_log_decay[t] <- the column sums of keys before t less the row sums, which are rounding
 * errors, of the queries at positions i + nk - nq before t. */
static void gradient_of_head(const loam_problem *p, const loam_args *a, const double *rows,
                             const local_seq *s, int64_t h)
{
    const loam_dtype real = dtype_real(p->dtype);
    const int64_t stored = local_stored_keys(p, s);
    double sum = 0;
    for (int64_t j = 0; j < stored; j++) {
        const int64_t at = LOCAL_AT(a->grad_log_decay, s->b, h, s->k0 + j), i = j - s->nk + s->nq;
        const double column = j < s->nk ? element_load(a->grad_log_decay.data, real, at) : 0;
        element_store(a->grad_log_decay.data, real, at, j < s->nk ? sum : 0);
        sum += column;
        if (i >= 0 && i < s->nq) sum -= rows[local_row(p, s, h, i)];
    }
}

void local_decay_gradient(const loam_problem *p, const loam_args *a, const double *rows)
{
    if (!p->decay || !a->grad_log_decay.data) return;
#pragma omp parallel for collapse(2) num_threads(p->threads) schedule(dynamic, 1)
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            const local_seq s = local_seq_at(p, a, b);
            gradient_of_head(p, a, rows, &s, h);
        }
    }
}
