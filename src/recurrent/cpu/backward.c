/* SPDX-License-Identifier: MIT
 * The backward pass by chunks of 64 tokens. A first pass goes forwards, by the spans of the forward pass, and
 * stores the state at the start of each chunk; a second pass goes backwards. Value heads that share a head of
 * q and k are processed one after another, and add their gradients of its features. The threads share heads
 * and sequences. Where there are fewer of these than threads, the threads share the chunks of one head, and
 * only the updates of states run in order. Compiled once for each instruction set. */
#include "src/recurrent/cpu/mesa_gradient.h"
#include "src/recurrent/cpu/span.h"

#include <omp.h>

/* Sums over tokens. The chunks of a head add to its ridge in order, from the last to the first. */
typedef struct head_sums {
    int64_t chunks;
    double *scale, *decay; /* [batch][heads_v][chunks] */
    double *ridge;         /* [batch][heads_v][dim_qk] */
} head_sums;

/* Arrays of the current head of q and k. */
typedef struct head_work {
    char *states;         /* [chunks + 1]: at the start of each chunk, and at the end */
    void *grad;           /* gradient of the state */
    float *q_sum, *k_sum; /* [len][width]: gradients of the features */
} head_work;

/* Scratch of a thread; states are float, or double for MesaNet. */
typedef struct scratch {
    chunk *chunk; /* direct, or that of mesa */
    chunk direct;
    chunk span[CHUNK / SPAN];
    mesa mesa;
    gradient *result; /* g, or that of mesa_g */
    gradient g;
    mesa_gradient mesa_g;
    head_work own;
    size_t state_bytes;
} scratch;

static int64_t chunks_of(int64_t len) { return (len + CHUNK - 1) / CHUNK; }

static head_sums head_sums_carve(const loam_problem *p, arena *pool)
{
    head_sums sums = { .chunks = chunks_of(p->len_q) };
    const size_t heads = size_mul((size_t)p->batch, (size_t)p->heads_v);
    const size_t n = size_mul(heads, (size_t)sums.chunks);
    const bool solved = recurrent_form_of(p->mechanism)->solved;
    sums.scale = arena_take(pool, n, sizeof(double));
    sums.decay = arena_take(pool, n, sizeof(double));
    sums.ridge = arena_take(pool, solved ? size_mul(heads, (size_t)p->dim_qk) : 0, sizeof(double));
    return sums;
}

static void scratch_carve(scratch *s, const loam_problem *p, const loam_args *a, arena *pool)
{
    if (recurrent_form_of(p->mechanism)->solved) {
        s->chunk = &s->mesa.chunk;
        s->result = &s->mesa_g.result;
        mesa_carve(&s->mesa, p, a, pool);
        mesa_gradient_carve(&s->mesa_g, s->chunk, pool);
        s->state_bytes = (size_t)mesa_state_doubles(s->chunk) * sizeof(double);
    } else {
        s->chunk = &s->direct;
        s->result = &s->g;
        chunk_carve(s->chunk, p, a, true, pool);
        for (int i = 0; i < CHUNK / SPAN; i++)
            chunk_carve(&s->span[i], p, a, false, pool);
        gradient_carve(&s->g, s->chunk, pool);
        s->state_bytes = size_of((size_t)chunk_state_floats(s->chunk), sizeof(float));
    }
    const size_t rows = size_mul((size_t)p->len_q, (size_t)s->chunk->width);
    s->own.states = arena_take(pool, size_mul((size_t)chunks_of(p->len_q) + 1, s->state_bytes), 1);
    s->own.grad = arena_take(pool, s->state_bytes, 1);
    s->own.q_sum = arena_take(pool, rows, sizeof(float));
    s->own.k_sum = arena_take(pool, rows, sizeof(float));
}

static size_t scratch_bytes(const loam_problem *p)
{
    scratch s;
    arena pool = { 0 };
    scratch_carve(&s, p, NULL, &pool);
    return pool.used;
}

/* ------------------------------------------------------------------ one chunk */

static void prepare_chunk(scratch *s, int64_t n)
{
    const int64_t first = n * CHUNK, tokens = chunk_tokens(s->chunk, first, CHUNK);
    if (s->chunk->form->solved) {
        mesa_load(&s->mesa, first, tokens);
    } else {
        chunk_load(s->chunk, first, tokens);
        chunk_pair_products(s->chunk);
    }
}

static void *state_of(const scratch *s, const head_work *work, int64_t n)
{
    return work->states + (size_t)n * s->state_bytes;
}

