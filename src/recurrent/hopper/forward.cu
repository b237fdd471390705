/* SPDX-License-Identifier: MIT
 * The forward pass of the recurrent family on Hopper: additive rules by segments where they can be, the
 * others by the stages PREPARE, PASS and OUTPUT of the chunk kernels. Arguments that 16-byte copies
 * cannot read are left to the kernels of cuda/. Alignment is known only when the arguments are, so the
 * workspace suffices for either. */
#include "src/recurrent/hopper/additive.cuh"
#include "src/recurrent/hopper/stages.h"

/* Divides the workspace; `a` is NULL where only the size is wanted. */
static additive_launch additive_carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    additive_launch l = {};
    l.p = *p;
    recurrent_chunks &x = l.chunks;
    x = recurrent_chunks_count(p);
    const int64_t chunks = x.per_sequence;
    l.segments = chunks > 0 ? (chunks + ADDITIVE_SEGMENT - 1) / ADDITIVE_SEGMENT : 1;
    l.per_head = (x.per_head + ADDITIVE_SEGMENT - 1) / ADDITIVE_SEGMENT + p->batch;
    const bool mapped = p->feature_map != LOAM_FEATURES_IDENTITY;
    const size_t slots = (size_t)x.slots, width = (size_t)chunk_width(p),
                 rows = size_mul(slots, CHUNK_TOKENS),
                 states = l.segments > 1 ? size_mul((size_t)p->heads_v, (size_t)l.per_head) : 0;
    const auto features = [&]() {
        return mapped ? (__nv_bfloat16 *)arena_take(pool, size_mul(rows, width), sizeof(__nv_bfloat16))
                      : NULL;
    };
    x.q_features = features(), x.k_features = features();
    l.gates = (additive_gates *)arena_take(pool, additive_gated(p) ? slots : 0, sizeof *l.gates);
    l.states = (float *)arena_take(pool, size_mul(states, width * width), sizeof *l.states);
    if (!a) return l;
    l.a = *a;
    if (recurrent_form_of(p->mechanism)->gate == GATE_HEAD) l.a.log_decay.batch = l.a.log_decay.token = 0;
    const int64_t head_group = p->heads_v / p->heads_q;
    x.q_given = chunk_source_of_view(&a->q, head_group, p->dim_qk);
    x.k_given = chunk_source_of_view(&a->k, head_group, p->dim_qk);
    x.q = x.q_in = chunk_source_or(x.q_features, mapped, x.q_given);
    x.k = x.k_out = chunk_source_or(x.k_features, mapped, x.k_given);
    x.v = x.u_hat = chunk_source_of_view(&a->v, 1, p->dim_v);
    l.aligned = chunk_view_aligned(a->o.data, a->o.batch, a->o.head, a->o.token, 8);
    return l;
}

static loam_status additive_run(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena pool = { (char *)a->work, 0 };
    additive_launch l = additive_carve(p, a, &pool);
    if (recurrent_tokens(p) > 0) {
        const int64_t width = chunk_width(p);
        TRY(chunk_map_make(&l.q, p, &l.chunks, l.chunks.q, width, error));
        TRY(chunk_map_make(&l.k, p, &l.chunks, l.chunks.k, width, error));
        TRY(chunk_map_make(&l.v, p, &l.chunks, l.chunks.v, width, error));
    }
    if (l.chunks.q_features) TRY(recurrent_features_hopper(p, a, &l.chunks, error));
    TRY(additive_gates_hopper(&l, error));
    TRY(additive_states_hopper(&l, error));
    return additive_output_hopper(&l, error);
}

/* The thread blocks of PASS go from chunk to chunk. Where they are few, they can have the first half of each
 * sequence while PREPARE has the second, and the second while OUTPUT has the first. Gates of channels gain
 * nothing by it: their PASS is short, or PREPARE long. */
