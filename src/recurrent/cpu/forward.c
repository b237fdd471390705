/* SPDX-License-Identifier: MIT
 * The forward pass by spans of 32 tokens, for MesaNet by chunks of 64. The threads share heads and sequences.
 * Where there are fewer of these than threads, the threads share the chunks of one head, and only the update
 * of its state runs in order. Compiled once for each instruction set. */
#include "src/recurrent/cpu/mesa_span.h"

#include <omp.h>

enum { SPANS = CHUNK / SPAN };

/* Scratch of a thread; states are float, or double for MesaNet. */
typedef struct scratch {
    chunk *chunk; /* of mesa, or the first span of a chunk */
    chunk span[SPANS];
    mesa mesa;
    mesa_span mesa_span[SPANS]; /* MesaNet chunks in float32, where the condition allows it */
    bool symmetric, by_spans;   /* H of state_in is symmetric; the current chunk goes by spans */
    void *state;                /* of the head, if this thread has the head to itself */
    void *start[SPANS];         /* the state at the start of each span */
    size_t state_bytes;
} scratch;

static void scratch_carve(scratch *s, const loam_problem *p, const loam_args *a, arena *pool)
{
    if (recurrent_form_of(p->mechanism)->solved) {
        s->chunk = &s->mesa.chunk;
        mesa_carve(&s->mesa, p, a, pool);
        for (int i = 0; i < SPANS; i++)
            mesa_span_carve(&s->mesa_span[i], p, a, pool);
        s->state_bytes = (size_t)mesa_state_doubles(s->chunk) * sizeof(double);
    } else {
        s->chunk = s->span;
        for (int i = 0; i < SPANS; i++)
            chunk_carve(&s->span[i], p, a, false, pool);
        s->state_bytes = (size_t)chunk_state_floats(s->chunk) * sizeof(float);
    }
    s->state = arena_take(pool, s->state_bytes, 1);
    for (int i = 0; i < SPANS; i++)
        s->start[i] = arena_take(pool, s->state_bytes, 1);
}

static size_t scratch_bytes(const loam_problem *p)
{
    scratch s;
    arena pool = { 0 };
    scratch_carve(&s, p, NULL, &pool);
    return pool.used;
}

static void store_info(const chunk *x)
{
    for (int64_t t = 0; t < x->tokens; t++) {
        store_row_info(x->a, &x->seq, x->h, x->first + t,
                       direct_row_info(x->p->normalise ? x->denominator[t] : 1));
    }
}

/* ------------------------------------------------------------------ a chunk of MesaNet */

static void mesa_store_panel(const mesa *m, int64_t panel)
{
    const chunk *x = &m->chunk;
    const loam_view *o = &x->a->o;
    const int64_t from = panel * LANES, n = chunk_panel_channels(x, panel);
    for (int64_t t = 0; t < x->tokens; t++) {
        for (int64_t c = 0; c < n; c++)
            x->o[c] = (float)m->o[t * LANES + c];
        store_floats(o->data, x->p->dtype,
                     RECURRENT_AT(*o, x->seq.b, x->h, x->seq.first + x->first + t) + from, x->o, n);
    }
}

static void mesa_store_info(const chunk *x, const loam_row_info *rows)
{
    for (int64_t t = 0; t < x->tokens; t++)
        store_row_info(x->a, &x->seq, x->h, x->first + t, rows[t]);
}

static void mesa_read_chunk(mesa *m, double *start)
{
    mesa_load_h(m, start);
    mesa_solve_queries(m);
    for (int64_t panel = 0; panel < m->chunk.panels; panel++) {
        mesa_read(m, start, panel);
        mesa_store_panel(m, panel);
    }
    mesa_store_info(&m->chunk, m->query.info);
}

/* Whether a chunk of MesaNet goes by spans in float32. Not if it forgets nothing (the nested solve in
 * mesa_invert is direct), nor if the bound of the condition exceeds what float32 bears. */
