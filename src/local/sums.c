/* SPDX-License-Identifier: MIT
 * Gradients that are sums over rows: each row stores its part, and one thread adds the parts in a fixed
 * order, so that the result does not depend, to the bit, on how rows were distributed over threads. */
#include "src/local/decay.h"

local_row_sums local_row_sums_carve(const loam_problem *p, arena *pool)
{
    const size_t rows = (size_t)local_rows(p);
    local_row_sums sums;
    sums.scale = arena_take(pool, rows, sizeof(double));
    sums.slope = arena_take(pool, p->slope ? rows : 0, sizeof(double));
    sums.sink = arena_take(pool, p->sink ? rows : 0, sizeof(double));
    sums.ridge = arena_take(pool, p->mechanism == LOAM_LLA ? rows : 0, sizeof(double));
    sums.inner = arena_take(pool, p->decay ? rows : 0, sizeof(double));
    return sums;
}

/* The sum over the rows of one head. */
static double head_sum(const loam_problem *p, const loam_args *a, const double *part, int64_t h)
{
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        const local_seq s = local_seq_at(p, a, b);
        for (int64_t i = 0; i < s.nq; i++)
            sum += part[local_row(p, &s, h, i)];
    }
    return sum;
}

static double total_sum(const loam_problem *p, const loam_args *a, const double *part)
{
    double sum = 0;
    for (int64_t h = 0; h < p->heads_q; h++)
        sum += head_sum(p, a, part, h);
    return sum;
}

static void put_head_sums(const loam_problem *p, const loam_args *a, const double *part, void *out,
                          int64_t stride)
{
    for (int64_t h = 0; h < p->heads_q; h++)
        element_store(out, dtype_real(p->dtype), h * stride, head_sum(p, a, part, h));
}

static void put_ridge_tokens(const loam_problem *p, const loam_args *a, const double *part)
{
    for (int64_t b = 0; b < p->batch; b++) {
        const local_seq s = local_seq_at(p, a, b);
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < s.nq; i++) {
                element_store(a->grad_ridge.data, dtype_real(p->dtype),
                              LOCAL_AT(a->grad_ridge, s.b, h, s.q0 + i), part[local_row(p, &s, h, i)]);
            }
        }
    }
}

void local_row_sums_reduce(const loam_problem *p, const loam_args *a, const local_row_sums *sums)
{
    const loam_dtype real = dtype_real(p->dtype);
    local_decay_gradient(p, a, sums->inner);
    if (a->grad_scale) element_store(a->grad_scale, real, 0, total_sum(p, a, sums->scale));
    if (p->slope && a->grad_slope) put_head_sums(p, a, sums->slope, a->grad_slope, 1);
    if (p->sink && a->grad_sink) put_head_sums(p, a, sums->sink, a->grad_sink, 1);
    if (p->mechanism == LOAM_LLA && a->grad_ridge.data) {
        switch (p->ridge_axes) {
        case LOAM_RIDGE_NUMBER:
            element_store(a->grad_ridge.data, real, 0, total_sum(p, a, sums->ridge));
            break;
        case LOAM_RIDGE_HEAD: put_head_sums(p, a, sums->ridge, a->grad_ridge.data, a->grad_ridge.head); break;
        case LOAM_RIDGE_TOKEN: put_ridge_tokens(p, a, sums->ridge); break;
        case LOAM_RIDGE_CHANNEL: /* the kernel wrote each element itself */
        case LOAM_RIDGE_HEAD_CHANNEL: /* not of this family */ break;
        }
    }
}

void local_clear_bias_tail(const loam_problem *p, const loam_args *a)
{
    for (int64_t b = 0; p->key_bias && a->grad_key_bias.data && b < p->batch; b++) {
        const local_seq s = local_seq_at(p, a, b);
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t j = s.nk; j < local_stored_keys(p, &s); j++) {
                element_store(a->grad_key_bias.data, dtype_real(p->dtype),
                              LOCAL_AT(a->grad_key_bias, s.b, h, s.k0 + j), 0);
            }
        }
    }
}
