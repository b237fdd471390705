/* SPDX-License-Identifier: MIT
 * Positive random features on Hopper: the rows of the table. Arrays may lie as they like but z and B, whose
 * rows are read by pairs, and what is written by pairs. */
#include "src/recurrent/hopper/positive.cuh"

/* What the backward pass needs besides. */
static void carve_gradients(const loam_problem *p, positive_launch *l, size_t each, arena *pool)
{
    const int64_t tokens = l->x.axis / l->x.reads;
    const size_t features = (size_t)p->features, heads = (size_t)l->x.heads,
                 rows = size_mul((size_t)positive_entries(*l), size_mul(heads, (size_t)l->x.axis));
    l->slices = (tokens + POSITIVE_SLICE - 1) / POSITIVE_SLICE;
    const size_t parts = size_mul(size_mul((size_t)positive_entries(*l), (size_t)l->slices),
                                  heads * features);
    l->records = (float4 *)arena_take(pool, rows, sizeof *l->records);
    l->ends = (float *)arena_take(pool, size_mul(each, POSITIVE_STEPS), sizeof *l->ends);
    l->adjoints = (float *)arena_take(pool, size_mul(each, (size_t)p->dim_v + 1), sizeof *l->adjoints);
    l->grad_b = (float *)arena_take(pool, size_mul(rows, features), sizeof *l->grad_b);
    l->grad_a = (float *)arena_take(pool, size_mul(rows, features), sizeof *l->grad_a);
    l->grad_v = (float *)arena_take(pool, l->x.sharing > 1 ? size_mul(rows, (size_t)p->dim_v) : 0,
                                    sizeof *l->grad_v);
    l->parts = (float *)arena_take(pool, size_mul(parts, 2 * (size_t)p->dim_qk + 1), sizeof *l->parts);
    l->totals = (double *)arena_take(pool, heads * features * (2 * (size_t)p->dim_qk + 1), sizeof *l->totals);
}

/* What A, B and the shift change. Their place does not depend on whether they are given. */
static void carve_parameters(const loam_problem *p, const loam_args *a, positive_launch *l, arena *pool)
{
    const size_t heads = (size_t)l->x.heads, dim = (size_t)p->dim_qk, features = (size_t)p->features,
                 tokens = size_mul((size_t)positive_entries(*l), heads * (size_t)(l->x.axis / l->x.reads));
    float *z_q = (float *)arena_take(pool, heads * features * dim, sizeof *z_q),
          *z_k = (float *)arena_take(pool, heads * features * dim, sizeof *z_k),
          *alpha = (float *)arena_take(pool, heads * features, sizeof *alpha),
          *turned = (float *)arena_take(pool, heads * dim, sizeof *turned),
          *centre = (float *)arena_take(pool, heads * dim, sizeof *centre),
          *gram = (float *)arena_take(pool, heads * dim * dim, sizeof *gram);
    const size_t pieces = heads * (features / 8) * (dim / 16) * 3 * 32;
    l->parts_q = (uint2 *)arena_take(pool, pieces, sizeof *l->parts_q);
    l->parts_k = (uint2 *)arena_take(pool, pieces, sizeof *l->parts_k);
    const size_t rows = p->pass == LOAM_BACKWARD ? pieces / 3 : 0;
    l->rows_q = (uint4 *)arena_take(pool, rows, sizeof *l->rows_q);
    l->rows_k = (uint4 *)arena_take(pool, rows, sizeof *l->rows_k);
    l->half = (float *)arena_take(pool, tokens, sizeof *l->half);
    if (!a) return;
    l->z_q = l->z_k = a->z, l->alpha = a->log_alpha;
    if (!a->balance.data) l->parts_k = l->parts_q, l->rows_k = l->rows_q;
    if (a->balance.data) {
        const int64_t head = p->features * p->dim_qk;
        l->z_q = loam_const_view{ z_q, 0, head, p->dim_qk },
        l->z_k = loam_const_view{ z_k, 0, head, p->dim_qk };
        l->gram = gram;
    }
    if (a->balance.data || a->shift.data) {
        l->alpha = loam_const_view{ alpha, 0, p->features, p->features };
        l->turned = turned, l->centre = centre;
    }
}

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
                 each = size_mul(size_mul(heads, (size_t)l.chunks), (size_t)p->features),
                 states = size_mul(each, (size_t)p->dim_v + 1);
    l.tops = (float *)arena_take(pool, each, sizeof *l.tops);
    l.before = (float *)arena_take(pool, each, sizeof *l.before);
    l.states = (float *)arena_take(pool, states, sizeof *l.states);
    carve_parameters(p, a, &l, pool);
    if (p->pass == LOAM_BACKWARD) carve_gradients(p, &l, each, pool);
    return l;
}

static bool pairs(const void *data, size_t bytes, int64_t batch, int64_t head, int64_t token)
{
    return (uintptr_t)data % (2 * bytes) == 0 && batch % 2 == 0 && head % 2 == 0 && token % 2 == 0;
}

/* Of all arrays but those that are read 16 bytes at a time where they lie so. */
static bool features_read(const loam_args *a)
{
    const loam_const_view *const read[] = { &a->z, &a->balance_keys };
    for (const loam_const_view *from : read)
        if (!pairs(from->data, sizeof(float), 0, from->head, from->token)) return false;
    return true;
}

static size_t larger(size_t x, size_t y) { return x > y ? x : y; }

static size_t work_bytes(const loam_problem *p)
{
    arena pool = {};
    (void)carve(p, NULL, &pool);
    return pool.used;
}

size_t positive_forward_hopper_work(const loam_problem *p)
{
    return larger(work_bytes(p), positive_forward_cuda_work(p));
}

size_t positive_backward_hopper_work(const loam_problem *p)
{
    return larger(work_bytes(p), positive_backward_cuda_work(p));
}

bool positive_forward_hopper_reads(const loam_problem *, const loam_args *a)
{
    return features_read(a) && pairs(a->o.data, 2, a->o.batch, a->o.head, a->o.token);
}

bool positive_backward_hopper_reads(const loam_problem *, const loam_args *a)
{
    const loam_view *const written[] = { &a->grad_q, &a->grad_k, &a->grad_v };
    for (const loam_view *to : written)
        if (!pairs(to->data, 2, to->batch, to->head, to->token)) return false;
    return features_read(a);
}

loam_status positive_forward_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!positive_forward_hopper_reads(p, a)) return positive_forward_cuda(p, a, error);
    arena pool = { (char *)a->work, 0 };
    const positive_launch l = carve(p, a, &pool);
    TRY(positive_prepare_hopper(&l, error));
    TRY(positive_states_hopper(&l, error));
    TRY(positive_output_hopper(&l, error));
    return loam_succeed(error);
}

loam_status positive_backward_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!positive_backward_hopper_reads(p, a)) return positive_backward_cuda(p, a, error);
    arena pool = { (char *)a->work, 0 };
    const positive_launch l = carve(p, a, &pool);
    TRY(positive_prepare_hopper(&l, error));
    TRY(positive_states_hopper(&l, error));
    TRY(positive_queries_hopper(&l, error));
    TRY(positive_adjoints_hopper(&l, error));
    TRY(positive_keys_hopper(&l, error));
    TRY(positive_rows_hopper(&l, error));
    TRY(positive_parameters_hopper(&l, error));
    return loam_succeed(error);
}