/* Loads chunk n, a whole one, for the update of the state. */
static void prepare_advance(scratch *s, int64_t n)
{
    if (s->chunk->form->solved) {
        prepare_chunk(s, n);
        return;
    }
    for (int64_t i = 0; i < CHUNK / SPAN; i++) {
        s->span[i].seq = s->chunk->seq;
        s->span[i].h = s->chunk->h;
        span_load(&s->span[i], n * CHUNK + i * SPAN, SPAN);
        span_pair_products(&s->span[i]);
    }
}

/* State n + 1 from state n, with the same bits as in the forward pass. */
static void advance(scratch *s, const head_work *work, int64_t n)
{
    void *end = state_of(s, work, n + 1);
    memcpy(end, state_of(s, work, n), s->state_bytes);
    if (s->chunk->form->solved) {
        mesa_advance(&s->mesa, end);
        return;
    }
    for (int64_t i = 0; i < CHUNK / SPAN; i++) {
        const chunk *x = &s->span[i];
        ahead next = span_ahead(x);
        for (int64_t panel = 0; panel < x->panels; panel++) {
            float *state = chunk_state_panel(x, end, panel);
            span_write(x, state, panel, &next);
            span_advance(x, state, panel, &next);
        }
        if (x->p->normalise) span_advance_normaliser(x, chunk_normaliser(x, end));
    }
}

static void prepare_gradient(scratch *s, const head_work *work, int64_t n)
{
    prepare_chunk(s, n);
    if (s->chunk->form->solved)
        mesa_gradient_prepare(&s->mesa_g, &s->mesa, state_of(s, work, n));
    else
        gradient_prepare(&s->g, s->chunk, state_of(s, work, n));
}

/* work->grad: from the end of chunk n to its start. */
static void advance_gradient(scratch *s, const head_work *work, int64_t n, const head_sums *sums)
{
    const chunk *x = s->chunk;
    if (x->form->solved) {
        double *ridge = sums->ridge + (x->seq.index * x->p->heads_v + x->h) * x->d;
        mesa_gradient_advance(&s->mesa_g, &s->mesa, work->grad);
        for (int64_t c = 0; c < x->d; c++)
            ridge[c] = s->mesa_g.ridge[c] + (n + 1 < chunks_of(x->seq.len) ? ridge[c] : 0);
    } else {
        gradient_advance(&s->g, s->chunk, work->grad);
    }
}

static void store_values(const gradient *g, const chunk *x)
{
    const loam_view *v = &x->a->grad_v;
    const float sign = x->form->delta ? -1 : 1;
    for (int64_t panel = 0; v->data && panel < x->panels; panel++) {
        const int64_t from = panel * LANES, n = chunk_panel_channels(x, panel);
        for (int64_t t = 0; t < x->tokens; t++) {
            float *row = chunk_panel(g->w, panel) + t * LANES;
            gradient_scale_row(row, row, sign);
            store_floats(v->data, x->p->dtype,
                         RECURRENT_AT(*v, x->seq.b, x->h, x->seq.first + x->first + t) + from, row, n);
        }
    }
}

static void store_tokens(const gradient *g, const chunk *x)
{
    const loam_view *beta = &x->a->grad_beta, *gate = &x->a->grad_log_decay;
    const bool channels = x->form->gate == GATE_CHANNEL;
    for (int64_t t = 0; t < x->tokens; t++) {
        const int64_t token = x->seq.first + x->first + t;
        if (beta->data) ((float *)beta->data)[RECURRENT_AT(*beta, x->seq.b, x->h, token)] = g->beta[t];
        if (gate->data && (channels || x->form->gate == GATE_TOKEN)) {
            memcpy((float *)gate->data + RECURRENT_AT(*gate, x->seq.b, x->h, token),
                   g->gate + t * (channels ? x->width : 1), (size_t)(channels ? x->d : 1) * sizeof(float));
        }
    }
}

/* Adds the gradients of the features to those of earlier value heads; also the sums over the chunk. */
static void add_features(const gradient *g, const chunk *x, const head_work *work, const head_sums *sums)
{
    const bool first_head = x->h % (x->p->heads_v / x->p->heads_q) == 0;
    const int64_t n = (x->seq.index * x->p->heads_v + x->h) * sums->chunks + x->first / CHUNK;
    const float scale = (float)x->p->scale;
    double scale_sum = 0, decay = 0;
    for (int64_t t = 0; t < x->tokens; t++) {
        const int64_t e = t * x->width, to = x->first * x->width + e;
        scale_sum += (double)features_dot(x->q + e, g->q_rows + e, x->width);
        decay += x->form->gate == GATE_HEAD ? (double)g->gate[t] : 0;
        FOR_WIDTH(c, x)
        {
            float *q = work->q_sum + to + c, *k = work->k_sum + to + c;
            v_store(q, v_load(g->q_rows + e + c) * scale + (first_head ? v_set(0) : v_load(q)));
            v_store(k, v_load(g->k_rows + e + c) + (first_head ? v_set(0) : v_load(k)));
        }
    }
    sums->scale[n] = scale_sum / x->p->scale;
    sums->decay[n] = decay;
}

