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
typedef struct head {
    char *states;         /* [chunks + 1]: at the start of each chunk, and at the end */
    void *grad;           /* gradient of the state */
    float *q_sum, *k_sum; /* [len][width]: gradients of the features */
} head;

/* Scratch of a thread; states are float, or double for MesaNet. */
typedef struct scratch {
    chunk *x; /* direct, or mesa.x */
    chunk direct;
    chunk span[CHUNK / SPAN];
    mesa mesa;
    gradient *rows; /* g, or mesa_g.rows */
    gradient g;
    mesa_gradient mesa_g;
    head own;
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

static void scratch_carve(scratch *y, const loam_problem *p, const loam_args *a, arena *pool)
{
    if (recurrent_form_of(p->mechanism)->solved) {
        y->x = &y->mesa.x;
        y->rows = &y->mesa_g.rows;
        mesa_carve(&y->mesa, p, a, pool);
        mesa_gradient_carve(&y->mesa_g, y->x, pool);
        y->state_bytes = (size_t)mesa_state_doubles(y->x) * sizeof(double);
    } else {
        y->x = &y->direct;
        y->rows = &y->g;
        chunk_carve(y->x, p, a, true, pool);
        for (int i = 0; i < CHUNK / SPAN; i++) {
            chunk_carve(&y->span[i], p, a, false, pool);
        }
        gradient_carve(&y->g, y->x, pool);
        y->state_bytes = size_of((size_t)chunk_state_floats(y->x), sizeof(float));
    }
    const size_t rows = size_mul((size_t)p->len_q, (size_t)y->x->width);
    y->own.states = arena_take(pool, size_mul((size_t)chunks_of(p->len_q) + 1, y->state_bytes), 1);
    y->own.grad = arena_take(pool, y->state_bytes, 1);
    y->own.q_sum = arena_take(pool, rows, sizeof(float));
    y->own.k_sum = arena_take(pool, rows, sizeof(float));
}

static size_t scratch_bytes(const loam_problem *p)
{
    scratch y;
    arena pool = { 0 };
    scratch_carve(&y, p, NULL, &pool);
    return pool.used;
}

/* ------------------------------------------------------------------ one chunk */

static void begin_chunk(scratch *y, int64_t n)
{
    const int64_t first = n * CHUNK, rest = y->x->s.len - first, tokens = rest < CHUNK ? rest : CHUNK;
    if (y->x->form->solved) {
        mesa_load(&y->mesa, first, tokens);
    } else {
        chunk_load(y->x, first, tokens);
        chunk_pairs(y->x);
    }
}

static void *state_of(const scratch *y, const head *at, int64_t n)
{
    return at->states + (size_t)n * y->state_bytes;
}

/* Loads chunk n, a whole one, for the update of the state. */
static void begin_advance(scratch *y, int64_t n)
{
    if (y->x->form->solved) {
        begin_chunk(y, n);
        return;
    }
    for (int64_t i = 0; i < CHUNK / SPAN; i++) {
        y->span[i].s = y->x->s;
        y->span[i].h = y->x->h;
        span_load(&y->span[i], n * CHUNK + i * SPAN, SPAN);
        span_pairs(&y->span[i]);
    }
}

/* State n + 1 from state n, with the same bits as in the forward pass. */
static void advance(scratch *y, const head *at, int64_t n)
{
    void *end = state_of(y, at, n + 1);
    memcpy(end, state_of(y, at, n), y->state_bytes);
    if (y->x->form->solved) {
        mesa_advance(&y->mesa, end);
        return;
    }
    for (int64_t i = 0; i < CHUNK / SPAN; i++) {
        const chunk *x = &y->span[i];
        ahead next = span_ahead(x);
        for (int64_t panel = 0; panel < x->panels; panel++) {
            float *state = chunk_state_panel(x, end, panel);
            span_write(x, state, panel, &next);
            span_advance(x, state, panel, &next);
        }
        if (x->p->normalise) {
            span_advance_mass(x, chunk_mass(x, end));
        }
    }
}

static void begin_gradient(scratch *y, const head *at, int64_t n)
{
    begin_chunk(y, n);
    if (y->x->form->solved) {
        mesa_gradient_begin(&y->mesa_g, &y->mesa, state_of(y, at, n));
    } else {
        gradient_begin(&y->g, y->x, state_of(y, at, n));
    }
}

/* at->grad: from the end of chunk n to its start. */
static void retreat(scratch *y, const head *at, int64_t n, const head_sums *sums)
{
    const chunk *x = y->x;
    if (x->form->solved) {
        double *ridge = sums->ridge + (x->s.index * x->p->heads_v + x->h) * x->d;
        mesa_gradient_advance(&y->mesa_g, &y->mesa, at->grad);
        for (int64_t c = 0; c < x->d; c++) {
            ridge[c] = y->mesa_g.ridge[c] + (n + 1 < chunks_of(x->s.len) ? ridge[c] : 0);
        }
    } else {
        gradient_advance(&y->g, y->x, at->grad);
    }
}

static void put_values(const gradient *g, const chunk *x)
{
    const loam_view *v = &x->a->grad_v;
    const float sign = x->form->delta ? -1 : 1;
    for (int64_t panel = 0; v->data && panel < x->panels; panel++) {
        const int64_t from = panel * LANES, rest = x->p->dim_v - from, n = rest < LANES ? rest : LANES;
        for (int64_t t = 0; t < x->tokens; t++) {
            float *row = chunk_panel(g->w, panel) + t * LANES;
            gradient_scale_row(row, row, sign);
            store_floats(v->data, x->p->dtype,
                         RECURRENT_AT(*v, x->s.b, x->h, x->s.first + x->first + t) + from, row, n);
        }
    }
}

static void put_tokens(const gradient *g, const chunk *x)
{
    const loam_view *beta = &x->a->grad_beta, *gate = &x->a->grad_log_decay;
    const bool channels = x->form->gate == GATE_CHANNEL;
    for (int64_t t = 0; t < x->tokens; t++) {
        const int64_t token = x->s.first + x->first + t;
        if (beta->data) {
            ((float *)beta->data)[RECURRENT_AT(*beta, x->s.b, x->h, token)] = g->beta[t];
        }
        if (gate->data && (channels || x->form->gate == GATE_TOKEN)) {
            memcpy((float *)gate->data + RECURRENT_AT(*gate, x->s.b, x->h, token),
                   g->gate + t * (channels ? x->width : 1), (size_t)(channels ? x->d : 1) * sizeof(float));
        }
    }
}

/* Adds the gradients of the features to those of earlier value heads; also the sums over the chunk. */
static void add_features(const gradient *g, const chunk *x, const head *at, const head_sums *sums)
{
    const bool begins = x->h % (x->p->heads_v / x->p->heads_q) == 0;
    const int64_t n = (x->s.index * x->p->heads_v + x->h) * sums->chunks + x->first / CHUNK;
    const float scale = (float)x->p->scale;
    double along = 0, decay = 0;
    for (int64_t t = 0; t < x->tokens; t++) {
        const int64_t e = t * x->width, to = x->first * x->width + e;
        along += (double)features_dot(x->q + e, g->q_rows + e, x->width);
        decay += x->form->gate == GATE_HEAD ? (double)g->gate[t] : 0;
        FOR_WIDTH(c, x)
        {
            float *q = at->q_sum + to + c, *k = at->k_sum + to + c;
            v_store(q, v_load(g->q_rows + e + c) * scale + (begins ? v_set(0) : v_load(q)));
            v_store(k, v_load(g->k_rows + e + c) + (begins ? v_set(0) : v_load(k)));
        }
    }
    sums->scale[n] = along / x->p->scale;
    sums->decay[n] = decay;
}

static void end_gradient(scratch *y, const head *at, int64_t n, const head_sums *sums)
{
    const chunk *x = y->x;
    if (x->form->solved) {
        mesa_gradient_end(&y->mesa_g, &y->mesa, state_of(y, at, n));
    } else {
        gradient_end(&y->g, x, state_of(y, at, n));
    }
    put_values(y->rows, x);
    put_tokens(y->rows, x);
    add_features(y->rows, x, at, sums);
}

/* ------------------------------------------------------------------ rows of q and k */

/* row <- the gradient of row t of q or k. On entry it is the gradient of its features. */
static void features_gradient(const chunk *x, const loam_const_view *from, int64_t t, float *row)
{
    float values[LOAM_MAX_DIM];
    double phi[LOAM_MAX_DIM], norm2 = 0, along = 0;
    const loam_problem *p = x->p;
    if (p->feature_map == LOAM_FEATURES_IDENTITY) {
        return;
    }
    load_floats(values, from->data, p->dtype,
                RECURRENT_AT(*from, x->s.b, recurrent_key_head(p, x->h), x->s.first + t), x->d);
    if (p->feature_map == LOAM_FEATURES_ELU) {
        for (int64_t c = 0; c < x->d; c++) {
            row[c] *= values[c] > 0 ? 1 : expf(values[c]);
        }
        return;
    }
    for (int64_t c = 0; c < x->d; c++) {
        norm2 += (double)values[c] * (double)values[c];
    }
    const double norm = sqrt(norm2);
    for (int64_t c = 0; c < x->d; c++) {
        phi[c] = norm > 0 ? (double)values[c] / norm : 0;
        along += phi[c] * (double)row[c];
    }
    for (int64_t c = 0; c < x->d; c++) {
        row[c] = norm > 0 ? (float)(((double)row[c] - along * phi[c]) / norm) : 0;
    }
}

static void put_features(const chunk *x, const head *at, int64_t n)
{
    const loam_const_view *const from[] = { &x->a->q, &x->a->k };
    const loam_view *const to[] = { &x->a->grad_q, &x->a->grad_k };
    float *const sum[] = { at->q_sum, at->k_sum };
    const int64_t h = recurrent_key_head(x->p, x->h);
    for (int side = 0; side < 2; side++) {
        for (int64_t t = n * CHUNK; to[side]->data && t < (n + 1) * CHUNK && t < x->s.len; t++) {
            float *row = sum[side] + t * x->width;
            features_gradient(x, from[side], t, row);
            store_floats(to[side]->data, x->p->dtype, RECURRENT_AT(*to[side], x->s.b, h, x->s.first + t), row,
                         x->d);
        }
    }
}

/* ------------------------------------------------------------------ one value head */

static void load_states(const scratch *y, const head *at)
{
    const loam_const_view *in = &y->x->a->state_in, *grad = &y->x->a->grad_state_out;
    if (y->x->form->solved) {
        mesa_load_state(y->x, in, state_of(y, at, 0));
        mesa_load_state(y->x, grad, at->grad);
    } else {
        chunk_load_state(y->x, in, state_of(y, at, 0));
        chunk_load_state(y->x, grad, at->grad);
    }
}

static void store_gradient(const scratch *y, const head *at)
{
    const loam_view *out = &y->x->a->grad_state_in;
    y->x->form->solved ? mesa_store_state(y->x, out, at->grad) : chunk_store_state(y->x, out, at->grad);
}

static void one_head(scratch *y, const head_sums *sums)
{
    const head *at = &y->own;
    const int64_t chunks = chunks_of(y->x->s.len);
    load_states(y, at);
    for (int64_t n = 0; n + 1 < chunks; n++) {
        begin_advance(y, n);
        advance(y, at, n);
    }
    for (int64_t n = chunks - 1; n >= 0; n--) {
        begin_gradient(y, at, n);
        retreat(y, at, n, sums);
        end_gradient(y, at, n, sums);
    }
    store_gradient(y, at);
}

/* The same by all threads of the team. */
static void one_head_together(scratch *y, const head *at, const head_sums *sums)
{
    const int64_t chunks = chunks_of(y->x->s.len);
#pragma omp single
    load_states(y, at);
#pragma omp for ordered schedule(static, 1)
    for (int64_t n = 0; n < chunks - 1; n++) {
        begin_advance(y, n);
#pragma omp ordered
        advance(y, at, n);
    }
#pragma omp for ordered schedule(static, 1)
    for (int64_t n = chunks - 1; n >= 0; n--) {
        begin_gradient(y, at, n);
#pragma omp ordered
        retreat(y, at, n, sums);
        end_gradient(y, at, n, sums);
    }
#pragma omp single
    store_gradient(y, at);
}

/* ------------------------------------------------------------------ all heads */

/* Sum over sequences and chunks, for value head h. */
static double sum_of(const loam_problem *p, const loam_args *a, const head_sums *sums, const double *part,
                     int64_t h)
{
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t n = 0; n < chunks_of(recurrent_seq_at(p, a, b).len); n++) {
            sum += part[(b * p->heads_v + h) * sums->chunks + n];
        }
    }
    return sum;
}