static bool mesa_fits_spans(const scratch *s, int64_t spans, double *state)
{
    const mesa *m = &s->mesa;
    const double *h = mesa_state_h(&m->chunk, state);
    double trace = m->bounds.most;
    bool has_decay = false;
    for (int64_t c = 0; c < m->chunk.d; c++)
        trace += h[c * m->chunk.width + c];
    for (int64_t i = 0; i < spans; i++) {
        trace += s->mesa_span[i].norm2;
        FOR_SPAN(t) { has_decay |= s->mesa_span[i].chunk.gate[t] != 0; }
    }
    return s->symmetric && has_decay && trace <= MESA_SPAN_CONDITION * m->bounds.least;
}

static void mesa_advance_chunk(scratch *s, int64_t first, int64_t spans, double *state)
{
    s->by_spans = mesa_fits_spans(s, spans, state);
    memcpy(s->start[0], state, s->state_bytes);
    for (int64_t i = 0; s->by_spans && i < spans; i++) {
        if (i > 0) memcpy(s->start[i], state, s->state_bytes);
        mesa_span_advance(&s->mesa_span[i], state);
    }
    if (!s->by_spans) {
        mesa_load(&s->mesa, first, chunk_tokens(s->chunk, first, CHUNK));
        mesa_advance(&s->mesa, state);
    }
}

/* Returns false if a residual did not become small enough. */
static bool mesa_read_spans(scratch *s, int64_t spans)
{
    for (int64_t i = 0; i < spans; i++) {
        if (!mesa_span_solve(&s->mesa_span[i], &s->mesa, s->start[i])) return false;
        mesa_span_read(&s->mesa_span[i], s->start[i]);
        mesa_store_info(&s->mesa_span[i].chunk, s->mesa_span[i].info);
    }
    return true;
}

