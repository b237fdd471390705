/* SPDX-License-Identifier: MIT
 * Positive random features on the CPU: their map, the recurrence of this instruction set, and back
 * (src/recurrent/positive.h; gradients: src/recurrent/reference/positive.c). Compiled once for each
 * instruction set. */
#include "src/recurrent/cpu/positive_map.h"

#include <omp.h>

/* ------------------------------------------------------------------ gradients of q and k */

/* w->e <- gradients of the logarithms of the features, those times these, 0 where they were held. They stay
 * in the array of the gradients too, for z. */
static void gradient_of_logarithms(const rows *w, const block *at, bool key, int64_t n, int64_t r)
{
    const positive *x = w->x;
    const bool held = rows_may_be_held(w, at->count, key);
    if (held) rows_logarithms(w, at->count, key);
    for (int64_t i = 0; i < at->count; i++) {
        const float *phi = rows_features(w, key ? x->k : x->q, at, n, i, r);
        float *grad = rows_features(w, key ? x->grad_k : x->grad_q, at, n, i, r);
        double *e = w->e + i * w->padded;
        for (int64_t m = 0; m < w->features; m++) {
            const bool free = !held || fabs(w->logs[i * w->padded + m]) < POSITIVE_BOUND;
            grad[m] = free ? grad[m] * phi[m] : 0;
            e[m] = (double)grad[m];
        }
    }
}

/* to (+)= sqrt(scale) A^T times the gradients of the rows in w->at; w->e has those of their logarithms. */
static void gradient_of_rows(const rows *w, const block *at, bool key, double *to, bool add)
{
    const loam_const_view *A = key ? &w->x->a->balance_keys : &w->x->a->balance;
    const double root = sqrt(w->x->p->scale);
    product64(w->grad, w->width, at->count, (matrix64){ w->e, w->padded, 1 }, w->z, w->width, w->features,
              w->width, false);
    for (int64_t i = 0; i < at->count; i++) {
        double all = 0;
        for (int64_t m = 0; key && m < w->features; m++)
            all += w->e[i * w->padded + m];
        for (int64_t c = 0; c < w->width; c++)
            w->grad[i * w->width + c] = root * (w->grad[i * w->width + c] - all * w->at[i * w->width + c]);
    }
    if (A->data) {
        rows_load_matrix(w, A, false);
        product64(to, w->width, at->count, (matrix64){ w->grad, w->width, 1 }, w->matrix, w->width, w->d,
                  w->width, add);
        return;
    }
    for (int64_t e = 0; e < at->count * w->width; e++)
        to[e] = w->grad[e] + (add ? to[e] : 0);
}

static void store_rows(const rows *w, const block *at, const loam_view *to, int64_t h, const double *from)
{
    for (int64_t i = 0; to->data && i < at->count; i++) {
        for (int64_t c = 0; c < w->d; c++)
            w->row[c] = (float)from[i * w->width + c];
        store_floats(to->data, w->x->p->dtype,
                     RECURRENT_AT(*to, at->seq->b, h, at->seq->first + at->first + i), w->row, w->d);
    }
}

/* Of a block of key-value head g, and of the queries that read it. */
static void gradient_of_block(rows *w, const block *at, int64_t g)
{
    const positive *x = w->x;
    for (int64_t n = g * x->sharing; n < (g + 1) * x->sharing; n++) {
        rows_load_head(w, n);
        rows_load(w, at, true, g);
        gradient_of_logarithms(w, at, true, n, 0);
        gradient_of_rows(w, at, true, w->grad_k, n > g * x->sharing);
        for (int64_t r = 0; r < x->reads; r++) {
            const int64_t h = positive_query_head(x, n, r);
            rows_load(w, at, false, h);
            gradient_of_logarithms(w, at, false, n, r);
            gradient_of_rows(w, at, false, w->given, false);
            store_rows(w, at, &x->a->grad_q, h, w->given);
        }
    }
    store_rows(w, at, &x->a->grad_k, g, w->grad_k);
}

/* ------------------------------------------------------------------ gradients of z and log alpha */

enum { Z_ROWS = 32 };

/* w->z[0 .. count) += e^T x over the tokens of the block, for features first ..; w->alpha the sums of e. */
static void add_parameters(const rows *w, const block *at, bool key, int64_t n, int64_t r, int64_t first,
                           int64_t count)
{
    const positive *x = w->x;
    for (int64_t i = 0; i < at->count; i++) {
        const float *e = rows_features(w, key ? x->grad_k : x->grad_q, at, n, i, r) + first;
        for (int64_t m = 0; m < count; m++) {
            w->e[i * w->padded + m] = (double)e[m];
            w->alpha[m] += key ? (double)e[m] : 0;
        }
    }
    rows_load(w, at, key, key ? positive_key_head(x, n) : positive_query_head(x, n, r));
    product64(w->z, w->width, count, (matrix64){ w->e, 1, w->padded }, w->at, w->width, at->count, w->width,
              true);
}

