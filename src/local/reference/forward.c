/* SPDX-License-Identifier: MIT
 * The reference forward and decode: one row after another, o = sum p (1 - u) v. */
#include "src/local/reference/row.h"

#include <math.h>
#include <omp.h>

static void put_saved(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                      const ref_row *row)
{
    const loam_dtype real = dtype_real(p->dtype);
    const local_saved saved = local_saved_carve(p, a->saved, NULL);
    const int64_t at = local_row(p, s, h, i);
    const bool empty = row->lo >= row->hi;
    double tbar = 0, constant = 0;
    for (int64_t c = 0; !empty && !local_mapped(p) && c < p->dim_qk; c++) {
        const double first = p->path ? 0 : ref_k(p, a, s, h, 0, c), q = row->q[c];
        constant += p->score == LOAM_DOT ? q * first : -0.5 * (q - first) * (q - first);
    }
    element_store(saved.lse, real, at, row->lse - p->scale * constant);
    for (int64_t c = 0; c < p->dim_v; c++)
        element_store(saved.vbar, real, at * p->dim_v + c, row->vbar[c]);
    for (int64_t c = 0; p->mechanism != LOAM_SOFTMAX && c < p->dim_qk; c++) {
        const double kbar = empty ? 0 : row->kbar[c] - (p->path ? 0 : ref_k(p, a, s, h, 0, c));
        tbar += row->rho[c] * kbar;
        if (p->mechanism == LOAM_LLA) {
            element_store(saved.kbar, real, at * p->dim_qk + c, kbar);
            element_store(saved.rho, real, at * p->dim_qk + c, row->rho[c]);
        }
    }
    if (p->mechanism == LOAM_PARALLAX) {
        element_store(saved.tbar, real, 2 * at, tbar);
        element_store(saved.tbar, real, 2 * at + 1, tbar - element_load(saved.tbar, real, 2 * at));
    }
    for (int64_t c = 0; p->mechanism == LOAM_PARALLAX && c < p->dim_v; c++) {
        double value_shift = 0;
        for (int64_t j = row->lo; j < row->hi; j++)
            value_shift += row->p[j - row->lo] * row->u[j - row->lo] * ref_v(p, a, s, h, j, c);
        element_store(saved.value_shift, real, at * p->dim_v + c, value_shift);
    }
}

static void put_weights(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                        const ref_row *row)
{
    for (int64_t j = 0; j < p->len_kv; j++) {
        const bool seen = j >= row->lo && j < row->hi;
        element_store(a->weights.data, dtype_real(p->dtype), LOCAL_AT(a->weights, s->b, h, s->q0 + i) + j,
                      seen ? row->p[j - row->lo] * (1 - row->u[j - row->lo]) : 0);
    }
}

static void put_row(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                    const ref_row *row)
{
    const loam_dtype real = dtype_real(p->dtype);
    const int64_t token = s->q0 + i;
    for (int64_t c = 0; c < p->dim_v; c++) {
        double o = 0;
        for (int64_t j = row->lo; j < row->hi; j++)
            o += row->p[j - row->lo] * (1 - row->u[j - row->lo]) * ref_v(p, a, s, h, j, c);
        element_store(a->o.data, p->dtype, LOCAL_AT(a->o, s->b, h, token) + c, o);
    }
    if (a->lse.data) element_store(a->lse.data, real, LOCAL_AT(a->lse, s->b, h, token), row->lse);
    for (int64_t c = 0; a->rho.data && c < p->dim_qk; c++)
        element_store(a->rho.data, real, LOCAL_AT(a->rho, s->b, h, token) + c, row->rho[c]);
    if (a->weights.data) put_weights(p, a, s, h, i, row);
    if (a->saved) put_saved(p, a, s, h, i, row);
    local_put_info(a, s, h, i, row->info);
}

static size_t row_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    ref_row_carve(p, &pool);
    return pool.used;
}

static size_t decay_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    ref_decay_carve(p, &pool);
    return pool.used;
}