static void finish_gradient(scratch *s, const head_work *work, int64_t n, const head_sums *sums)
{
    const chunk *x = s->chunk;
    if (x->form->solved)
        mesa_gradient_finish(&s->mesa_g, &s->mesa, state_of(s, work, n));
    else
        gradient_finish(&s->g, x, state_of(s, work, n));
    store_values(s->result, x);
    store_tokens(s->result, x);
    add_features(s->result, x, work, sums);
}

/* ------------------------------------------------------------------ rows of q and k */

/* row <- the gradient of row t of q or k. On entry it is the gradient of its features. */
static void features_gradient(const chunk *x, const loam_const_view *from, int64_t t, float *row)
{
    float values[LOAM_MAX_DIM];
    double phi[LOAM_MAX_DIM], norm2 = 0, scale_sum = 0;
    const loam_problem *p = x->p;
    if (p->feature_map == LOAM_FEATURES_IDENTITY) return;
    load_floats(values, from->data, p->dtype,
                RECURRENT_AT(*from, x->seq.b, recurrent_key_head(p, x->h), x->seq.first + t), x->d);
    if (p->feature_map == LOAM_FEATURES_ELU) {
        for (int64_t c = 0; c < x->d; c++)
            row[c] *= values[c] > 0 ? 1 : expf(values[c]);
        return;
    }
    for (int64_t c = 0; c < x->d; c++)
        norm2 += (double)values[c] * (double)values[c];
    const double norm = sqrt(norm2);
    for (int64_t c = 0; c < x->d; c++) {
        phi[c] = norm > 0 ? (double)values[c] / norm : 0;
        scale_sum += phi[c] * (double)row[c];
    }
    for (int64_t c = 0; c < x->d; c++)
        row[c] = norm > 0 ? (float)(((double)row[c] - scale_sum * phi[c]) / norm) : 0;
}

static void store_features(const chunk *x, const head_work *work, int64_t n)
{
    const loam_const_view *const from[] = { &x->a->q, &x->a->k };
    const loam_view *const to[] = { &x->a->grad_q, &x->a->grad_k };
    float *const sum[] = { work->q_sum, work->k_sum };
    const int64_t h = recurrent_key_head(x->p, x->h);
    for (int side = 0; side < 2; side++) {
        for (int64_t t = n * CHUNK; to[side]->data && t < (n + 1) * CHUNK && t < x->seq.len; t++) {
            float *row = sum[side] + t * x->width;
            features_gradient(x, from[side], t, row);
            store_floats(to[side]->data, x->p->dtype, RECURRENT_AT(*to[side], x->seq.b, h, x->seq.first + t),
                         row, x->d);
        }
    }
}

/* ------------------------------------------------------------------ one value head */

static void load_states(const scratch *s, const head_work *work)
{
    const loam_const_view *in = &s->chunk->a->state_in, *grad = &s->chunk->a->grad_state_out;
    if (s->chunk->form->solved) {
        mesa_load_state(s->chunk, in, state_of(s, work, 0));
        mesa_load_state(s->chunk, grad, work->grad);
    } else {
        chunk_load_state(s->chunk, in, state_of(s, work, 0));
        chunk_load_state(s->chunk, grad, work->grad);
    }
}

static void store_gradient(const scratch *s, const head_work *work)
{
    const loam_view *out = &s->chunk->a->grad_state_in;
    s->chunk->form->solved ? mesa_store_state(s->chunk, out, work->grad)
                           : chunk_store_state(s->chunk, out, work->grad);
}

static void head_by_thread(scratch *s, const head_sums *sums)
{
    const head_work *work = &s->own;
    const int64_t chunks = chunks_of(s->chunk->seq.len);
    load_states(s, work);
    for (int64_t n = 0; n + 1 < chunks; n++) {
        prepare_advance(s, n);
        advance(s, work, n);
    }
    for (int64_t n = chunks - 1; n >= 0; n--) {
        prepare_gradient(s, work, n);
        advance_gradient(s, work, n, sums);
        finish_gradient(s, work, n, sums);
    }
    store_gradient(s, work);
}

/* The same by all threads of the team. */
static void head_by_team(scratch *s, const head_work *work, const head_sums *sums)
{
    const int64_t chunks = chunks_of(s->chunk->seq.len);
#pragma omp single
    load_states(s, work);
#pragma omp for ordered schedule(static, 1)
    for (int64_t n = 0; n < chunks - 1; n++) {
        prepare_advance(s, n);
#pragma omp ordered
        advance(s, work, n);
    }
#pragma omp for ordered schedule(static, 1)
    for (int64_t n = chunks - 1; n >= 0; n--) {
        prepare_gradient(s, work, n);
#pragma omp ordered
        advance_gradient(s, work, n, sums);
        finish_gradient(s, work, n, sums);
    }
#pragma omp single
    store_gradient(s, work);
}