/* Whether H of the initial state is symmetric up to rounding. */
static bool mesa_is_symmetric(const chunk *x)
{
    const loam_const_view *in = &x->a->state_in;
    if (!in->data) return true;
    const float *h = (const float *)in->data + RECURRENT_AT(*in, x->seq.index, x->h, x->p->dim_v);
    for (int64_t r = 0; r < x->d; r++) {
        for (int64_t c = 0; c < r; c++) {
            const float one = h[r * in->token + c], other = h[c * in->token + r];
            if (!(fabsf(one - other) <= 1e-6f * fabsf(h[r * in->token + r] + h[c * in->token + c])))
                return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ a span */

static void prepare_span(chunk *x, int64_t first)
{
    span_load(x, first, chunk_tokens(x, first, SPAN));
    span_pair_products(x);
}

/* `start`: the state before the span. */
static void write_panels(const chunk *x, float *start, ahead *next)
{
    for (int64_t panel = 0; panel < x->panels; panel++)
        span_write(x, chunk_state_panel(x, start, panel), panel, next);
}

static void read_panels(const chunk *x, float *start, ahead *next)
{
    if (x->p->normalise) chunk_denominators(x, span_reads(x), chunk_normaliser(x, start), SPAN);
    for (int64_t panel = 0; panel < x->panels; panel++)
        span_read(x, chunk_state_panel(x, start, panel), panel, next);
    store_info(x);
}

static void advance_panels(const chunk *x, float *state, ahead *next)
{
    for (int64_t panel = 0; panel < x->panels; panel++)
        span_advance(x, chunk_state_panel(x, state, panel), panel, next);
    if (x->p->normalise) span_advance_normaliser(x, chunk_normaliser(x, state));
}

/* ------------------------------------------------------------------ one chunk; only advance_chunk
 * runs in order */

static int64_t spans_of(const scratch *s, int64_t first)
{
    return (chunk_tokens(s->chunk, first, CHUNK) + SPAN - 1) / SPAN;
}

static void prepare_chunk(scratch *s, int64_t first)
{
    for (int64_t i = 0; i < spans_of(s, first); i++) {
        chunk *x = s->chunk->form->solved ? &s->mesa_span[i].chunk : &s->span[i];
        x->seq = s->chunk->seq;
        x->h = s->chunk->h;
        if (x->form->solved)
            mesa_span_load(&s->mesa_span[i], first + i * SPAN, chunk_tokens(x, first + i * SPAN, SPAN));
        else
            prepare_span(x, first + i * SPAN);
    }
}

static void advance_chunk(scratch *s, int64_t first, void *state)
{
    if (s->chunk->form->solved) {
        mesa_advance_chunk(s, first, spans_of(s, first), state);
        return;
    }
    ahead none = { 0 };
    for (int64_t i = 0; i < spans_of(s, first); i++) {
        memcpy(s->start[i], state, s->state_bytes);
        write_panels(&s->span[i], state, &none);
        advance_panels(&s->span[i], state, &none);
    }
}

static void read_chunk(scratch *s, int64_t first)
{
    if (s->chunk->form->solved) {
        if (s->by_spans && !mesa_read_spans(s, spans_of(s, first))) {
            mesa_load(&s->mesa, first, chunk_tokens(s->chunk, first, CHUNK));
            s->by_spans = false;
        }
        if (!s->by_spans) mesa_read_chunk(&s->mesa, s->start[0]);
        return;
    }
    ahead none = { 0 };
    for (int64_t i = 0; i < spans_of(s, first); i++)
        read_panels(&s->span[i], s->start[i], &none);
}

static void load_state(const scratch *s, void *state)
{
    const loam_const_view *in = &s->chunk->a->state_in;
    s->chunk->form->solved ? mesa_load_state(s->chunk, in, state) : chunk_load_state(s->chunk, in, state);
}

static void store_state(const scratch *s, void *state)
{
    const loam_view *out = &s->chunk->a->state_out;
    s->chunk->form->solved ? mesa_store_state(s->chunk, out, state) : chunk_store_state(s->chunk, out, state);
}

/* ------------------------------------------------------------------ heads */

static void load_head(scratch *s, int64_t n)
{
    s->chunk->seq = recurrent_seq_at(s->chunk->p, s->chunk->a, n / s->chunk->p->heads_v);
    s->chunk->h = n % s->chunk->p->heads_v;
    if (s->chunk->form->solved) {
        mesa_load_head(&s->mesa);
        s->symmetric = mesa_is_symmetric(s->chunk);
        for (int i = 0; i < SPANS; i++)
            mesa_span_load_ridge(&s->mesa_span[i], &s->mesa);
    }
}

static void head_by_thread(scratch *s)
{
    chunk *x = s->chunk;
    load_state(s, s->state);
    for (int64_t first = 0; x->form->solved && first < x->seq.len; first += CHUNK) {
        prepare_chunk(s, first);
        advance_chunk(s, first, s->state);
        read_chunk(s, first);
    }
    for (int64_t first = 0; !x->form->solved && first < x->seq.len; first += SPAN) {
        prepare_span(x, first);
        ahead next = span_ahead(x);
        write_panels(x, s->state, &next);
        read_panels(x, s->state, &next);
        advance_panels(x, s->state, &next);
    }
    store_state(s, s->state);
}

/* One head by all threads of the team, with one shared `state`. */
static void head_by_team(scratch *s, void *state)
{
#pragma omp single
    load_state(s, state);
#pragma omp for ordered schedule(static, 1)
    for (int64_t first = 0; first < s->chunk->seq.len; first += CHUNK) {
        prepare_chunk(s, first);
#pragma omp ordered
        advance_chunk(s, first, state);
        read_chunk(s, first);
    }
#pragma omp single
    store_state(s, state);
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
        scratch s;
        scratch_carve(&s, p, a, &pool);
#pragma omp master
        shared = s.state;
#pragma omp barrier
        if (heads < omp_get_num_threads()) {
            for (int64_t n = 0; n < heads; n++) {
                load_head(&s, n);
                head_by_team(&s, shared);
            }
        } else {
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < heads; n++) {
                load_head(&s, n);
                head_by_thread(&s);
            }
        }
    }
    return loam_succeed(error);
}
