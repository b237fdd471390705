/* SPDX-License-Identifier: MIT
 * The forward pass by chunks of 64 tokens, one after the other. Heads and sequences are shared among the threads; where
 * there are fewer than threads, they share the chunks of one head, and only its state goes from one to the next in order.
 * Compiled once per instruction set. MesaNet is not here: its read has a system for every token. */
#include "src/recurrent/recurrent_chunk.h"

#include <omp.h>

/* What one thread has. */
typedef struct scratch {
    chunk x;
    float *state; /* of the head, where it is this thread's alone */
    float *start; /* as it is at the beginning of a chunk */
} scratch;

static void scratch_carve(scratch *y, const loam_problem *p, const loam_args *a, arena *pool)
{
    chunk_carve(&y->x, p, a, false, pool);
    y->state = arena_take(pool, (size_t)chunk_state_floats(&y->x), sizeof(float));
    y->start = arena_take(pool, (size_t)chunk_state_floats(&y->x), sizeof(float));
}

static size_t scratch_bytes(const loam_problem *p)
{
    scratch y;
    arena pool = { 0 };
    scratch_carve(&y, p, NULL, &pool);
    return pool.used;
}

static void put_info(const chunk *x)
{
    const loam_view *info = &x->a->info;
    for (int64_t t = 0; info->data && t < x->tokens; t++) {
        const bool empty = x->p->normalise && x->weight[t] == 0;
        loam_row_info *row = (loam_row_info *)info->data +
                             RECURRENT_AT(*info, x->s.b, x->h, x->s.first + x->first + t);
        *row = (loam_row_info){ empty ? LOAM_ROW_SINGULAR : LOAM_ROW_SOLVED, LOAM_SOLVER_NONE, 0, 0 };
    }
}

static void begin_chunk(chunk *x, int64_t first)
{
    chunk_load(x, first, x->s.len - first < CHUNK ? x->s.len - first : CHUNK);
    chunk_pairs(x);
}

/* `state` to the end of the chunk; what it was before it is copied to `start`. */
static void advance(const chunk *x, float *state, float *start)
{
    memcpy(start, state, (size_t)chunk_state_floats(x) * sizeof *state);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        chunk_write(x, chunk_state_panel(x, start, panel), panel);
        chunk_advance(x, chunk_state_panel(x, state, panel), panel);
    }
    if (x->p->normalise) {
        chunk_advance_mass(x, chunk_mass(x, state));
    }
}

static void end_chunk(const chunk *x, float *start)
{
    if (x->p->normalise) {
        chunk_weigh(x, chunk_mass(x, start));
    }
    for (int64_t panel = 0; panel < x->panels; panel++) {
        chunk_read(x, chunk_state_panel(x, start, panel), panel);
    }
    put_info(x);
}

static void one_head(scratch *y)
{
    chunk_load_state(&y->x, &y->x.a->state_in, y->state);
    for (int64_t first = 0; first < y->x.s.len; first += CHUNK) {
        begin_chunk(&y->x, first);
        advance(&y->x, y->state, y->start);
        end_chunk(&y->x, y->start);
    }
    chunk_store_state(&y->x, &y->x.a->state_out, y->state);
}

/* One head by all threads, which come here together; `state` is theirs together. */
static void one_head_together(scratch *y, float *state)
{
#pragma omp single
    chunk_load_state(&y->x, &y->x.a->state_in, state);
#pragma omp for ordered schedule(static, 1)
    for (int64_t first = 0; first < y->x.s.len; first += CHUNK) {
        begin_chunk(&y->x, first);
#pragma omp ordered
        advance(&y->x, state, y->start);
        end_chunk(&y->x, y->start);
    }
#pragma omp single
    chunk_store_state(&y->x, &y->x.a->state_out, state);
}

size_t RECURRENT_JOIN(ISA(recurrent_forward), work)(const loam_problem *p)
{
    return size_mul(scratch_bytes(p), (size_t)p->threads);
}

loam_status ISA(recurrent_forward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const size_t each = scratch_bytes(p);
    const int64_t heads = p->batch * p->heads_v;
    float *shared = NULL; /* the state of the first thread */
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + each * (size_t)omp_get_thread_num(), 0 };
        scratch y;
        scratch_carve(&y, p, a, &pool);
#pragma omp master
        shared = y.state;
#pragma omp barrier
        if (heads < omp_get_num_threads()) {
            for (int64_t n = 0; n < heads; n++) {
                y.x.s = recurrent_seq_at(p, a, n / p->heads_v);
                y.x.h = n % p->heads_v;
                one_head_together(&y, shared);
            }
        } else {
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < heads; n++) {
                y.x.s = recurrent_seq_at(p, a, n / p->heads_v);
                y.x.h = n % p->heads_v;
                one_head(&y);
            }
        }
    }
    return loam_succeed(error);
}