size_t local_forward_ref_work(const loam_problem *p)
{
    return size_add(decay_bytes(p), size_mul(row_bytes(p), (size_t)p->threads));
}

loam_status local_forward_ref(const loam_problem *p, const loam_args *args, loam_error *error)
{
    arena shared = { args->work, 0 };
    const loam_args summed = ref_decay_sums(p, args, ref_decay_carve(p, &shared)), *a = &summed;
    for (int64_t b = 0; b < p->batch; b++) {
        const local_seq s = local_seq_at(p, a, b);
#pragma omp parallel num_threads(p->threads)
        {
            arena pool = { (char *)a->work + shared.used + row_bytes(p) * (size_t)omp_get_thread_num(), 0 };
            ref_row row = ref_row_carve(p, &pool);
#pragma omp for collapse(2) schedule(dynamic, 8)
            for (int64_t h = 0; h < p->heads_q; h++) {
                for (int64_t i = 0; i < s.nq; i++) {
                    ref_row_fit(p, a, &s, h, i, &row);
                    put_row(p, a, &s, h, i, &row);
                }
            }
        }
    }
    return loam_succeed(error);
}

loam_status local_decode_ref(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return local_forward_ref(p, a, error);
}

size_t local_decode_ref_work(const loam_problem *p)
{
    const size_t whole = local_forward_ref_work(p), state = size_of(local_state_doubles(p), sizeof(double));
    const size_t slice = size_add(state, size_of((size_t)p->dim_qk, sizeof(double)));
    const size_t partial = size_add(decay_bytes(p), slice);
    return whole > partial ? whole : partial;
}

/* The partial state of one key: the key itself is the mean, and the second moments are 0. */
static void single_key(const loam_problem *p, const loam_args *a, const local_seq *s, int64_t h, int64_t i,
                       int64_t j, int64_t k_row, double *key, double *state)
{
    ref_load_key(p, a, s, h, k_row, key);
    for (int64_t t = j + 1; p->path && t <= i + s->nk - s->nq; t++)
        ref_reflect(p, a, s, h, t, key);
    local_state_clear(p, state);
    state[0] = ref_row_score(p, a, s, h, i, j, k_row, key).s;
    state[1] = 1;
    double *mean = state + 2;
    if (p->mechanism == LOAM_PARALLAX) {
        for (int64_t c = 0; c < p->dim_qk; c++) {
            *mean += element_load(a->probe.data, p->dtype, LOCAL_AT(a->probe, s->b, h, s->q0 + i) + c) *
                     key[c];
        }
        mean += 1;
    } else if (p->mechanism == LOAM_LLA) {
        for (int64_t c = 0; c < p->dim_qk; c++)
            *mean++ = key[c];
    }
    for (int64_t c = 0; c < p->dim_v; c++)
        mean[c] = ref_v(p, a, s, h, k_row, c);
}

loam_status local_partial_ref(const loam_problem *p, const loam_args *args, int64_t first, int64_t count,
                              double *states, loam_error *error)
{
    const int64_t n = (int64_t)local_state_doubles(p);
    arena pool = { args->work, 0 };
    const loam_args summed = ref_decay_sums(p, args, ref_decay_carve(p, &pool)), *a = &summed;
    double *key_state = arena_take(&pool, (size_t)n, sizeof(double));
    double *key = arena_take(&pool, (size_t)p->dim_qk, sizeof(double));
    for (int64_t b = 0; b < p->batch; b++) {
        const local_seq s = local_seq_at(p, a, b);
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < s.nq; i++) {
                double *state = states + local_row(p, &s, h, i) * n;
                int64_t lo, hi;
                local_visible(p, &s, i, &lo, &hi);
                local_state_clear(p, state);
                for (int64_t j = lo > first ? lo : first; j < hi && j < first + count; j++) {
                    single_key(p, a, &s, h, i, j, j - first, key, key_state);
                    local_state_merge(p, state, key_state);
                }
            }
        }
    }
    return loam_succeed(error);
}