/* Features first .. of head n, over all tokens in order. */
static void gradient_of_parameters(rows *w, int64_t n, int64_t first)
{
    const positive *x = w->x;
    const loam_view *z = &x->a->grad_z, *alpha = &x->a->grad_log_alpha;
    const int64_t left = w->features - first, count = left < Z_ROWS ? left : Z_ROWS;
    memset(w->z, 0, (size_t)(count * w->width) * sizeof(double));
    memset(w->alpha, 0, (size_t)count * sizeof(double));
    w->head = n;
    for (int64_t b = 0; b < x->p->batch; b++) {
        const recurrent_seq seq = recurrent_seq_at(x->p, x->a, b);
        for (int64_t index = 0; index * POSITIVE_BLOCK < seq.len; index++) {
            const block at = block_at(&seq, index);
            add_parameters(w, &at, true, n, 0, first, count);
            for (int64_t r = 0; r < x->reads; r++)
                add_parameters(w, &at, false, n, r, first, count);
        }
    }
    for (int64_t m = 0; m < count; m++) {
        for (int64_t c = 0; z->data && c < w->d; c++)
            ((float *)z->data)[n * z->head + (first + m) * z->token + c] = (float)w->z[m * w->width + c];
        if (alpha->data) ((float *)alpha->data)[n * alpha->head + first + m] = (float)w->alpha[m];
    }
}

/* By all threads of the team. */
static void gradient_all(rows *w, const map_grid *g)
{
    const positive *x = w->x;
    const int64_t items = x->p->batch * x->p->heads_kv * g->blocks,
                  tiles = (w->features + Z_ROWS - 1) / Z_ROWS;
    const bool parameters = x->a->grad_z.data || x->a->grad_log_alpha.data;
#pragma omp for schedule(static)
    for (int64_t item = 0; item < items; item++) {
        const place of = place_of(x, g, item);
        const recurrent_seq seq = recurrent_seq_at(x->p, x->a, of.b);
        const block at = block_at(&seq, of.index);
        if (at.count > 0) gradient_of_block(w, &at, of.head);
    }
#pragma omp for schedule(static)
    for (int64_t item = 0; item < (parameters ? x->heads * tiles : 0); item++)
        gradient_of_parameters(w, item / tiles, item % tiles * Z_ROWS);
}

/* ------------------------------------------------------------------ rows of the table */

typedef struct layout {
    positive x;
    map_grid grid;
    size_t each; /* scratch of a thread */
    void *work;
} layout;

/* The threads' scratch and the workspace of the recurrence have the same place. */
static layout layout_carve(const loam_problem *p, const loam_args *a, kernel_work_fn *recurrence, arena *pool)
{
    layout l = { .x = positive_make(p, a, LOAM_F32, pool) };
    l.grid = map_grid_carve(&l.x, pool);
    arena one = { 0 };
    rows_carve(&l.x, &one);
    l.each = one.used;
    const loam_problem problem = positive_problem(&l.x);
    const size_t read = recurrence(&problem), map = size_mul(l.each, (size_t)p->threads);
    l.work = arena_take(pool, read > map ? read : map, 1);
    return l;
}

static size_t work_bytes(const loam_problem *p, kernel_work_fn *recurrence)
{
    arena pool = { 0 };
    layout_carve(p, NULL, recurrence, &pool);
    return pool.used;
}

static void by_threads(const layout *l, void (*task)(rows *w, const map_grid *g))
{
#pragma omp parallel num_threads(l->x.p->threads)
    {
        arena pool = { (char *)l->work + l->each * (size_t)omp_get_thread_num(), 0 };
        rows w = rows_carve(&l->x, &pool);
        task(&w, &l->grid);
    }
}

static loam_status run(const loam_problem *p, const loam_args *a, kernel_work_fn *recurrence,
                       kernel_run_fn *read, loam_error *error)
{
    arena pool = { a->work, 0 };
    const layout l = layout_carve(p, a, recurrence, &pool);
    positive_stage(&l.x);
    by_threads(&l, map_all);
    positive_read inner = positive_recurrence(&l.x);
    inner.args.work = l.work;
    TRY(read(&inner.problem, &inner.args, error));
    if (p->pass == LOAM_BACKWARD) by_threads(&l, gradient_all);
    positive_unstage(&l.x);
    return loam_succeed(error);
}

#define POSITIVE_ROW(pass) \
    size_t RECURRENT_JOIN(ISA(positive_##pass), work)(const loam_problem *p) \
    { \
        return work_bytes(p, RECURRENT_JOIN(ISA(recurrent_##pass), work)); \
    } \
    loam_status ISA(positive_##pass)(const loam_problem *p, const loam_args *a, loam_error *error) \
    { \
        return run(p, a, RECURRENT_JOIN(ISA(recurrent_##pass), work), ISA(recurrent_##pass), error); \
    }

POSITIVE_ROW(forward)
POSITIVE_ROW(backward)
