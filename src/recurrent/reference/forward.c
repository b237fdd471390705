/* SPDX-License-Identifier: MIT
 * The reference forward and decode: one token after another. */
#include "src/recurrent/reference/token.h"

#include <omp.h>

typedef struct scratch {
    ref_token token;
    double *state, *o;
} scratch;

static scratch scratch_carve(const loam_problem *p, arena *pool)
{
    scratch x = { .token = ref_token_carve(p, pool) };
    x.state = arena_take(pool, (size_t)(x.token.rows * x.token.d), sizeof(double));
    x.o = arena_take(pool, (size_t)p->dim_v, sizeof(double));
    return x;
}

static size_t scratch_bytes(const loam_problem *p)
{
    arena pool = { 0 };
    scratch_carve(p, &pool);
    return pool.used;
}

static void store_token(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h,
                        int64_t t, const scratch *x)
{
    for (int64_t c = 0; c < p->dim_v; c++)
        element_store(a->o.data, p->dtype, RECURRENT_AT(a->o, s->b, h, s->first + t) + c, x->o[c]);
    if (a->info.data)
        ((loam_row_info *)a->info.data)[RECURRENT_AT(a->info, s->b, h, s->first + t)] = x->token.info;
}

static void head_forward(const loam_problem *p, const loam_args *a, const recurrent_seq *s, int64_t h,
                         scratch *x)
{
    ref_state_load(p, &a->state_in, s, h, x->state);
    ref_token_head(p, a, h, &x->token);
    for (int64_t t = 0; t < s->len; t++) {
        ref_token_write(p, a, s, h, t, &x->token, x->state);
        ref_token_read(p, &x->token, x->state, x->o);
        store_token(p, a, s, h, t, x);
    }
    ref_state_store(p, &a->state_out, s, h, x->state);
}

size_t recurrent_forward_ref_work(const loam_problem *p)
{
    return size_mul(scratch_bytes(p), (size_t)p->threads);
}

loam_status recurrent_forward_ref(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const size_t each = scratch_bytes(p);
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + each * (size_t)omp_get_thread_num(), 0 };
        scratch x = scratch_carve(p, &pool);
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t b = 0; b < p->batch; b++) {
            for (int64_t h = 0; h < p->heads_v; h++) {
                const recurrent_seq s = recurrent_seq_at(p, a, b);
                head_forward(p, a, &s, h, &x);
            }
        }
    }
    return loam_succeed(error);
}

size_t recurrent_decode_ref_work(const loam_problem *p) { return recurrent_forward_ref_work(p); }

loam_status recurrent_decode_ref(const loam_problem *p, const loam_args *a, loam_error *error)
{
    return recurrent_forward_ref(p, a, error);
}