/* ------------------------------------------------------------------ all heads */

/* Sum over sequences and chunks, for value head h. */
static double sum_of(const loam_problem *p, const loam_args *a, const head_sums *sums, const double *part,
                     int64_t h)
{
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t n = 0; n < chunks_of(recurrent_seq_at(p, a, b).len); n++)
            sum += part[(b * p->heads_v + h) * sums->chunks + n];
    return sum;
}

static double ridge_of(const loam_problem *p, const loam_args *a, const head_sums *sums, int64_t h, int64_t c)
{
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++)
        sum += recurrent_seq_at(p, a, b).len > 0 ? sums->ridge[(b * p->heads_v + h) * p->dim_qk + c] : 0;
    return sum;
}

static void store_ridge(const loam_problem *p, const loam_args *a, const head_sums *sums)
{
    float *to = a->grad_ridge.data;
    double all = 0;
    for (int64_t h = 0; h < p->heads_v; h++) {
        double one = 0;
        for (int64_t c = 0; c < p->dim_qk; c++) {
            const double channel = ridge_of(p, a, sums, h, c);
            one += channel;
            if (p->ridge_axes == LOAM_RIDGE_HEAD_CHANNEL) to[h * a->grad_ridge.head + c] = (float)channel;
        }
        all += one;
        if (p->ridge_axes == LOAM_RIDGE_HEAD) to[h * a->grad_ridge.head] = (float)one;
    }
    if (p->ridge_axes == LOAM_RIDGE_NUMBER) to[0] = (float)all;
}

static void store_sums(const loam_problem *p, const loam_args *a, const head_sums *sums)
{
    const recurrent_form *form = recurrent_form_of(p->mechanism);
    double scale = 0;
    for (int64_t h = 0; h < p->heads_v; h++) {
        scale += sum_of(p, a, sums, sums->scale, h);
        if (form->gate == GATE_HEAD && a->grad_log_decay.data) {
            ((float *)a->grad_log_decay.data)[h * a->grad_log_decay.head] = (float)sum_of(p, a, sums,
                                                                                          sums->decay, h);
        }
    }
    if (a->grad_scale) /* a weighted mean does not depend on the scale */
        *(float *)a->grad_scale = p->normalise ? 0 : (float)scale;
    if (form->solved && a->grad_ridge.data) store_ridge(p, a, sums);
}

/* Key head n % heads_q of sequence n / heads_q; by all threads of the team if `shared` is given. */
static void one_key_head(scratch *s, int64_t n, const head_work *shared, const head_sums *sums)
{
    chunk *x = s->chunk;
    const int64_t group = x->p->heads_v / x->p->heads_q, h = n % x->p->heads_q * group;
    x->seq = recurrent_seq_at(x->p, x->a, n / x->p->heads_q);
    for (x->h = h; x->h < h + group; x->h++) {
        if (x->form->solved) mesa_load_head(&s->mesa);
        if (shared)
            head_by_team(s, shared, sums);
        else
            head_by_thread(s, sums);
    }
    x->h = h;
    if (shared) {
#pragma omp for
        for (int64_t i = 0; i < chunks_of(x->seq.len); i++)
            store_features(x, shared, i);
    }
    for (int64_t i = 0; !shared && i < chunks_of(x->seq.len); i++)
        store_features(x, &s->own, i);
}

size_t RECURRENT_JOIN(ISA(recurrent_backward), work)(const loam_problem *p)
{
    arena pool = { 0 };
    head_sums_carve(p, &pool);
    return size_add(pool.used, size_mul(scratch_bytes(p), (size_t)p->threads));
}

loam_status ISA(recurrent_backward)(const loam_problem *p, const loam_args *a, loam_error *error)
{
    arena first = { a->work, 0 };
    const head_sums sums = head_sums_carve(p, &first);
    const size_t each = scratch_bytes(p);
    const int64_t heads = p->batch * p->heads_q;
    head_work shared = { 0 }; /* the arrays of the first thread */
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + first.used + each * (size_t)omp_get_thread_num(), 0 };
        scratch s;
        scratch_carve(&s, p, a, &pool);
#pragma omp master
        shared = s.own;
#pragma omp barrier
        if (heads < omp_get_num_threads()) {
            for (int64_t n = 0; n < heads; n++)
                one_key_head(&s, n, &shared, &sums);
        } else {
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < heads; n++)
                one_key_head(&s, n, NULL, &sums);
        }
    }
    store_sums(p, a, &sums);
    return loam_succeed(error);
}
