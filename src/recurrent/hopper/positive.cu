/* SPDX-License-Identifier: MIT
 * Positive random features on Hopper: the rows of the table. Without shift and balance; other arrays may lie as
 * they like but z, whose rows are read by pairs, and what is written by pairs. */
#include "src/recurrent/hopper/positive.cuh"

static positive_launch carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    positive_launch l = {};
    const int64_t group = p->heads_q / p->heads_kv;
    l.p = *p;
    if (a) l.a = *a;
    l.x.heads = recurrent_state_heads(p);
    l.x.reads = p->features_shared ? group : 1;
    l.x.sharing = p->features_shared ? 1 : group;
    l.x.axis = (sequence_packed(p) ? p->total_q : p->len_q) * l.x.reads;
    l.chunks = (p->len_q + POSITIVE_CHUNK - 1) / POSITIVE_CHUNK;
    const size_t heads = size_mul((size_t)p->batch, (size_t)l.x.heads),
                 each = size_mul(size_mul(heads, (size_t)l.chunks), (size_t)p->features);
    l.tops = (float *)arena_take(pool, each, sizeof *l.tops);
    l.before = (float *)arena_take(pool, each, sizeof *l.before);
    l.states = (float *)arena_take(pool, size_mul(each, (size_t)p->dim_v + 1), sizeof *l.states);
    return l;
}

static bool pairs(const void *data, size_t bytes, int64_t batch, int64_t head, int64_t token)
{
    return (uintptr_t)data % (2 * bytes) == 0 && batch % 2 == 0 && head % 2 == 0 && token % 2 == 0;
}

static size_t larger(size_t x, size_t y) { return x > y ? x : y; }

size_t positive_forward_hopper_work(const loam_problem *p)
{
    arena pool = {};
    (void)carve(p, NULL, &pool);
    return larger(pool.used, positive_forward_cuda_work(p));
}

bool positive_forward_hopper_reads(const loam_problem *, const loam_args *a)
{
    return !a->shift.data && !a->balance.data && pairs(a->z.data, sizeof(float), 0, a->z.head, a->z.token) &&
           pairs(a->o.data, 2, a->o.batch, a->o.head, a->o.token);
}

loam_status positive_forward_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!positive_forward_hopper_reads(p, a)) return positive_forward_cuda(p, a, error);
    arena pool = { (char *)a->work, 0 };
    const positive_launch l = carve(p, a, &pool);
    TRY(positive_states_hopper(&l, error));
    TRY(positive_output_hopper(&l, error));
    return loam_succeed(error);
}