static double ridge_of(const loam_problem *p, const loam_args *a, const head_sums *sums, int64_t h, int64_t c)
{
    double sum = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        sum += recurrent_seq_at(p, a, b).len > 0 ? sums->ridge[(b * p->heads_v + h) * p->dim_qk + c] : 0;
    }
    return sum;
}

static void put_ridge(const loam_problem *p, const loam_args *a, const head_sums *sums)
{
    float *to = a->grad_ridge.data;
    double all = 0;
    for (int64_t h = 0; h < p->heads_v; h++) {
        double one = 0;
        for (int64_t c = 0; c < p->dim_qk; c++) {
            const double channel = ridge_of(p, a, sums, h, c);
            one += channel;
            if (p->ridge_axes == LOAM_RIDGE_HEAD_CHANNEL) {
                to[h * a->grad_ridge.head + c] = (float)channel;
            }
        }
        all += one;
        if (p->ridge_axes == LOAM_RIDGE_HEAD) {
            to[h * a->grad_ridge.head] = (float)one;
        }
    }
    if (p->ridge_axes == LOAM_RIDGE_NUMBER) {
        to[0] = (float)all;
    }
}

static void put_sums(const loam_problem *p, const loam_args *a, const head_sums *sums)
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
    if (a->grad_scale) { /* a weighted mean does not depend on the scale */
        *(float *)a->grad_scale = p->normalise ? 0 : (float)scale;
    }
    if (form->solved && a->grad_ridge.data) {
        put_ridge(p, a, sums);
    }
}