static bool can_halve(const loam_problem *p)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    return form->delta && form->gate != GATE_CHANNEL && !sequence_packed(p);
}

/* One half must have chunks for all multiprocessors, and PASS leave half of these to others. */
static loam_status halves_pay(bool *pay, const loam_problem *p, const recurrent_chunks *chunks,
                              loam_error *error)
{
    int processors;
    TRY(cuda_multiprocessors(&processors, error));
    const int64_t blocks = p->batch * p->heads_v * (chunk_width(p) / (TILE_SIDE / 2)); /* of PASS */
    *pay = can_halve(p) && blocks <= processors / 2 && chunks->slots >= 6 * processors;
    return LOAM_OK;
}

/* The stages for the first half of the chunks of each sequence, and then for the others. */
static loam_status run_halves(const loam_problem *p, const loam_args *a, const recurrent_chunks *chunks,
                              float *states, loam_error *error)
{
    recurrent_chunks first = *chunks, second = *chunks;
    first.to = second.from = chunks->per_sequence / 2;
    const int64_t token = p->dim_qk, head = p->dim_v * token, batch = p->heads_v * head;
    loam_args begin = *a, rest = *a;
    begin.state_out = { states, batch, head, token };
    rest.state_in = { states, batch, head, token };
    TRY(recurrent_prepare_hopper(p, a, &first, error));
    TRY(recurrent_pass_hopper(p, &begin, &first, error));
    TRY(recurrent_prepare_hopper(p, a, &second, error));
    TRY(recurrent_pass_hopper(p, &rest, &second, error));
    TRY(recurrent_output_hopper(p, a, &first, error));
    return recurrent_output_hopper(p, a, &second, error);
}

/* The states between the halves of the sequences. */
static float *carve_states(const loam_problem *p, arena *pool)
{
    const size_t states = size_mul((size_t)p->batch, (size_t)p->heads_v),
                 each = size_mul((size_t)p->dim_v, (size_t)p->dim_qk);
    return (float *)arena_take(pool, can_halve(p) ? size_mul(states, each) : 0, sizeof(float));
}

static recurrent_chunks carve(const loam_problem *p, const loam_args *a, arena *pool)
{
    return chunk_weighs_values(p) ? additive_carve(p, a, pool).chunks
                                  : recurrent_chunks_carve(p, a, false, pool);
}

size_t recurrent_forward_hopper_work(const loam_problem *p)
{
    arena pool = { NULL, 0 };
    (void)carve(p, NULL, &pool);
    (void)carve_states(p, &pool);
    const size_t fallback = recurrent_forward_cuda_work(p);
    return pool.used > fallback ? pool.used : fallback;
}

bool recurrent_forward_hopper_reads(const loam_problem *p, const loam_args *a)
{
    arena pool = { (char *)LOAM_ALIGN, 0 }; /* only the alignment counts: nothing is read */
    const recurrent_chunks chunks = carve(p, a, &pool);
    return recurrent_stages_hopper_fit(p, a, &chunks);
}

loam_status recurrent_forward_hopper(const loam_problem *p, const loam_args *a, loam_error *error)
{
    if (!recurrent_forward_hopper_reads(p, a)) return recurrent_forward_cuda(p, a, error);
    if (chunk_weighs_values(p)) {
        TRY(additive_run(p, a, error));
        return loam_succeed(error);
    }
    arena pool = { (char *)a->work, 0 };
    const recurrent_chunks chunks = recurrent_chunks_carve(p, a, false, &pool);
    bool pay;
    TRY(halves_pay(&pay, p, &chunks, error));
    if (pay) {
        TRY(run_halves(p, a, &chunks, carve_states(p, &pool), error));
        return loam_succeed(error);
    }
    TRY(recurrent_prepare_hopper(p, a, &chunks, error));
    TRY(recurrent_pass_hopper(p, a, &chunks, error));
    TRY(recurrent_output_hopper(p, a, &chunks, error));
    return loam_succeed(error);
}
