/* SPDX-License-Identifier: MIT
 * The forward pass by spans of 32 tokens, for MesaNet by chunks of 64. The threads share heads and sequences.
 * Where there are fewer of these than threads, the threads share the chunks of one head, and only the update
 * of its state runs in order. Compiled once for each instruction set. */
#include "src/recurrent/cpu/mesa_span.h"

#include <omp.h>

enum { SPANS = CHUNK / SPAN };

/* Scratch of a thread; states are float, or double for MesaNet. */
typedef struct scratch {
    chunk *x; /* mesa.x, or the first span of a chunk */
    chunk span[SPANS];
    mesa mesa;
    mesa_span quick[SPANS];  /* MesaNet chunks in float32, where the condition allows it */
    bool symmetric, quickly; /* H of state_in is symmetric; the current chunk goes by spans */
    void *state;             /* of the head, if this thread has the head to itself */
    void *start[SPANS];      /* the state at the start of each span */
    size_t state_bytes;
} scratch;

static void scratch_carve(scratch *y, const loam_problem *p, const loam_args *a, arena *pool)
{
    if (recurrent_form_of(p->mechanism)->solved) {
        y->x = &y->mesa.x;
        mesa_carve(&y->mesa, p, a, pool);
        for (int i = 0; i < SPANS; i++) {
            mesa_span_carve(&y->quick[i], p, a, pool);
        }
        y->state_bytes = (size_t)mesa_state_doubles(y->x) * sizeof(double);
    } else {
        y->x = y->span;
        for (int i = 0; i < SPANS; i++) {
            chunk_carve(&y->span[i], p, a, false, pool);
        }
        y->state_bytes = (size_t)chunk_state_floats(y->x) * sizeof(float);
    }
    y->state = arena_take(pool, y->state_bytes, 1);
    for (int i = 0; i < SPANS; i++) {
        y->start[i] = arena_take(pool, y->state_bytes, 1);
    }
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

static void mesa_put_info(const chunk *x, const loam_row_info *rows)
{
    const loam_view *info = &x->a->info;
    for (int64_t t = 0; info->data && t < x->tokens; t++) {
        ((loam_row_info *)info->data)[RECURRENT_AT(*info, x->s.b, x->h, x->s.first + x->first + t)] = rows[t];
    }
}

static void mesa_end_chunk(mesa *m, double *start)
{
    mesa_load_h(m, start);
    mesa_solve_queries(m);
    for (int64_t panel = 0; panel < m->x.panels; panel++) {
        mesa_read(m, start, panel);
        mesa_put_panel(m, panel);
    }
    mesa_put_info(&m->x, m->read.info);
}

/* Whether a chunk of MesaNet goes by spans in float32. Not if it forgets nothing (the nested solve in
 * mesa_invert is direct), nor if the bound of the condition exceeds what float32 bears. */
static bool mesa_is_quick(const scratch *y, int64_t spans, double *state)
{
    const mesa *m = &y->mesa;
    const double *h = mesa_state_h(&m->x, state);
    double trace = m->most_ridge;
    bool forgets = false;
    for (int64_t c = 0; c < m->x.d; c++) {
        trace += h[c * m->x.width + c];
    }
    for (int64_t i = 0; i < spans; i++) {
        trace += y->quick[i].norm2;
        FOR_SPAN(t) { forgets |= y->quick[i].x.gate[t] != 0; }
    }
    return y->symmetric && forgets && trace <= MESA_SPAN_CONDITION * m->least_ridge;
}

static void mesa_advance_chunk(scratch *y, int64_t first, int64_t spans, double *state)
{
    y->quickly = mesa_is_quick(y, spans, state);
    memcpy(y->start[0], state, y->state_bytes);
    for (int64_t i = 0; y->quickly && i < spans; i++) {
        if (i > 0) {
            memcpy(y->start[i], state, y->state_bytes);
        }
        mesa_span_advance(&y->quick[i], state);
    }
    if (!y->quickly) {
        const int64_t rest = y->x->s.len - first;
        mesa_load(&y->mesa, first, rest < CHUNK ? rest : CHUNK);
        mesa_advance(&y->mesa, state);
    }
}

/* Returns false if a residual did not become small enough. */
static bool mesa_end_spans(scratch *y, int64_t spans)
{
    for (int64_t i = 0; i < spans; i++) {
        if (!mesa_span_solve(&y->quick[i], &y->mesa, y->start[i])) {
            return false;
        }
        mesa_span_read(&y->quick[i], y->start[i]);
        mesa_put_info(&y->quick[i].x, y->quick[i].info);
    }
    return true;
}

/* Whether H of the initial state is symmetric up to rounding. */
static bool mesa_is_symmetric(const chunk *x)
{
    const loam_const_view *in = &x->a->state_in;
    if (!in->data) {
        return true;
    }
    const float *h = (const float *)in->data + RECURRENT_AT(*in, x->s.index, x->h, x->p->dim_v);
    for (int64_t r = 0; r < x->d; r++) {
        for (int64_t c = 0; c < r; c++) {
            const float one = h[r * in->token + c], other = h[c * in->token + r];
            if (!(fabsf(one - other) <= 1e-6f * fabsf(h[r * in->token + r] + h[c * in->token + c]))) {
                return false;
            }
        }
    }
    return true;
}

/* ------------------------------------------------------------------ a span */

static void begin_span(chunk *x, int64_t first)
{
    const int64_t rest = x->s.len - first;
    span_load(x, first, rest < SPAN ? rest : SPAN);
    span_pairs(x);
}

/* `start`: the state before the span. */
static void write_span(const chunk *x, float *start, ahead *next)
{
    for (int64_t panel = 0; panel < x->panels; panel++) {
        span_write(x, chunk_state_panel(x, start, panel), panel, next);
    }
}

static void read_span(const chunk *x, float *start, ahead *next)
{
    if (x->p->normalise) {
        span_weigh(x, chunk_mass(x, start));
    }
    for (int64_t panel = 0; panel < x->panels; panel++) {
        span_read(x, chunk_state_panel(x, start, panel), panel, next);
    }
    put_info(x);
}

static void advance_span(const chunk *x, float *state, ahead *next)
{
    for (int64_t panel = 0; panel < x->panels; panel++) {
        span_advance(x, chunk_state_panel(x, state, panel), panel, next);
    }
    if (x->p->normalise) {
        span_advance_mass(x, chunk_mass(x, state));
    }
}

/* ------------------------------------------------------------------ one chunk; only advance_chunk
 * runs in order */

static int64_t spans_of(const scratch *y, int64_t first)
{
    const int64_t rest = y->x->s.len - first;
    return (rest < CHUNK ? rest + SPAN - 1 : CHUNK) / SPAN;
}

static void begin_chunk(scratch *y, int64_t first)
{
    for (int64_t i = 0; i < spans_of(y, first); i++) {
        chunk *x = y->x->form->solved ? &y->quick[i].x : &y->span[i];
        x->s = y->x->s;
        x->h = y->x->h;
        if (x->form->solved) {
            const int64_t at = first + i * SPAN, rest = x->s.len - at;
            mesa_span_load(&y->quick[i], at, rest < SPAN ? rest : SPAN);
        } else {
            begin_span(x, first + i * SPAN);
        }
    }
}

static void advance_chunk(scratch *y, int64_t first, void *state)
{
    if (y->x->form->solved) {
        mesa_advance_chunk(y, first, spans_of(y, first), state);
        return;
    }
    ahead none = { 0 };
    for (int64_t i = 0; i < spans_of(y, first); i++) {
        memcpy(y->start[i], state, y->state_bytes);
        write_span(&y->span[i], state, &none);
        advance_span(&y->span[i], state, &none);
    }
}

static void end_chunk(scratch *y, int64_t first)
{
    if (y->x->form->solved) {
        if (y->quickly && !mesa_end_spans(y, spans_of(y, first))) {
            const int64_t rest = y->x->s.len - first;
            mesa_load(&y->mesa, first, rest < CHUNK ? rest : CHUNK);
            y->quickly = false;
        }
        if (!y->quickly) {
            mesa_end_chunk(&y->mesa, y->start[0]);
        }
        return;
    }
    ahead none = { 0 };
    for (int64_t i = 0; i < spans_of(y, first); i++) {
        read_span(&y->span[i], y->start[i], &none);
    }
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
        y->symmetric = mesa_is_symmetric(y->x);
        for (int i = 0; i < SPANS; i++) {
            mesa_span_load_ridge(&y->quick[i], &y->mesa);
        }
    }
}

static void one_head(scratch *y)
{
    chunk *x = y->x;
    load_state(y, y->state);
    for (int64_t first = 0; x->form->solved && first < x->s.len; first += CHUNK) {
        begin_chunk(y, first);
        advance_chunk(y, first, y->state);
        end_chunk(y, first);
    }
    for (int64_t first = 0; !x->form->solved && first < x->s.len; first += SPAN) {
        begin_span(x, first);
        ahead next = span_ahead(x);
        write_span(x, y->state, &next);
        read_span(x, y->state, &next);
        advance_span(x, y->state, &next);
    }
    store_state(y, y->state);
}

/* One head by all threads of the team, with one shared `state`. */
static void one_head_together(scratch *y, void *state)
{
#pragma omp single
    load_state(y, state);
#pragma omp for ordered schedule(static, 1)
    for (int64_t first = 0; first < y->x->s.len; first += CHUNK) {
        begin_chunk(y, first);
#pragma omp ordered
        advance_chunk(y, first, state);
        end_chunk(y, first);
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
    void *shared = NULL; /* the state buffer of the first thread */
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