/* Key head n % heads_q of sequence n / heads_q; by all threads of the team if `shared` is given. */
static void one_key_head(scratch *y, int64_t n, const head *shared, const head_sums *sums)
{
    chunk *x = y->x;
    const int64_t group = x->p->heads_v / x->p->heads_q, h = n % x->p->heads_q * group;
    x->s = recurrent_seq_at(x->p, x->a, n / x->p->heads_q);
    for (x->h = h; x->h < h + group; x->h++) {
        if (x->form->solved) {
            mesa_load_head(&y->mesa);
        }
        if (shared) {
            one_head_together(y, shared, sums);
        } else {
            one_head(y, sums);
        }
    }
    x->h = h;
    if (shared) {
#pragma omp for
        for (int64_t i = 0; i < chunks_of(x->s.len); i++) {
            put_features(x, shared, i);
        }
    }
    for (int64_t i = 0; !shared && i < chunks_of(x->s.len); i++) {
        put_features(x, &y->own, i);
    }
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
    head shared = { 0 }; /* the arrays of the first thread */
#pragma omp parallel num_threads(p->threads)
    {
        arena pool = { (char *)a->work + first.used + each * (size_t)omp_get_thread_num(), 0 };
        scratch y;
        scratch_carve(&y, p, a, &pool);
#pragma omp master
        shared = y.own;
#pragma omp barrier
        if (heads < omp_get_num_threads()) {
            for (int64_t n = 0; n < heads; n++) {
                one_key_head(&y, n, &shared, &sums);
            }
        } else {
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < heads; n++) {
                one_key_head(&y, n, NULL, &sums);
            }
        }
    }
    put_sums(p, a, &sums);
    return loam_succeed(error);
}
