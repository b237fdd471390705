/* SPDX-License-Identifier: MIT
 * The forward pass by chunks of 64 tokens, one after the other. Heads and sequences are shared among the threads; where
 * there are fewer than threads, they share the chunks of one head, and only its state goes from one to the next in order.
 * Compiled once per instruction set. */
#include "src/recurrent/recurrent_mesa.h"

#include <omp.h>

/* What one thread has; states are float, MesaNet's double. */
typedef struct scratch {
    chunk *x; /* direct, or that of mesa */
    chunk direct;
    mesa mesa;
    void *state; /* of the head, where it is this thread's alone */
    void *start; /* as it is at the beginning of a chunk */
    size_t state_bytes;
} scratch;

static void scratch_carve(scratch *y, const loam_problem *p, const loam_args *a, arena *pool)
{
    if (recurrent_form_of(p->mechanism)->solved) {
        y->x = &y->mesa.x;
        mesa_carve(&y->mesa, p, a, pool);
        y->state_bytes = (size_t)mesa_state_doubles(y->x) * sizeof(double);
    } else {
        y->x = &y->direct;
        chunk_carve(y->x, p, a, false, pool);
        y->state_bytes = (size_t)chunk_state_floats(y->x) * sizeof(float);
    }
    y->state = arena_take(pool, y->state_bytes, 1);
    y->start = arena_take(pool, y->state_bytes, 1);
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

/* ------------------------------------------------------------------ a chunk of MesaNet */

static void mesa_put_panel(const mesa *m, int64_t panel)
{
    const chunk *x = &m->x;
    const loam_view *o = &x->a->o;
    const int64_t from = panel * LANES, rest = x->p->dim_v - from, n = rest < LANES ? rest : LANES;
    for (int64_t t = 0; t < x->tokens; t++) {
        for (int64_t c = 0; c < n; c++) {
            x->o[c] = (float)m->o[t * LANES + c];
        }
        store_floats(o->data, x->p->dtype, RECURRENT_AT(*o, x->s.b, x->h, x->s.first + x->first + t) + from,
                     x->o, n);
    }
}

static void mesa_end_chunk(mesa *m, double *start)
{
    const chunk *x = &m->x;
    const loam_view *info = &x->a->info;
    mesa_load_h(m, start);
    mesa_solve_queries(m);
    for (int64_t panel = 0; panel < x->panels; panel++) {
        mesa_read(m, start, panel);
        mesa_put_panel(m, panel);
    }
    for (int64_t t = 0; info->data && t < x->tokens; t++) {
        ((loam_row_info *)info->data)[RECURRENT_AT(*info, x->s.b, x->h, x->s.first + x->first + t)] =
            m->read.info[t];
    }
}

/* ------------------------------------------------------------------ any chunk */

static void begin_chunk(scratch *y, int64_t first)
{
    const int64_t rest = y->x->s.len - first, tokens = rest < CHUNK ? rest : CHUNK;
    if (y->x->form->solved) {
        mesa_load(&y->mesa, first, tokens);
    } else {
        chunk_load(y->x, first, tokens);
        chunk_pairs(y->x);
    }
}

/* `state` to the end of the chunk; what it was before it is copied to y->start. */
static void advance(scratch *y, void *state)
{
    const chunk *x = y->x;
    memcpy(y->start, state, y->state_bytes);
    if (x->form->solved) {
        mesa_advance(&y->mesa, state);
        return;
    }
    for (int64_t panel = 0; panel < x->panels; panel++) {
        chunk_write(x, chunk_state_panel(x, y->start, panel), panel);
        chunk_advance(x, chunk_state_panel(x, state, panel), panel);
    }
    if (x->p->normalise) {
        chunk_advance_mass(x, chunk_mass(x, state));
    }
}

static void end_chunk(scratch *y)
{
    const chunk *x = y->x;
    if (x->form->solved) {
        mesa_end_chunk(&y->mesa, y->start);
        return;
    }
    if (x->p->normalise) {
        chunk_weigh(x, chunk_mass(x, y->start));
    }
    for (int64_t panel = 0; panel < x->panels; panel++) {
        chunk_read(x, chunk_state_panel(x, y->start, panel), panel);
    }
    put_info(x);
}

static void load_state(const scratch *y, void *state)
{
    const loam_const_view *in = &y->x->a->state_in;
    y->x->form->solved ? mesa_load_state(y->x, in, state) : chunk_load_state(y->x, in, state);
}

static void store_state(const scratch *y, void *state)
{
    const loam_view *out = &y->x->a->state_out;
    y->x->form->solved ? mesa_store_state(y->x, out, state) : chunk_store_state(y->x, out, state);
}

/* ------------------------------------------------------------------ heads */

static void begin_head(scratch *y, int64_t n)
{
    y->x->s = recurrent_seq_at(y->x->p, y->x->a, n / y->x->p->heads_v);
    y->x->h = n % y->x->p->heads_v;
    if (y->x->form->solved) {
        mesa_load_head(&y->mesa);
    }
}

static void one_head(scratch *y)
{
    load_state(y, y->state);
    for (int64_t first = 0; first < y->x->s.len; first += CHUNK) {
        begin_chunk(y, first);
        advance(y, y->state);
        end_chunk(y);
    }
    store_state(y, y->state);
}

/* One head by all threads, which come here together; `state` is theirs together. */
static void one_head_together(scratch *y, void *state)
{
#pragma omp single
    load_state(y, state);
#pragma omp for ordered schedule(static, 1)
    for (int64_t first = 0; first < y->x->s.len; first += CHUNK) {
        begin_chunk(y, first);
#pragma omp ordered
        advance(y, state);
        end_chunk(y);
    }
#pragma omp single
    store_state(y, state);
}

size_t RECURRENT_JOIN(ISA(recurrent_forward), work)(const loam_problem *p)
{
    return size_mul(scratch_bytes(p), (size_t)p->threads);
}

loam_status ISA(recurrent_forward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    const size_t each = scratch_bytes(p);
    const int64_t heads = p->batch * p->heads_v;
    void *shared = NULL; /* the state of the first thread */
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
                begin_head(&y, n);
                one_head_together(&y, shared);
            }
        } else {
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < heads; n++) {
                begin_head(&y, n);
                one_head(&y);
            }
        }
    }
    return loam_succeed(error);
}
